"""Relative positions against their formulas, and steps with a cache against whole targets."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.originals.weights import shake
from tfexport.errors import ConfigError
from tfexport.model_src import Transformer, TransformerConfig, build_transformer
from tfexport.model_src.attention import Attention
from tfexport.model_src.relative import (
    RelativeBias,
    RelativeVectors,
    RotaryPositions,
    bucket_lookup,
)

SIZES: dict[str, Any] = {
    "d_model": 12,
    "num_heads": 3,
    "decoder_num_heads": 2,
    "head_dim": 4,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "d_ff": 12,
    "source_vocab_size": 11,
    "target_vocab_size": 13,
    "positions": "none",
    "relative_buckets": 8,
    "relative_max_distance": 9,
}


def model(kind: str, **values: Any) -> Transformer:
    config = TransformerConfig(**{**SIZES, "relative_positions": kind, **values})
    built = build_transformer(config).eval()
    shake(built)
    return built


def bucket(distance: int, buckets: int, furthest: int, bidirectional: bool) -> int:
    """T5's formula for one key after (positive) or before its query."""
    first = 0
    if bidirectional:
        buckets //= 2
        first = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    steps = torch.log(torch.tensor(float(distance)) / exact) / math.log(furthest / exact)
    return first + min(buckets - 1, exact + int(steps * (buckets - exact)))


@pytest.mark.parametrize(
    ("buckets", "furthest", "bidirectional"),
    [*itertools.product((4, 5, 8, 12, 31, 32, 64), (33, 64, 127, 128, 400), (True, False))],
)
def test_buckets(buckets: int, furthest: int, bidirectional: bool) -> None:
    lookup = bucket_lookup(buckets, furthest, bidirectional)
    last = furthest if bidirectional else 0
    for distance in range(-furthest - 20, last + 21):
        place = min(max(distance, -furthest), last) + furthest
        assert lookup[place] == bucket(distance, buckets, furthest, bidirectional), distance


@pytest.mark.parametrize("bidirectional", [True, False])
def test_bias(bidirectional: bool) -> None:
    relative = RelativeBias(3, 8, 9, bidirectional)
    torch.nn.init.normal_(relative.table)
    found = relative(torch.ones(2, 1, 4, 24), 4, 20)
    assert found.shape == (2, 3, 4, 24)
    for query, key in itertools.product(range(4), range(24)):
        row = bucket(key - (20 + query), 8, 9, bidirectional)
        for sentence in range(2):
            assert torch.equal(found[sentence, :, query, key], 1 + relative.table[row])


def attention(relative: RelativeVectors | RotaryPositions) -> Attention:
    made = Attention(6, 3, 4)
    made.relative = relative
    return shake(made)


@torch.no_grad()
def test_vectors() -> None:
    """Every score and every sum has the distance's vector added to key and value."""
    found = attention(RelativeVectors(4, 3))
    x, table = torch.randn(2, 9, 6), found.get_parameter("relative.table")
    q = found.split_heads(found.q_proj(x))
    k, v = found.project_key_value(x, x)
    relations = torch.stack(
        [torch.stack([table[min(max(j - i, -3), 3) + 3] for j in range(9)]) for i in range(9)]
    )
    scores = torch.zeros(2, 3, 9, 9)
    for i, j in itertools.product(range(9), range(9)):
        scores[:, :, i, j] = (q[:, :, i] * (k[:, :, j] + relations[i, j])).sum(-1) / 4**0.5
    mask = torch.zeros(9, 9).masked_fill(torch.ones(9, 9).triu(1).bool(), -math.inf)
    weights = (scores + mask).softmax(-1)
    context = (weights[..., None] * (v[:, :, None] + relations)).sum(-2)
    expected = found.out_proj(context.transpose(1, 2).flatten(2))
    torch.testing.assert_close(found(x, x, x, mask), expected)
    past = k[:, :, :5], v[:, :, :5]
    cached, _, _ = found.attend_cached(x[:, 5:], *past, mask[5:])
    torch.testing.assert_close(cached, expected[:, 5:])


