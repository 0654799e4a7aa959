"""Convolutions, pooling, norms, embeddings and what models do between layers, at any size."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from tests.support.layer_export import Axes, check, normal

pytestmark = pytest.mark.usefixtures("opset")
ROWS = normal("B", "S", 8)
TARGET = normal("B", "T", 8)
CHANNELS = normal("B", 8, "S")
IMAGE = normal("B", 3, 32, "W")
IDS = Axes(("B", "S"), "ids")
MASK = Axes(("B", "S"), "mask")
LENGTHS = Axes(("B",), "lengths")
PAST = normal("B", 2, "P", 8)


def table() -> nn.Embedding:
    return nn.Embedding(32, 8)


CONVOLUTIONS: dict[str, tuple[nn.Module, Axes]] = {
    "Conv1d": (nn.Conv1d(8, 6, 3, stride=2, padding=1), CHANNELS),
    "Conv1d same": (nn.Conv1d(8, 8, 3, padding="same", dilation=2, groups=8), CHANNELS),
    "Conv2d": (nn.Conv2d(3, 4, 3, padding=1), IMAGE),
    "Conv2d circular": (nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), IMAGE),
    "ConvTranspose1d": (nn.ConvTranspose1d(8, 6, 4, stride=2, padding=1), CHANNELS),
    "ConvTranspose2d": (nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1), IMAGE),
    "weight norm": (parametrizations.weight_norm(nn.Conv1d(8, 6, 3, padding=1)), CHANNELS),
    "MaxPool1d": (nn.MaxPool1d(3, 2, padding=1, ceil_mode=True), CHANNELS),
    "MaxPool2d": (nn.MaxPool2d(3, 2, 1, ceil_mode=True), IMAGE),
    "AvgPool2d": (nn.AvgPool2d((2, 1), ceil_mode=True, count_include_pad=False), IMAGE),
    "AdaptiveAvgPool1d": (nn.AdaptiveAvgPool1d(4), CHANNELS),
    "AdaptiveAvgPool2d": (nn.AdaptiveAvgPool2d(4), IMAGE),
    "AdaptiveAvgPool2d height": (nn.AdaptiveAvgPool2d((3, None)), IMAGE),
    "AdaptiveAvgPool2d both": (nn.AdaptiveAvgPool2d(1), IMAGE),
    "AdaptiveMaxPool1d": (nn.AdaptiveMaxPool1d(4), CHANNELS),
    "AdaptiveMaxPool2d": (nn.AdaptiveMaxPool2d((1, None)), IMAGE),
    "Upsample": (nn.Upsample(scale_factor=2, mode="bilinear"), IMAGE),
    "ReplicationPad1d": (nn.ReplicationPad1d(2), CHANNELS),
    "Unfold": (nn.Unfold(3, padding=1), IMAGE),
    "PixelShuffle": (nn.PixelShuffle(2), normal("B", 8, 4, "W")),
    "BatchNorm1d": (nn.BatchNorm1d(8), CHANNELS),
    "BatchNorm2d": (nn.BatchNorm2d(3), IMAGE),
    "GroupNorm": (nn.GroupNorm(2, 8), CHANNELS),
    "InstanceNorm2d": (nn.InstanceNorm2d(3, affine=True), IMAGE),
    "LayerNorm": (nn.LayerNorm(8, bias=False), ROWS),
    "RMSNorm": (nn.RMSNorm(8), ROWS),
    "Embedding": (nn.Embedding(9, 8, padding_idx=0), IDS),
    "Embedding with a norm": (nn.Embedding(9, 8, max_norm=1.0), IDS),
    "Dropout": (nn.Dropout(0.5), ROWS),
    "RReLU": (nn.RReLU(), ROWS),
}


@pytest.mark.parametrize(("layer", "given"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_layers(layer: nn.Module, given: Axes) -> None:
    check(layer, [given], lambda m, x: m(x) * 1)


class Experts(nn.Module):
    """A mixture of four feed-forward networks, two of which a token takes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.gate = nn.Linear(8, 4)
        self.up = nn.Parameter(torch.randn(4, 8, 6))
        self.down = nn.Parameter(torch.randn(4, 6, 8))

    def chosen(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Shares and numbers of the experts of each token, each (B, S, 2)."""
        values, indices = self.gate(x).topk(2, -1)
        return values.softmax(-1), indices


def scattered(m: Experts, x: Tensor) -> Tensor:
    shares, indices = m.chosen(x)
    dense = x.new_zeros(*x.shape[:-1], 4).scatter(-1, indices, shares)
    hidden = torch.einsum("bse,nef->bsnf", x, m.up).relu()
    return torch.einsum("bsn,bsnf,nfe->bse", dense, hidden, m.down)


def gathered(m: Experts, x: Tensor) -> Tensor:
    shares, indices = m.chosen(x)
    hidden = torch.einsum("bse,bskef->bskf", x, m.up[indices]).relu()
    return torch.einsum("bsk,bskf,bskfe->bse", shares, hidden, m.down[indices])


def routed(m: Experts, x: Tensor) -> Tensor:
    """The tokens of each expert by themselves: sizes that depend on the data."""
    shares, indices = (given.flatten(0, 1) for given in m.chosen(x))
    rows, result = x.flatten(0, 1), torch.zeros_like(x).flatten(0, 1)
    for number in range(4):
        token, slot = torch.where(indices == number)
        expert = (rows[token] @ m.up[number]).relu() @ m.down[number]
        result = result.index_add(0, token, expert * shares[token, slot].unsqueeze(-1))
    return result.view_as(x)


@pytest.mark.parametrize("call", [scattered, gathered, routed])
def test_mixture_of_experts(call: Callable[..., Tensor]) -> None:
    check(Experts(), [ROWS], call)


def last_of_each(m: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
    return x[torch.arange(x.size(0)), lengths - 1]


def rotated(m: nn.Module, past: Tensor, x: Tensor) -> Tensor:
    position = torch.arange(past.size(2), past.size(2) + x.size(1)).unsqueeze(1)
    angle = (position / 100.0 ** (torch.arange(4) / 4)).repeat(1, 2)
    halves = torch.cat([-x[..., 4:], x[..., :4]], -1)
    return x * angle.cos() + halves * angle.sin()


def relative(m: nn.Embedding, past: Tensor, x: Tensor) -> Tensor:
    key = torch.arange(past.size(2) + x.size(1))
    query = torch.arange(x.size(1)).unsqueeze(1) + past.size(2)
    bias: Tensor = m((key - query).clamp(-4, 4) + 4)
    return bias


def regrouped(m: nn.Module, x: Tensor) -> Tensor:
    batch, length, _ = x.shape
    split = x.view(batch, -1, 2, 4).permute(0, 2, 1, 3)
    return split.reshape(batch * 2, length, 4).view(batch, 2, length, 4).transpose(1, 2).flatten(2)


class Rotary(nn.Module):
    """Rotary positions as complex numbers, as LLaMA's code has them."""

    turns: Tensor

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(32).float(), 100.0 ** -(torch.arange(4) / 4))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def turned(self, x: Tensor, turns: Tensor) -> Tensor:
        """(B, T, H, 8), by (..., 4) complex numbers."""
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns).flatten(3)


