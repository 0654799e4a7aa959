"""The position-wise feed-forward sublayer."""

import torch
from torch import Tensor, nn


class FeedForward(nn.Module):
    """down(dropout(activation(up(x)))). Source: Vaswani et al. 2017, section 3.3."""

    def __init__(
        self, d_model: int, d_ff: int, activation: nn.Module, bias: bool, dropout: float
    ) -> None:
        super().__init__()
        self.up_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.activation = activation
        self.dropout = nn.Dropout(dropout)
        self.down_proj = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, E) to (B, T, E)."""
        x = self.down_proj(self.dropout(self.activation(self.up_proj(x))))
        return x


class QuickGELU(nn.Module):
    """x * sigmoid(1.702 x). Source: Hendrycks and Gimpel 2016, section 2; Marian-NMT's gelu."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        return x * torch.sigmoid(1.702 * x)


class GatedFeedForward(FeedForward):
    """down(dropout(activation(gate(x)) * up(x))). Source: Shazeer 2020."""

    def __init__(
        self, d_model: int, d_ff: int, activation: nn.Module, bias: bool, dropout: float
    ) -> None:
        super().__init__(d_model, d_ff, activation, bias, dropout)
        self.gate_proj = nn.Linear(d_model, d_ff, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, E) to (B, T, E)."""
        gate = self.activation(self.gate_proj(x))
        x = self.down_proj(self.dropout(gate * self.up_proj(x)))
        return x
