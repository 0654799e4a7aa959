"""Absolute positions: one table, looked up by index and added."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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
        x = self.dropout(x + F.embedding(index, self.table))
        return x


class NoPositions(nn.Module):
    """Adds nothing."""

    def forward(self, x: Tensor, start: int) -> Tensor:
        """(B, T, E) to (B, T, E)."""
        return x
