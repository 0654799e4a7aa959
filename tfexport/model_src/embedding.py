"""Token ids to vectors: table, scale, positions, norm."""

import torch
from torch import Tensor, nn


class Embedding(nn.Module):
    """norm(token_norm(scale * table[id]) + position).

    The token ``unplaced_id`` gets no position; those behind it are counted as if it had one.
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
        """Embed ids whose first column stands at position ``start``: (B, T) to (B, T, E)."""
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
    """Stands where a model takes vectors instead of ids: the caller has embedded them."""

    def forward(self, inputs: Tensor, start: int) -> Tensor:
        """(B, T, E) to (B, T, E)."""
        return inputs
