"""nn.Transformer rebuilt: one layer applied N times, positions before every encoder layer.

The layers are torch's own, so that the attention is ``torch.nn.MultiheadAttention``'s.
"""

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn


def positions(length: int, size: int) -> Tensor:
    table = torch.zeros(length, size)
    steps = torch.arange(length, dtype=torch.float32).reshape(-1, 1)
    angles = steps / torch.pow(10000, torch.arange(0, size, 2, dtype=torch.float32) / size)
    table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
    return table


class Shared(nn.Module):
    def __init__(self, layer: nn.Module, times: int, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.layer, self.times, self.norm = layer, times, norm


class Rebuilt(nn.Module):
    """Vectors in and out, batch first."""

    def __init__(
        self,
        size: int = 16,
        heads: int = 4,
        encoders: int = 2,
        decoders: int = 3,
        inner: int = 24,
        **options: Any,
    ) -> None:
        super().__init__()
        arguments = {"batch_first": True, "dropout": 0.0, **options}
        encoder = nn.TransformerEncoderLayer(size, heads, inner, **arguments)
        decoder = nn.TransformerDecoderLayer(size, heads, inner, **arguments)
        self.encoder = Shared(encoder, encoders)
        self.decoder = Shared(decoder, decoders, nn.LayerNorm(size))

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        table = positions(src.size(1), src.size(2))
        memory, x = src + table, tgt
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that bool and float masks are mixed
            for _ in range(self.encoder.times):
                memory = self.encoder.layer(
                    memory + table, src_mask=src_mask, src_key_padding_mask=src_key_padding_mask
                )
            for _ in range(self.decoder.times):
                x = self.decoder.layer(
                    x,
                    memory,
                    tgt_mask=tgt_mask,
                    memory_mask=memory_mask,
                    tgt_key_padding_mask=tgt_key_padding_mask,
                    memory_key_padding_mask=memory_key_padding_mask,
                )
        assert self.decoder.norm is not None
        normed: Tensor = self.decoder.norm(x)
        return normed


def causal(length: int) -> Tensor:
    """(T, T), -inf above the diagonal; added."""
    return torch.full((length, length), -math.inf).triu(1)
