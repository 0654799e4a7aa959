"""Relative positions as a bias of attention scores.

Axes: B batch, H heads, T queries, P cached positions.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class NoRelativeBias(nn.Module):
    """Adds nothing."""

    def forward(self, bias: Tensor, length: int, past_length: int) -> Tensor:
        """See ``RelativeBias``."""
        return bias


class RelativeBias(nn.Module):
    """A trained bias of each head for each bucket of distances between key and query.

    Only as many distances differ as the last bucket is far away: their buckets are looked up, not
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
        """Add the biases of T queries after P positions to one that broadcasts to (B, H, T, P + T).

        A bias of one value is the same for all scores and is left out.
        """
        strip = F.embedding(self.lookup, self.table).t()
        keys = torch.arange(past_length + length, device=self.table.device)
        queries = torch.arange(past_length, past_length + length, device=self.table.device)
        distances = keys.unsqueeze(0) - queries.unsqueeze(1)
        index = distances.clamp(self.nearest, self.furthest) - self.nearest
        shape = [1, self.num_heads, length, past_length + length]
        own = strip.index_select(1, index.flatten()).reshape(shape)
        return own if bias.dim() == 1 else bias + own


def bucket_lookup(num_buckets: int, max_distance: int, bidirectional: bool) -> Tensor:
    """The bucket of every distance, key minus query, from -M to M or, in one direction, to 0.

    Half of a direction's buckets hold one distance each, the others ever more, up to M. With the
    logarithm in float32, as there: some distances at a boundary are in another bucket otherwise.

    Args:
        num_buckets: of both directions together.
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