COMPLEX: dict[str, Callable[[Rotary, Tensor, Tensor], Tensor]] = {
    "view": lambda m, p, x: m.turned(
        x, m.turns[p.size(2) : p.size(2) + x.size(1)].view(1, x.size(1), 1, 4)
    ),
    "indices": lambda m, p, x: m.turned(
        x, m.turns[p.size(2) : p.size(2) + x.size(1)][None, :, None]
    ),
    "unsqueeze": lambda m, p, x: m.turned(x, m.turns[: x.size(1)].unsqueeze(0).unsqueeze(-2)),
    "positions": lambda m, p, x: m.turned(
        x, torch.unsqueeze(m.turns[torch.arange(x.size(1)) + p.size(2)], 1)[..., :]
    ),
}


@pytest.mark.parametrize("call", COMPLEX.values(), ids=COMPLEX)
def test_complex_rotary_positions(call: Callable[..., Tensor]) -> None:
    check(Rotary(), [PAST, normal("B", "T", 2, 8)], call)


OPERATIONS: dict[str, tuple[nn.Module, list[Axes], Callable[..., Any]]] = {
    "tril after a past": (
        nn.Identity(),
        [PAST, TARGET],
        lambda m, p, x: torch.ones(x.size(1), p.size(2) + x.size(1)).tril(p.size(2)),
    ),
    "triu": (
        nn.Identity(),
        [ROWS],
        lambda m, x: torch.full((x.size(1), x.size(1)), -torch.inf).triu(1),
    ),
    "subsequent mask": (
        nn.Identity(),
        [ROWS],
        lambda m, x: nn.Transformer.generate_square_subsequent_mask(x.size(1)),
    ),
    "slice of a buffer": (table(), [PAST, TARGET], lambda m, p, x: x + m.weight[p.size(2)]),
    "positions after a past": (
        table(),
        [PAST, TARGET],
        lambda m, p, x: x + m.weight[p.size(2) : p.size(2) + x.size(1)],
    ),
    "positions": (table(), [ROWS], lambda m, x: x + m(torch.arange(x.size(1)))),
    "mask of lengths": (
        nn.Identity(),
        [ROWS, LENGTHS],
        lambda m, x, n: torch.arange(x.size(1)) < n.unsqueeze(1),
    ),
    "last of each row": (nn.Identity(), [ROWS, LENGTHS], last_of_each),
    "mean under a mask": (
        nn.Identity(),
        [ROWS, MASK],
        lambda m, x, k: (x * k.unsqueeze(-1)).sum(1) / k.sum(1, keepdim=True).clamp(min=1),
    ),
    "rotary": (nn.Identity(), [PAST, TARGET], rotated),
    "relative positions": (table(), [PAST, TARGET], relative),
    "reshapes": (nn.Identity(), [ROWS], regrouped),
    "einsum": (
        nn.Identity(),
        [ROWS, TARGET],
        lambda m, x, y: torch.einsum("bse,bte->bst", x, y).softmax(-1),
    ),
    "cumsum": (nn.Identity(), [IDS], lambda m, x: torch.cumsum(x != 0, 1)),
    "argmax": (nn.Identity(), [ROWS], lambda m, x: x.argmax(-1)),
    "interpolate": (
        nn.Identity(),
        [IMAGE],
        lambda m, x: F.interpolate(x, size=(16, x.size(3) * 2), mode="nearest"),
    ),
    "masked_fill in place": (
        nn.Identity(),
        [ROWS, MASK],
        lambda m, x, k: x.clone().masked_fill_(k.unsqueeze(-1), 0.0),
    ),
    "convolution over a cache": (
        nn.Conv1d(8, 8, 3),
        [normal("B", 8, 2), CHANNELS],
        lambda m, cache, x: m(torch.cat([cache, x], 2)),
    ),
    "axes of size 1": (
        nn.Identity(),
        [normal("B", 1, "S", 1)],
        lambda m, x: (x.squeeze(1), torch.squeeze(x, dim=-1), x.squeeze((1, 3)), x.squeeze(3)),
    ),
    "a growing cache": (
        nn.Identity(),
        [PAST, normal("B", 2, 1, 8)],
        lambda m, p, x: torch.cat([p, x], 2),
    ),
}


def test_smallest_size_of_an_axis_is_that_of_the_kernel() -> None:
    check(nn.Conv1d(8, 6, 3), [CHANNELS], sizes=[{"B": 1, "S": 3}, {"B": 3, "S": 9}])


def test_largest_size_of_an_axis_is_that_of_the_check() -> None:
    def call(layer: nn.Embedding, rows: Tensor) -> Tensor:
        if rows.size(1) > 32:
            raise ValueError("too long")
        return rows + layer.weight[: rows.size(1)]

    check(table(), [ROWS], call)


def test_dynamic_axis_is_kept_by_squeeze() -> None:
    sizes = [{"B": 2, "S": 3}, {"B": 3, "S": 9}]
    check(nn.Identity(), [normal("B", 1, "S")], lambda m, x: (x.squeeze(), x.squeeze(2)), sizes)


@pytest.mark.parametrize(("layer", "given", "call"), OPERATIONS.values(), ids=OPERATIONS)
def test_operations(layer: nn.Module, given: list[Axes], call: Callable[..., Any]) -> None:
    check(layer, given, call)
