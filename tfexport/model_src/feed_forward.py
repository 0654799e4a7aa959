"""The position-wise feed-forward sublayer."""

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
