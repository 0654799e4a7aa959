"""What the written-out references share: formulas, no modules."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
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
    """(T, E): sin and cos of position / 10000^(2i / E) in turn."""
    rows = [
        [
            (math.cos if column % 2 else math.sin)(
                position / 10000 ** ((column - column % 2) / d_model)
            )
            for column in range(d_model)
        ]
        for position in range(length)
    ]
    return torch.tensor(rows)


def causal(length: int) -> Tensor:
    """(T, T), True above the diagonal."""
    return torch.ones(length, length, dtype=torch.bool).triu(1)
