"""Multi-head attention over an additive bias.

Axes: B batch, T queries, S keys, H heads, D head size, E model width.
"""

import math

import torch
from torch import Tensor, nn

from tfexport.model_src.relative import RelativePositions


class Attention(nn.Module):
    """softmax(scale * q k^T + bias) v over H heads, with four separate projections.

    Projection and attention are two calls with a cache in between: keys and values are projected
    once and attended to many times. H * D need not be d_model.
    Source: Vaswani et al. 2017, section 3.2.

    Attributes:
        relative: relative positions, of a self-attention that has its own.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        head_dim: int,
        bias: bool = True,
        dropout: float = 0.0,
        key_dim: int | None = None,
        value_dim: int | None = None,
        scale: float | None = None,
    ) -> None:
        """Make one; ``scale`` is 1 / sqrt(D) by default."""
        super().__init__()
        inner = num_heads * head_dim
        self.q_proj = nn.Linear(d_model, inner, bias=bias)
        self.k_proj = nn.Linear(d_model if key_dim is None else key_dim, inner, bias=bias)
        self.v_proj = nn.Linear(d_model if value_dim is None else value_dim, inner, bias=bias)
        self.out_proj = nn.Linear(inner, d_model, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.relative = RelativePositions()
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.scale = 1.0 / math.sqrt(head_dim) if scale is None else scale

    def split_heads(self, x: Tensor) -> Tensor:
        """(B, T, H * D) to (B, H, T, D)."""
        # All sizes are explicit: the exporter emits more operators for ``unflatten``.
        shape = [x.size(0), x.size(1), self.num_heads, self.head_dim]
        return x.reshape(shape).transpose(1, 2)

    def new_positions(self, x: Tensor) -> int:
        """T, the positions by which (B, T, E) extends a cache."""
        return x.size(1)

    def project_key_value(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Project keys and values: (B, S, E) each to (B, H, S, D) each."""
        return self.split_heads(self.k_proj(key)), self.split_heads(self.v_proj(value))

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Attend with projected keys and values.

        Args:
            query: (B, T, E), not yet projected.
            keys: (B, H, S, D).
            values: (B, H, S, D).
            bias: added to the scores; broadcasts to (B, H, T, S).

        Returns:
            output: (B, T, E).
            weights: (B, H, T, S), each row summing to 1.
        """
        queries = self.split_heads(self.q_proj(query))
        queries = self.relative.rotate_last(queries, keys.size(2)) * self.scale
        # (B, H, T, D) x (B, H, D, S) -> (B, H, T, S)
        scores = torch.matmul(queries, keys.transpose(-2, -1))
        scores = self.relative.add_to_scores(scores, queries) + bias
        weights = self.dropout(torch.softmax(scores, dim=-1))
        # (B, H, T, S) x (B, H, S, D) -> (B, H, T, D) -> (B, T, H * D)
        context = self.relative.add_to_context(torch.matmul(weights, values), weights)
        joined = context.transpose(1, 2).reshape(
            [query.size(0), query.size(1), self.num_heads * self.head_dim]
        )
        return self.out_proj(joined), weights

    def attend_cached(
        self, x: Tensor, past_key: Tensor, past_value: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Self-attention of T positions after P cached ones.

        Args:
            x: (B, T, E).
            past_key: (B, H, P, D); P may be 0.
            past_value: (B, H, P, D).
            bias: broadcasts to (B, H, T, P + T).

        Returns:
            output: (B, T, E).
            key, value: (B, H, P + T, D), the cache for the next call.
        """
        bias = self.relative(bias, x.size(1), past_key.size(2))
        key, value = self.project_key_value(x, x)
        key = self.relative.rotate(key, past_key.size(2))
        key = torch.cat([past_key, key], dim=2)
        value = torch.cat([past_value, value], dim=2)
        output, _ = self.attend(x, key, value, bias)
        return output, key, value

    def forward(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        """Project and attend in one call: (B, T, E), twice (B, S, E) and a bias to (B, T, E)."""
        bias = self.relative(bias, query.size(1), 0)
        keys, values = self.project_key_value(key, value)
        keys = self.relative.rotate(keys, 0)
        output, _ = self.attend(query, keys, values, bias)
        return output
