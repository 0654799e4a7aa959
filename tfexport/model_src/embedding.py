"""Token ids to vectors: table, scale, positions, dropout."""

from torch import Tensor, nn


class Embedding(nn.Module):
    """Source: Vaswani et al. 2017, sections 3.4 and 3.5."""

    def __init__(
        self, vocab_size: int, d_model: int, scale: float, positions: nn.Module, dropout: float
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = positions
        self.dropout = nn.Dropout(dropout)
        self.scale = scale

    def forward(self, input_ids: Tensor, start: int) -> Tensor:
        """Embed ids whose first column stands at position ``start``: (B, T) to (B, T, E)."""
        x: Tensor = self.tokens(input_ids) * self.scale
        x = self.dropout(self.positions(x, start))
        return x
