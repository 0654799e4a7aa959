"""Formulas that several references share, without modules."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * (1.702 * x).sigmoid(),
    "silu": F.silu,
}


def linear(state: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    """X times ``name.weight`` transposed, plus ``name.bias`` if there is one."""
    return F.linear(x, state[f"{name}.weight"], state.get(f"{name}.bias"))


def attend(q: Tensor, k: Tensor, v: Tensor, blocked: Tensor, fill: float) -> Tensor:
    """softmax(q k^T / sqrt(D), ``fill`` where blocked) v, over the last two axes."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    return scores.masked_fill(blocked, fill).softmax(-1) @ v


def sinusoids(length: int, d_model: int) -> Tensor:
    """(T, E): sin and cos of position / 10000^(2i / E), alternating."""
    position = torch.arange(length, dtype=torch.float64)[:, None]  # (T, 1)
    column = torch.arange(d_model, dtype=torch.float64)  # (E,)
    angle = position / 10000.0 ** ((column - column % 2) / d_model)
    return torch.where(column % 2 == 0, angle.sin(), angle.cos()).float()


def packed_projections(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict whose separate query, key and value projections are packed into one.

    ``….q_proj_weight`` and its like, (E, E) each, become ``….in_proj_weight``, (3 * E, E), which is
    all that ``torch.nn.MultiheadAttention`` takes where keys and values are as wide as queries.
    """
    packed = dict(state)
    for kind in ("weight", "bias"):
        for name in [name for name in packed if name.endswith(f".q_proj_{kind}")]:
            stem = name.removesuffix(f"q_proj_{kind}")
            parts = [packed.pop(f"{stem}{part}_proj_{kind}") for part in "qkv"]
            packed[f"{stem}in_proj_{kind}"] = torch.cat(parts)
    return packed


def causal(length: int) -> Tensor:
    """(T, T), True above the diagonal."""
    return torch.ones(length, length, dtype=torch.bool).triu(1)
