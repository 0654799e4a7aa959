"""Token ids to vectors: table, scale, positions."""

from torch import Tensor, nn


class Embedding(nn.Module):
    """Source: Vaswani et al. 2017, sections 3.4 and 3.5."""

    def __init__(self, vocab_size: int, d_model: int, scale: float, positions: nn.Module) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = positions
        self.scale = scale

    def forward(self, inputs: Tensor, start: int) -> Tensor:
        """Embed ids whose first column stands at position ``start``: (B, T) to (B, T, E)."""
        x: Tensor = self.positions(self.tokens(inputs) * self.scale, start)
        return x


class NoEmbedding(nn.Module):
    """Stands where a model takes vectors instead of ids: the caller has embedded them."""

    def forward(self, inputs: Tensor, start: int) -> Tensor:
        """(B, T, E) to (B, T, E)."""
        return inputs
