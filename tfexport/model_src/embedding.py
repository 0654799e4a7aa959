"""Token ids to vectors: table, scale, absolute positions, norm."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Embedding(nn.Module):
    """norm(token_norm(scale * table[id]) + position).

    The token ``unplaced_id`` gets no position; those after it are counted as if it had one.
    Source: Vaswani et al. 2017, sections 3.4 and 3.5; the norms are those of BART and similar
        models.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        scale: float,
        positions: nn.Module,
        token_norm: nn.Module,
        norm: nn.Module,
        unplaced_id: int | None = None,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = positions
        self.token_norm = token_norm
        self.norm = norm
        self.scale = scale
        self.unplaced_id = unplaced_id

    def forward(self, inputs: Tensor, start: int) -> Tensor:
        """Embed ids whose first column is at position ``start``: (B, T) to (B, T, E)."""
        x: Tensor = self.token_norm(self.tokens(inputs) * self.scale)
        return self.placed(inputs, x, self.positions(x, start))

    def at(self, inputs: Tensor, index: Tensor) -> Tensor:
        """Embed ids (B, T) at positions that broadcast to them: (B, T, E)."""
        x: Tensor = self.token_norm(self.tokens(inputs) * self.scale)
        return self.placed(inputs, x, self.positions.at(x, index))  # type: ignore[operator]

    def placed(self, inputs: Tensor, x: Tensor, placed: Tensor) -> Tensor:
        """The norm of vectors with their positions, (B, T, E); of some ids, of those without."""
        if self.unplaced_id is not None:
            placed = torch.where((inputs == self.unplaced_id).unsqueeze(-1), x, placed)
        x = self.norm(placed)
        return x


class NoEmbedding(nn.Module):
    """Replaces an embedding in a model that takes vectors instead of ids."""

    def forward(self, inputs: Tensor, start: int) -> Tensor:
        """(B, T, E) to (B, T, E)."""
        return inputs


def sinusoidal_table(max_positions: int, d_model: int) -> Tensor:
    """(M, E): sin at even columns, cos at odd ones, of position / 10000^(2i / E).

    Computed in float64: with angles in float32, the values of late positions are off by 1e-5.
    Source: Vaswani et al. 2017, section 3.5.
    """
    positions = torch.arange(max_positions, dtype=torch.float64).unsqueeze(1)  # (M, 1)
    even = torch.arange(0, d_model, 2, dtype=torch.float64)
    angles = positions / 10000.0 ** (even / d_model)  # (M, ceil(E / 2))
    table = torch.empty(max_positions, d_model)
    table[:, 0::2] = torch.sin(angles)
    table[:, 1::2] = torch.cos(angles[:, : d_model // 2])  # an odd d_model has one cos fewer
    return table


def halves_table(max_positions: int, d_model: int) -> Tensor:
    """(M, E): the sines of ``sinusoidal_table`` in the first half, its cosines in the second.

    Source: Marian and Pegasus of Hugging Face, Sockeye, Marian-NMT.
    """
    table = sinusoidal_table(max_positions, d_model)
    return torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)


def t2t_table(max_positions: int, d_model: int, first: int = 0) -> Tensor:
    """(M, E): sines, then cosines, of (first + position) / 10000^(i / (E // 2 - 1)).

    The last column of an odd E is 0. Computed in float32 as there, where late positions are off by
    1e-5: a model was trained with these values.
    Source: tensor2tensor; fairseq, M2M-100 and FSMT of Hugging Face.
    """
    half = d_model // 2
    frequencies = torch.exp(torch.arange(half).float() * -(math.log(10000) / max(half - 1, 1)))
    angles = torch.arange(first, first + max_positions).float()[:, None] * frequencies[None]
    table = torch.cat([angles.sin(), angles.cos()], dim=1)
    return torch.nn.functional.pad(table, (0, d_model % 2))


class PositionTable(nn.Module):
    """Adds row ``start + t`` of a table to position t, then drops out.

    The table is fixed or trained.
    """

    def __init__(self, table: Tensor, trainable: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        if trainable:
            self.table = nn.Parameter(table)
        else:
            self.register_buffer("table", table)

    def forward(self, x: Tensor, start: int) -> Tensor:
        """(B, T, E) to (B, T, E)."""
        # A lookup, not a slice: a slice past the end would be clipped silently.
        index = torch.arange(start, start + x.size(1), device=x.device)
        return self.at(x, index)

    def at(self, x: Tensor, index: Tensor) -> Tensor:
        """(B, T, E), at positions that broadcast to (B, T), to (B, T, E)."""
        x = self.dropout(x + F.embedding(index, self.table))
        return x


class NoPositions(nn.Module):
    """Adds nothing."""

    def forward(self, x: Tensor, start: int) -> Tensor:
        """(B, T, E) to (B, T, E)."""
        return x

    def at(self, x: Tensor, index: Tensor) -> Tensor:
        """See ``PositionTable``."""
        return x
