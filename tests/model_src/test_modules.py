"""Each part against torch's own, or against its formula written out."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from tfexport.model_src.attention import Attention
from tfexport.model_src.embedding import NoPositions, PositionTable, sinusoidal_table
from tfexport.model_src.layer import (
    AnnotatedLayerNorm,
    PostNormResidual,
    PreNormResidual,
    Residual,
    ResPostNormResidual,
    RMSNorm,
)
from tfexport.model_src.masks import bias_from_blocked, blocked_by_causality, blocked_by_padding


def test_attention_equals_torch_with_padding_and_causality() -> None:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(12, 3, batch_first=True).eval()
    nn.init.normal_(theirs.in_proj_bias)
    ours = Attention(12, 3, 4).eval()
    for part, weight, bias in zip(
        (ours.q_proj, ours.k_proj, ours.v_proj),
        theirs.in_proj_weight.chunk(3),
        theirs.in_proj_bias.chunk(3),
        strict=True,
    ):
        part.weight.data, part.bias.data = weight, bias
    ours.out_proj.load_state_dict(theirs.out_proj.state_dict())
    query, key = torch.randn(2, 5, 12), torch.randn(2, 5, 12)
    keep = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    blocked = blocked_by_padding(keep) | blocked_by_causality(5, 0, query.device)
    keys, values = ours.project_key_value(key, key)
    output, weights = ours.attend(query, keys, values, bias_from_blocked(blocked, -math.inf))
    expected, expected_weights = theirs(
        query,
        key,
        key,
        key_padding_mask=keep == 0,
        attn_mask=torch.ones(5, 5, dtype=torch.bool).triu(1),
        average_attn_weights=False,
    )
    torch.testing.assert_close(output, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(weights, expected_weights, atol=1e-6, rtol=1e-5)


def test_head_size_need_not_be_the_width_over_the_heads() -> None:
    attention = Attention(6, num_heads=2, head_dim=5, key_dim=7, value_dim=8)
    output = attention(
        torch.randn(3, 4, 6), torch.randn(3, 9, 7), torch.randn(3, 9, 8), torch.zeros(1)
    )
    assert output.shape == (3, 4, 6)
    assert attention.scale == pytest.approx(1 / math.sqrt(5))


def test_annotated_norm_divides_by_the_unbiased_deviation_plus_eps() -> None:
    norm = AnnotatedLayerNorm(5, eps=1e-2)
    nn.init.normal_(norm.weight)
    x = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32)
    deviation = x.std(-1, ddof=1, keepdims=True)
    expected = norm.weight.detach().numpy() * (x - x.mean(-1, keepdims=True)) / (deviation + 1e-2)
    np.testing.assert_allclose(norm(torch.from_numpy(x)).detach(), expected, atol=1e-6)


def test_rms_norm_equals_torch() -> None:
    ours, theirs = RMSNorm(6, eps=1e-3), nn.RMSNorm(6, eps=1e-3)
    nn.init.normal_(ours.weight)
    theirs.weight = ours.weight
    x = torch.randn(2, 3, 6)
    torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("d_model", [6, 7], ids=["even", "odd"])
def test_sinusoidal_table_is_the_papers(d_model: int) -> None:
    table = sinusoidal_table(40, d_model)
    for position in (0, 1, 39):
        for column in range(d_model):
            angle = position / 10000 ** ((column - column % 2) / d_model)
            expected = math.cos(angle) if column % 2 else math.sin(angle)
            assert float(table[position, column]) == pytest.approx(expected, abs=1e-6)


def test_positions_start_where_they_are_told_and_end_with_the_table() -> None:
    table = torch.randn(5, 2)
    positions = PositionTable(table, trainable=False)
    x = torch.randn(3, 2, 2)
    torch.testing.assert_close(positions(x, 3), x + table[3:5])
    with pytest.raises(IndexError):
        positions(x, 4)
    assert NoPositions()(x, 100) is x


def test_a_trained_table_is_a_parameter_and_a_fixed_one_is_not() -> None:
    assert len(list(PositionTable(torch.zeros(2, 2), trainable=True).parameters())) == 1
    fixed = PositionTable(torch.zeros(2, 2), trainable=False)
    assert not list(fixed.parameters())
    assert list(fixed.state_dict()) == ["table"]


@pytest.mark.parametrize(
    ("kind", "formula"),
    [
        (PostNormResidual, lambda x, f, norm: norm(x + f(x))),
        (PreNormResidual, lambda x, f, norm: x + f(norm(x))),
        (ResPostNormResidual, lambda x, f, norm: x + norm(f(x))),
    ],
)
def test_residual_is_its_formula(kind: type[Residual], formula: object) -> None:
    assert callable(formula)
    residual = kind(nn.LayerNorm(4), dropout=0.5).eval()
    sublayer = nn.Linear(4, 4)
    x = torch.randn(2, 3, 4)
    y = residual.leave(x, sublayer(residual.enter(x)))
    torch.testing.assert_close(y, formula(x, sublayer, residual.norm))


def test_causality_counts_from_the_past() -> None:
    blocked = blocked_by_causality(2, 3, torch.device("cpu"))[0, 0]
    assert blocked.tolist() == [[False] * 4 + [True], [False] * 5]


@pytest.mark.parametrize("size", [1.0, 100.0, 1e6], ids=["small", "large", "huge"])
@pytest.mark.parametrize("fill", [-1e9, -1e4])
def test_filled_scores_are_the_fill_whatever_they_were(size: float, fill: float) -> None:
    scores = size * torch.randn(4, 6)
    blocked = torch.rand(4, 6) < 0.5
    blocked[0], blocked[1, 0] = True, False
    ours = (scores + bias_from_blocked(blocked, fill)).softmax(-1)
    if abs(fill) > 10 * size:  # below that the fill itself would not hide anything
        torch.testing.assert_close(ours, scores.masked_fill(blocked, fill).softmax(-1))
    torch.testing.assert_close(ours[0], torch.full((6,), 1 / 6))


def test_bias_fills_once_with_what_it_is_told() -> None:
    blocked = torch.tensor([True, False])
    assert bias_from_blocked(blocked, -5.0).tolist() == [-5.0, 0.0]
    assert bias_from_blocked(blocked, -math.inf).dtype == torch.float32
