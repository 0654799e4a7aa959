"""Token ids to vectors: table, scale, positions, norm."""

from torch import Tensor, nn


class Embedding(nn.Module):
    """norm(token_norm(scale * table[id]) + position).

    Source: Vaswani et al. 2017, sections 3.4 and 3.5; the norms are those of BART and its kin.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        scale: float,
        positions: nn.Module,
        token_norm: nn.Module,
        norm: nn.Module,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = positions
        self.token_norm = token_norm
        self.norm = norm
        self.scale = scale

    def forward(self, inputs: Tensor, start: int) -> Tensor:
        """Embed ids whose first column stands at position ``start``: (B, T) to (B, T, E)."""
        x: Tensor = self.token_norm(self.tokens(inputs) * self.scale)
        x = self.norm(self.positions(x, start))
        return x


class NoEmbedding(nn.Module):
    """Stands where a model takes vectors instead of ids: the caller has embedded them."""

    def forward(self, inputs: Tensor, start: int) -> Tensor:
        """(B, T, E) to (B, T, E)."""
        return inputs
