"""The state of a beam search: beams that are followed, candidates of a step, finished hypotheses.

Axes: B sentences, G groups, K hypotheses a group, N candidates, T tokens, S source.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfexport.runtime.model.interface import Floats, Ids
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search.prefill import Prefixes
from tfexport.runtime.search.ranking import best_first

Doubles = NDArray[np.float64]
Rows = NDArray[np.intp]


@dataclass
class Candidates:
    """Tokens that may continue the beams of one group; all (B, N), best first.

    Attributes:
        totals: log-probability of the beam with the token; -inf where there is no candidate.
        parents: index of the beam in its group.
        tokens: ids.
        scores: natural-log probability of the token alone.
        ends: whether it is an end token.
    """

    totals: Doubles
    parents: Rows
    tokens: Ids
    scores: Doubles
    ends: NDArray[np.bool_]

    def take(self, order: Rows) -> "Candidates":
        """Gather candidates by index, (B, N) or fewer."""
        return Candidates(
            np.take_along_axis(self.totals, order, -1),
            np.take_along_axis(self.parents, order, -1),
            np.take_along_axis(self.tokens, order, -1),
            np.take_along_axis(self.scores, order, -1),
            np.take_along_axis(self.ends, order, -1),
        )

    def pad(self, width: int) -> "Candidates":
        """Pad to at least ``width`` candidates, with totals of -inf."""
        batch, count = self.totals.shape
        missing = width - count
        if missing <= 0:
            return self
        shape = (batch, missing)
        return Candidates(
            np.concatenate([self.totals, np.full(shape, -np.inf)], axis=-1),
            np.concatenate([self.parents, np.zeros(shape, np.int64)], axis=-1),
            np.concatenate([self.tokens, np.zeros(shape, np.int64)], axis=-1),
            np.concatenate([self.scores, np.full(shape, -np.inf)], axis=-1),
            np.concatenate([self.ends, np.zeros(shape, bool)], axis=-1),
        )

    def unfinished(self, width: int) -> "Candidates":
        """The best ``width`` candidates that are not end tokens."""
        follows = np.isfinite(self.totals) & ~self.ends
        order = np.argsort(~follows, axis=-1, kind="stable")[:, :width]
        kept = self.take(order)
        kept.totals[~np.take_along_axis(follows, order, -1)] = -np.inf
        return kept


class GroupChoice(NamedTuple):
    """The ranked candidates of one group at one step, and those that become its next beams."""

    ranked: Candidates
    followed: Candidates


@dataclass
class Beams:
    """The active hypotheses of a beam search; a sum of -inf marks an empty slot.

    Attributes:
        sums: (B, G, K) log-probability so far.
        tokens: (B, G, K, T) so far.
        scores: (B, G, K, T) of the tokens.
        attention: (B, G, K, T, S) of the tokens, or None.
        rows: (B, G, K), index of each hypothesis in the decoder's batch.
    """

    sums: Doubles
    tokens: Ids
    scores: Doubles
    attention: Floats | None
    rows: Rows

    @classmethod
    def start(cls, prefixes: Prefixes, groups: int, uncounted: int = 0) -> "Beams":
        """The prefix in every group; all groups of a sentence share one row of the decoder.

        The sums leave out the first ``uncounted`` tokens.
        """
        batch, length = prefixes.prefix.shape
        shape = (batch, groups, 1)
        attention = None
        if prefixes.attention is not None:
            before = prefixes.attention[:, None, None, :length]
            attention = np.broadcast_to(before, (*shape, *before.shape[3:]))
        return cls(
            np.broadcast_to(prefixes.prefix_scores[:, uncounted:].sum(-1)[:, None, None], shape),
            np.broadcast_to(prefixes.prefix[:, None, None], (*shape, length)),
            np.broadcast_to(prefixes.prefix_scores[:, None, None], (*shape, length)),
            attention,
            np.broadcast_to(np.arange(batch)[:, None, None], shape),
        )

    def extend(self, followed: Sequence[Candidates], attention: Floats | None) -> "Beams":
        """Append the chosen tokens to the beams of each group.

        Args:
            followed: for each group its K next beams.
            attention: (R, S) of the new tokens by the model's rows, or None.
        """
        parents = np.stack([part.parents for part in followed], axis=1)
        rows = np.take_along_axis(self.rows, parents, -1)
        totals, tokens, scores = (
            np.stack([getattr(part, name) for part in followed], axis=1)
            for name in ("totals", "tokens", "scores")
        )
        before = parents[..., None]
        attended = None
        if attention is not None:
            assert self.attention is not None
            old = np.take_along_axis(self.attention, before[..., None], 2)
            attended = np.concatenate([old, attention[rows][..., None, :]], axis=3)
        return Beams(
            totals,
            np.concatenate([np.take_along_axis(self.tokens, before, 2), tokens[..., None]], -1),
            np.concatenate([np.take_along_axis(self.scores, before, 2), scores[..., None]], -1),
            attended,
            rows,
        )

    def select(self, kept: NDArray[np.bool_]) -> "Beams":
        """The beams of the kept sentences (B,), each with its own row of the decoder's batch."""
        sums = self.sums[kept]
        return Beams(
            sums,
            self.tokens[kept],
            self.scores[kept],
            None if self.attention is None else self.attention[kept],
            np.arange(sums.size).reshape(sums.shape),
        )


@dataclass
class FinishedGroup:
    """The finished hypotheses of one group of one sentence.

    Attributes:
        found: in the order in which they were finished.
        closed: the search of this group is done.
    """

    found: list[Hypothesis] = field(default_factory=list)
    closed: bool = False

    def best(self) -> list[Hypothesis]:
        """Best first; of equal ones the one that was finished first."""
        return best_first(self.found)
