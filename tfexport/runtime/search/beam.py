"""Beam search, in one group or in several that keep apart.

Axes: B sentences, G groups, K hypotheses a group, C candidates, T tokens, S source, V vocabulary.
Sources: Graves 2012 (beam search), Kasai et al. 2022 (patience), Vijayakumar et al. 2016 (groups).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfexport.runtime.model.bundle_model import Floats, Ids, Model
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search.logit_filters import Filters
from tfexport.runtime.search.prefill import Beginning, advance, all_candidates, begin
from tfexport.runtime.search.ranking import (
    enough_hypotheses,
    finish,
    normalize,
    wanted_hypotheses,
)
from tfexport.runtime.search.request import Request
from tfexport.runtime.search.resolved_options import ResolvedOptions
from tfexport.runtime.search.topk import best, log_normalizer

Doubles = NDArray[np.float64]
Rows = NDArray[np.intp]
NOBODY = -1  # a token that is none


@dataclass
class _Live:
    """The hypotheses that are being followed; one whose sum is -inf is none.

    Attributes:
        sums: (B, G, K) log-probability so far.
        tokens: (B, G, K, T) so far.
        scores: (B, G, K, T) of the tokens.
        attention: (B, G, K, T, S) of the tokens, or None.
        rows: (B, G, K) the row of the model's batch that each one is.
    """

    sums: Doubles
    tokens: Ids
    scores: Doubles
    attention: Floats | None
    rows: Rows


@dataclass
class _Chosen:
    """What one group takes at one step; all (B, N) for N candidates, best first.

    Attributes:
        totals: log-probability with the candidate; -inf for none.
        parents: which hypothesis of the group it continues.
        tokens: which token continues it.
        scores: the token's log-probability.
        ends: whether it is an end token.
    """

    totals: Doubles
    parents: Rows
    tokens: Ids
    scores: Doubles
    ends: NDArray[np.bool_]

    def take(self, order: Rows) -> "_Chosen":
        """Candidates in another order, or fewer."""
        return _Chosen(
            np.take_along_axis(self.totals, order, -1),
            np.take_along_axis(self.parents, order, -1),
            np.take_along_axis(self.tokens, order, -1),
            np.take_along_axis(self.scores, order, -1),
            np.take_along_axis(self.ends, order, -1),
        )


class _Candidates(NamedTuple):
    """What one group may take at one step: the best, and the best of those that do not end."""

    ranked: _Chosen
    followed: _Chosen


class _Newest(NamedTuple):
    """A token that completes a hypothesis; its attention is (S,)."""

    token: int
    score: float
    ends: bool
    attention: Floats | None


@dataclass
class _Pool:
    """Finished hypotheses of one group of one sentence."""

    found: list[Hypothesis] = field(default_factory=list)
    closed: bool = False

    def best(self) -> list[Hypothesis]:
        """Best first; of equal ones the one that was finished first."""
        return sorted(self.found, key=lambda made: -made.score)


class BeamSearch:
    """Beam search over one batch."""

    def __init__(self, model: Model, requests: Sequence[Request], options: ResolvedOptions) -> None:
        self._model, self._requests, self._options = model, requests, options
        self._groups = options.beam_groups
        self._width = options.beam_size // options.beam_groups
        self._filters = Filters(options, requests)
        self._candidates = all_candidates(requests)
        self._pools = [[_Pool() for _ in range(self._groups)] for _ in requests]
        self._sentences = np.arange(len(requests))
        self._stuck = np.zeros(len(requests), bool)

    def run(self) -> list[list[Hypothesis]]:
        """For each request its hypotheses, best first."""
        begun = begin(self._model, self._requests, self._options)
        live = self._first(begun)
        if begun.logits is None:
            for sentence in range(len(self._requests)):
                self._add(live, sentence, 0, 0)
            return self._results()
        state, logits = begun.state, begun.logits
        attention = None if begun.attention is None else begun.attention[:, -1]
        while True:
            followed = []
            for group, candidates in enumerate(self._choose(live, logits, state.sources)):
                self._finish(live, group, candidates, attention)
                followed.append(candidates.followed)
            live = self._continue(live, followed, attention)
            self._close(live)
            going = np.array(
                [not all(pool.closed for pool in self._pools[s]) for s in self._sentences]
            )
            if not going.any():
                return self._results()
            rows = live.rows[going].ravel()
            state.select(rows)
            self._sentences = self._sentences[going]
            live = _Live(
                live.sums[going],
                live.tokens[going],
                live.scores[going],
                None if live.attention is None else live.attention[going],
                np.arange(len(rows)).reshape(-1, self._groups, self._width),
            )
            newest = live.tokens[..., -1].reshape(-1, 1)
            new_logits, weights = advance(
                self._model, newest, state, self._options, self._candidates
            )
            logits, attention = new_logits[:, -1], None if weights is None else weights[:, -1]

    def _first(self, begun: Beginning) -> _Live:
        # The prefix alone, in every group; one row of the model serves all groups of a sentence.
        batch, length = begun.prefix.shape
        shape = (batch, self._groups, 1)
        attention = None
        if begun.attention is not None:
            before = begun.attention[:, None, None, :length]
            attention = np.broadcast_to(before, (*shape, *before.shape[3:]))
        return _Live(
            np.broadcast_to(begun.prefix_scores.sum(-1)[:, None, None], shape),
            np.broadcast_to(begun.prefix[:, None, None], (*shape, length)),
            np.broadcast_to(begun.prefix_scores[:, None, None], (*shape, length)),
            attention,
            np.broadcast_to(np.arange(batch)[:, None, None], shape),
        )

    def _choose(self, live: _Live, logits: Floats, sources: Rows) -> list[_Candidates]:
        """Rank the candidates of every group.

        Args:
            live: what is followed.
            logits: (R, V), changed in place.
            sources: (R,), which request each row of them is of.
        """
        length = live.tokens.shape[-1]
        rows = live.rows.ravel()
        tokens = np.zeros((len(logits), length), np.int64)
        tokens[rows] = live.tokens.reshape(len(rows), length)
        self._filters.apply(logits, tokens, sources)
        # So many that `width` are left when all that can end have ended, and when earlier groups
        # have taken others.
        wanted = self._width * (1 + len(self._options.end_tokens))
        ends = len(self._options.end_tokens)
        count = min(logits.shape[-1], wanted + (self._groups - 1) * (self._width + ends))
        ids, values = best(logits, count)
        self._stuck = ~np.isfinite(values[:, 0])
        normalizer = log_normalizer(logits)
        scores = np.where(np.isfinite(values), values - np.where(
            np.isfinite(normalizer), normalizer, 0)[:, None], -np.inf)  # fmt: skip
        chosen: list[_Candidates] = []
        taken = np.full((len(self._sentences), 0), NOBODY, np.int64)
        for group in range(self._groups):
            rows = live.rows[:, group]
            penalties = self._options.diversity_penalty * (
                (ids[rows][..., None] == taken[:, None, None]).sum(-1)
                if taken.size
                else np.zeros(ids[rows].shape)
            )
            ranked = self._rank(live.sums[:, group], ids[rows], scores[rows], penalties, wanted)
            followed = self._followed(ranked)
            chosen.append(_Candidates(ranked, followed))
            took = np.where(np.isfinite(followed.totals), followed.tokens, NOBODY)
            top = slice(self._width)
            ended = np.where(ranked.ends[:, top], ranked.tokens[:, top], NOBODY)
            taken = np.concatenate([taken, took, ended], axis=-1)
        return chosen

    def _rank(
        self, sums: Doubles, ids: Ids, scores: Doubles, penalties: Doubles, wanted: int
    ) -> _Chosen:
        """Sums (B, K) and candidates (B, K, C) to the best of all K * C.

        On a tie the better hypothesis goes first, then the lower id.
        """
        batch, _, count = ids.shape
        totals = sums[..., None] + scores
        flat = (totals - penalties).reshape(batch, -1)
        parents = np.broadcast_to(np.arange(flat.shape[-1]) // count, flat.shape)
        order = np.lexsort((ids.reshape(batch, -1), parents, -flat), axis=-1)[:, :wanted]
        tokens = np.take_along_axis(ids.reshape(batch, -1), order, -1)
        found = np.take_along_axis(totals.reshape(batch, -1), order, -1)
        own = np.take_along_axis(scores.reshape(batch, -1), order, -1)
        ends = self._options.ends(tokens) & np.isfinite(found)
        made = _Chosen(found, order // count, tokens, own, ends)
        missing = self._width - order.shape[-1]
        if missing <= 0:
            return made
        blank = np.full((batch, missing), -np.inf)
        zeros = np.zeros((batch, missing), np.int64)
        none = _Chosen(blank, zeros, zeros, blank, np.zeros((batch, missing), bool))
        return _Chosen(*(
            np.concatenate([getattr(part, name) for part in (made, none)], axis=-1)
            for name in ("totals", "parents", "tokens", "scores", "ends")
        ))  # fmt: skip

    def _followed(self, candidates: _Chosen) -> _Chosen:
        """The best candidates that do not end."""
        followed = np.isfinite(candidates.totals) & ~candidates.ends
        order = np.argsort(~followed, axis=-1, kind="stable")[:, : self._width]
        kept = candidates.take(order)
        kept.totals[~np.take_along_axis(followed, order, -1)] = -np.inf
        return kept

    def _finish(
        self, live: _Live, group: int, candidates: _Candidates, attention: Floats | None
    ) -> None:
        """Put aside what is complete: ended, at its full length, or without a way on."""
        last = live.tokens.shape[-1] + 1 >= self._options.max_length
        ranked = candidates.ranked
        complete = np.isfinite(ranked.totals) & (ranked.ends | last)
        for place, rank in np.argwhere(complete[:, : self._width]):
            beam = int(ranked.parents[place, rank])
            attended = None if attention is None else attention[live.rows[place, group, beam]]
            newest = _Newest(
                int(ranked.tokens[place, rank]),
                float(ranked.scores[place, rank]),
                bool(ranked.ends[place, rank]),
                attended,
            )
            self._add(live, place, group, beam, newest)
        stuck = np.isfinite(live.sums[:, group]) & self._stuck[live.rows[:, group]]
        for place, beam in np.argwhere(stuck):
            self._add(live, place, group, beam)

    def _add(
        self,
        live: _Live,
        place: int,
        group: int,
        beam: int,
        newest: _Newest | None = None,
    ) -> None:
        """Put one hypothesis aside, with or without a newest token."""
        sentence = int(self._sentences[place])
        pool, length = self._pools[sentence][group], len(self._requests[sentence].ids)
        if pool.closed:
            return
        tokens = live.tokens[place, group, beam].tolist()
        scores = live.scores[place, group, beam]
        attended = None if live.attention is None else live.attention[place, group, beam]
        ended = False
        if newest is not None:
            tokens.append(newest.token)
            scores = np.append(scores, newest.score)
            ended = newest.ends
            if attended is not None and newest.attention is not None:
                attended = np.concatenate([attended, newest.attention[None]])
        if attended is not None:
            attended = attended[:, :length]
        pool.found.append(finish(tokens, scores, attended, ended, self._options))

    def _continue(self, live: _Live, followed: list[_Chosen], attention: Floats | None) -> _Live:
        """The hypotheses that are followed from here."""
        parents = np.stack([part.parents for part in followed], axis=1)
        rows = np.take_along_axis(live.rows, parents, -1)
        totals, tokens, scores = (
            np.stack([getattr(part, name) for part in followed], axis=1)
            for name in ("totals", "tokens", "scores")
        )
        before = parents[..., None]
        attended = None
        if attention is not None:
            assert live.attention is not None
            old = np.take_along_axis(live.attention, before[..., None], 2)
            attended = np.concatenate([old, attention[rows][..., None, :]], axis=3)
        return _Live(
            totals,
            np.concatenate([np.take_along_axis(live.tokens, before, 2), tokens[..., None]], -1),
            np.concatenate([np.take_along_axis(live.scores, before, 2), scores[..., None]], -1),
            attended,
            rows,
        )

    def _close(self, live: _Live) -> None:
        """Mark the groups that are done, and follow none of their hypotheses."""
        length = live.tokens.shape[-1]
        for place, sentence in enumerate(self._sentences):
            for group, pool in enumerate(self._pools[sentence]):
                sums = live.sums[place, group]
                pool.closed = pool.closed or self._is_done(pool, float(sums.max()), length)
                if pool.closed:
                    sums[:] = -np.inf

    def _is_done(self, pool: _Pool, highest: float, length: int) -> bool:
        if length >= self._options.max_length or math.isinf(highest):
            return True
        if self._options.early_stopping:
            return len(pool.found) >= enough_hypotheses(self._options)
        wanted = wanted_hypotheses(self._options)
        if len(pool.found) < wanted:
            return False
        # What follows only lowers the sum; length counts for most at its longest, or, if it counts
        # against a hypothesis, at its shortest.
        penalty = self._options.length_penalty
        at_best = self._options.max_length if penalty > 0 else length + 1
        return pool.best()[wanted - 1].score >= normalize(highest, at_best, penalty)

    def _results(self) -> list[list[Hypothesis]]:
        found = []
        for pools in self._pools:
            together = [made for pool in pools for made in pool.best()]
            together.sort(key=lambda made: -made.score)
            found.append(together[: self._options.num_hypotheses])
        return found