@torch.no_grad()
def test_rotations() -> None:
    """Pairs of neighbouring values as complex numbers, each times its position's."""
    found = attention(RotaryPositions(4))
    x = torch.randn(2, 9, 6)
    q = found.split_heads(found.q_proj(x))
    k, v = found.project_key_value(x, x)
    angles = torch.outer(torch.arange(9.0), 10000.0 ** (-torch.arange(0, 4, 2) / 4))
    turns = torch.polar(torch.ones_like(angles), angles)
    q, k = (
        torch.view_as_real(torch.view_as_complex(it.unflatten(-1, (2, 2)).contiguous()) * turns)
        for it in (q, k)
    )
    q, k = q.flatten(3), k.flatten(3)
    mask = torch.zeros(9, 9).masked_fill(torch.ones(9, 9).triu(1).bool(), -math.inf)
    weights = (q @ k.transpose(2, 3) / 4**0.5 + mask).softmax(-1)
    expected = found.out_proj((weights @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(found(x, x, x, mask), expected)
    cached, key, _ = found.attend_cached(x[:, 5:], k[:, :, :5], v[:, :, :5], mask[5:])
    torch.testing.assert_close(cached, expected[:, 5:])
    torch.testing.assert_close(key, k)


def targets() -> tuple[Tensor, Tensor, Tensor]:
    source, target = torch.randint(0, 11, (2, 15)), torch.randint(0, 13, (2, 17))
    return source, (torch.arange(15) < torch.tensor([[15], [8]])).long(), target


@pytest.mark.parametrize("kind", ["buckets", "buckets_every_layer", "shaw", "rotary"])
@pytest.mark.parametrize("width", [1, 5])
@torch.no_grad()
def test_steps(kind: str, width: int) -> None:
    built = model(kind)
    source, mask, target = targets()
    whole = built(source, mask, target, torch.ones_like(target))
    hidden, cross = built.encode(source, mask)
    past, found = built.decoder.empty_cache(hidden), []
    for start in range(0, target.size(1), width):
        logits, past = built.step(target[:, start : start + width], past, cross, mask)
        found.append(logits)
    torch.testing.assert_close(torch.cat(found, 1), whole, atol=1e-4, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("kind", ["buckets", "buckets_every_layer", "shaw", "rotary"])
@torch.no_grad()
def test_every_stack_and_layer_counts(kind: str) -> None:
    """A change of any table changes the logits, in TorchScript too."""
    built = model(kind)
    source, mask, target = targets()
    given = source, mask, target, torch.ones_like(target)
    before = built(*given)
    torch.testing.assert_close(torch.jit.script(built)(*given), before, atol=1e-5, rtol=1e-5)
    tables = {name: it for name, it in built.named_parameters() if "relative" in name}
    assert len(tables) == {"buckets": 2, "rotary": 0}.get(kind, 4)
    for table in tables.values():
        table[0] += 1
        after = built(*given)
        assert (after - before).abs().max() > 1e-3
        before = after


@torch.no_grad()
def test_alone() -> None:
    """A decoder without an encoder has the biases too."""
    built = model("buckets")
    x = torch.randn(2, 6, 12)
    before = built.decoder.forward_alone(x, torch.zeros(1))
    table = built.get_parameter("decoder.relative.table")
    table[1] += 1
    assert (built.decoder.forward_alone(x, torch.zeros(1)) - before).abs().max() > 1e-3


def test_bounds() -> None:
    with pytest.raises(ConfigError, match="relative_buckets: 3 is fewer than 4"):
        model("buckets", relative_buckets=3)
    with pytest.raises(ConfigError, match="relative_max_distance: 4 is not above"):
        model("buckets", relative_max_distance=4)
    with pytest.raises(ConfigError, match="relative_max_distance: 0 is not positive"):
        model("shaw", relative_max_distance=0)
    with pytest.raises(ConfigError, match="the head size is odd"):
        model("rotary", decoder_num_heads=4)
