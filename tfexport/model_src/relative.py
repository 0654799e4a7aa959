"""Relative positions of self-attention: biases, vectors and rotations.

Axes: B batch, H heads, D head size, T queries, P cached positions, K = P + T keys.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RelativePositions(nn.Module):
    """No relative positions; and the hooks of an attention that the other kinds override.

    Attributes:
        only_bias: ``forward`` is all that the kind changes, so that any operator that adds a bias
            to the scores will do.
    """

    only_bias = True

    def forward(self, bias: Tensor, length: int, past_length: int) -> Tensor:
        """The bias of T queries after P positions, from one that broadcasts to (B, H, T, K).

        A bias of one value is the same for all scores; it may be left out.
        """
        return bias

    def rotate(self, x: Tensor, past_length: int) -> Tensor:
        """Queries or keys (B, H, T, D) of T positions after P."""
        return x

    def rotate_last(self, queries: Tensor, length: int) -> Tensor:
        """Queries (B, H, T, D) of the last T of K positions."""
        return queries

    def add_to_scores(self, scores: Tensor, queries: Tensor) -> Tensor:
        """Scores (B, H, T, K) of scaled queries (B, H, T, D)."""
        return scores

    def add_to_context(self, context: Tensor, weights: Tensor) -> Tensor:
        """The weighted sum of values, (B, H, T, D), by weights (B, H, T, K)."""
        return context


class RelativeBias(RelativePositions):
    """A trained bias of each head for each bucket of distances between key and query.

    Distances beyond the last bucket share it, so there are few: their buckets are looked up, not
    computed, and the biases of all scores are gathered from one strip of (H, distances).
    Source: Raffel et al. 2020 (T5), section 2.1.
    """

    lookup: Tensor

    def __init__(
        self, num_heads: int, num_buckets: int, max_distance: int, bidirectional: bool
    ) -> None:
        """Make one; without ``bidirectional`` all keys after a query are in the bucket of 0."""
        super().__init__()
        self.table = nn.Parameter(torch.empty(num_buckets, num_heads))
        self.num_heads = num_heads
        self.nearest = -max_distance
        self.furthest = max_distance if bidirectional else 0
        lookup = bucket_lookup(num_buckets, max_distance, bidirectional)
        self.register_buffer("lookup", lookup, persistent=False)

    def forward(self, bias: Tensor, length: int, past_length: int) -> Tensor:
        """See ``RelativePositions``; the biases of all heads are added."""
        strip = F.embedding(self.lookup, self.table).t()
        distances = _distances(length, past_length, self.table.device)
        index = distances.clamp(self.nearest, self.furthest) - self.nearest
        shape = [1, self.num_heads, length, past_length + length]
        own = strip.index_select(1, index.flatten()).reshape(shape)
        return own if bias.dim() == 1 else bias + own

    def at(self, positions: Tensor, keys: Tensor) -> Tensor:
        """The bias (B, H, 1, K) of a query a row, at positions (B,), to keys at positions (K,)."""
        strip = F.embedding(self.lookup, self.table)  # (distances, H)
        distances = keys.unsqueeze(0) - positions.unsqueeze(1)  # (B, K)
        index = distances.clamp(self.nearest, self.furthest) - self.nearest
        return F.embedding(index, strip).permute(0, 2, 1).unsqueeze(2)


class RelativeVectors(RelativePositions):
    """A trained vector for each distance up to a largest one, added to keys and to values.

    Keys and values have one table, which all heads share.
    Source: Shaw et al. 2018, section 3; with one table as in OpenNMT-py.
    """

    only_bias = False

    def __init__(self, head_dim: int, max_distance: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(2 * max_distance + 1, head_dim))
        self.max_distance = max_distance

    def add_to_scores(self, scores: Tensor, queries: Tensor) -> Tensor:
        """See ``RelativePositions``."""
        vectors = self._vectors(queries.size(2), scores.size(3))
        return scores + _matmul_by_query(queries, vectors.transpose(1, 2))

    def add_to_context(self, context: Tensor, weights: Tensor) -> Tensor:
        """See ``RelativePositions``."""
        vectors = self._vectors(weights.size(2), weights.size(3))
        return context + _matmul_by_query(weights, vectors)

    def _vectors(self, queries: int, keys: int) -> Tensor:
        """(T, K, D), of the last T of K positions."""
        distances = _distances(queries, keys - queries, self.table.device)
        index = distances.clamp(-self.max_distance, self.max_distance) + self.max_distance
        return F.embedding(index, self.table)


class RotaryPositions(RelativePositions):
    """Each pair of neighbouring values of queries and keys is turned by its position's angle.

    The angle of pair i is position / 10000^(2 i / D), in float32 as there.
    Source: Su et al. 2021 (RoFormer), section 3.2; OpenNMT-py with ``rotary_interleave``.
    """

    only_bias = False
    frequencies: Tensor

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        exponents = torch.arange(0, head_dim, 2).float() / head_dim
        self.register_buffer("frequencies", 1.0 / 10000**exponents, persistent=False)

    def rotate_last(self, queries: Tensor, length: int) -> Tensor:
        """See ``RelativePositions``."""
        return self.rotate(queries, length - queries.size(2))

    def rotate(self, x: Tensor, past_length: int) -> Tensor:
        """See ``RelativePositions``."""
        positions = torch.arange(past_length, past_length + x.size(2), device=x.device)
        return self._turned(x, positions.unsqueeze(1).float() * self.frequencies)

    def rotate_at(self, x: Tensor, positions: Tensor) -> Tensor:
        """Queries or keys (B, H, 1, D) at positions (B,)."""
        return self._turned(x, positions.reshape([-1, 1, 1, 1]).float() * self.frequencies)

    def _turned(self, x: Tensor, angles: Tensor) -> Tensor:
        """(B, H, T, D) by angles that broadcast to (B, H, T, D / 2)."""
        cos, sin = angles.cos(), angles.sin()
        pairs = x.reshape([x.size(0), x.size(1), x.size(2), x.size(3) // 2, 2])
        first, second = pairs[:, :, :, :, 0], pairs[:, :, :, :, 1]
        turned = [first * cos - second * sin, first * sin + second * cos]
        return torch.stack(turned, dim=-1).reshape(x.shape)


def _distances(length: int, past_length: int, device: torch.device) -> Tensor:
    """(T, K): key minus query, of T queries after P positions."""
    keys = torch.arange(past_length + length, device=device)
    queries = torch.arange(past_length, past_length + length, device=device)
    return keys.unsqueeze(0) - queries.unsqueeze(1)


def _matmul_by_query(x: Tensor, matrices: Tensor) -> Tensor:
    """(B, H, T, M) times a matrix for each query, (T, M, N), to (B, H, T, N)."""
    rows = x.permute(2, 0, 1, 3).reshape([x.size(2), x.size(0) * x.size(1), x.size(3)])
    product = torch.matmul(rows, matrices)  # (T, B * H, N)
    shape = [x.size(2), x.size(0), x.size(1), matrices.size(2)]
    return product.reshape(shape).permute(1, 2, 0, 3)


def bucket_lookup(num_buckets: int, max_distance: int, bidirectional: bool) -> Tensor:
    """The bucket of every distance, key minus query, from -M to M or, in one direction, to 0.

    Half of a direction's buckets hold one distance each, the others ever more, up to M. With the
    logarithm in float32, as there: float64 would put some distances at a boundary in another
    bucket.

    Args:
        num_buckets: the number of buckets for both directions together.
        max_distance: M, from which on all share the last bucket.
        bidirectional: keys after the query have the other half of the buckets.

    Returns:
        int64, (2 M + 1,) or (M + 1,).
    """
    distances = torch.arange(-max_distance, max_distance + 1 if bidirectional else 1)
    first = torch.zeros_like(distances)
    if bidirectional:
        num_buckets //= 2
        first = (distances > 0) * num_buckets
    distances = distances.abs()
    exact = num_buckets // 2
    logarithms = torch.log(distances.clamp(min=1).float() / exact)
    steps = logarithms / math.log(max_distance / exact) * (num_buckets - exact)
    far = (exact + steps.long()).clamp(max=num_buckets - 1)
    return first + torch.where(distances < exact, distances, far)
