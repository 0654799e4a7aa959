"""Beam search, plain or diverse (in several groups).

Axes: B sentences, G groups, K hypotheses a group, C candidates, R rows of the model's batch,
T tokens, S source, V vocabulary.
Sources: Graves 2012 (beam search), Kasai et al. 2022 (patience), Vijayakumar et al. 2016 (groups).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfexport.runtime.model.interface import Floats, Ids, Model
from tfexport.runtime.options import Step
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search.batch import BatchSteps, NextStep, Prefixes, prefill, run
from tfexport.runtime.search.logits import LogitFilters, along, log_normalizer, topk
from tfexport.runtime.search.ranking import (
    best_first,
    length_at_best,
    make_hypothesis,
    normalize,
    stopping_count,
)
from tfexport.runtime.search.request import Request, ResolvedOptions

# Axes: B sentences, G groups, K hypotheses a group, N candidates, T tokens, S source.


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
            along(self.totals, order),
            along(self.parents, order),
            along(self.tokens, order),
            along(self.scores, order),
            along(self.ends, order),
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
        kept.totals[~along(follows, order)] = -np.inf
        return kept


class GroupChoice(NamedTuple):
    """The ranked candidates of one group at one step, and its next beams."""

    ranked: Candidates
    followed: Candidates


@dataclass
class Beams:
    """The active hypotheses of a beam search; a sum of -inf marks an unused one.

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

        The sums exclude the first ``uncounted`` tokens.
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
        closed: whether the search of this group is done.
    """

    found: list[Hypothesis] = field(default_factory=list)
    closed: bool = False

    def best(self) -> list[Hypothesis]:
        """Best first; on a tie the one that finished first."""
        return best_first(self.found)


# Sources: Kasai et al. 2022 (patience); transformers, ``GenerationMixin._beam_search``.


def is_done(
    options: ResolvedOptions,
    finished: FinishedGroup,
    highest: float,
    length: int,
    uncounted: int = 0,
) -> bool:
    """Whether a group of beams needs no further step.

    Args:
        options: decoding options.
        finished: its hypotheses so far.
        highest: the greatest sum of its beams; -inf if there are none.
        length: tokens of each of them.
        uncounted: tokens at their start that do not count for the score.
    """
    if length >= options.max_length or math.isinf(highest):
        return True
    wanted = stopping_count(options)
    if len(finished.found) < wanted:
        return False
    if options.early_stopping:
        return True
    lengths = {"present": length, "next": length + 1, "longest": options.max_length}
    at_best = lengths[length_at_best(options)] - uncounted
    reachable = normalize(highest, at_best, options.length_penalty)
    return finished.best()[wanted - 1].score >= reachable


NO_TOKEN = -1


class _LastToken(NamedTuple):
    """The token that completes a hypothesis; its attention is (S,)."""

    token: int
    score: float
    ends: bool
    attention: Floats | None


class BeamChoice:
    """Beam search as a ``Choice``; finished sentences are removed."""

    def __init__(
        self,
        requests: Sequence[Request],
        options: ResolvedOptions,
        prefixes: Prefixes,
        normalizer: Callable[[Floats], Doubles] = log_normalizer,
    ) -> None:
        """Start after the prefixes.

        Args:
            requests: the requests, with prefixes of equal length.
            options: how to decode them.
            prefixes: the prefixes of the requests.
            normalizer: the function that makes log-probabilities of logits.
        """
        self._requests, self._options, self._normalizer = requests, options, normalizer
        self._groups = options.beam_groups
        self._width = options.beam_size // options.beam_groups
        self._filters = LogitFilters(options, requests)
        self._uncounted = options.uncounted(requests[0].prefix)  # prefixes are equally long
        self._finished = [[FinishedGroup() for _ in range(self._groups)] for _ in requests]
        self._sentences = np.arange(len(requests))  # (B,), requests that are still decoded
        self._sources = np.arange(len(requests))  # (R,), index of the request of each row
        self._stuck = np.zeros(len(requests), bool)  # (R,), rows without an allowed token
        self.first_rows = np.arange(len(requests))
        self._beams = Beams.start(prefixes, self._groups, self._uncounted)

    def take(
        self, logits: Floats, attention: Floats | None = None
    ) -> tuple[list[Step], NextStep | None]:
        """See ``Choice``; no tokens are returned for callbacks, because beams may be dropped."""
        beams = self._beams
        choices = self._choose(beams, logits, self._sources)
        for group, choice in enumerate(choices):
            self._collect(beams, group, choice.ranked, attention)
        beams = beams.extend([choice.followed for choice in choices], attention)
        self._close(beams)
        keep_going = np.array(
            [not all(group.closed for group in self._finished[s]) for s in self._sentences]
        )
        if not keep_going.any():
            return [], None
        rows = beams.rows[keep_going].ravel()
        self._sources = self._sources[rows]
        self._sentences = self._sentences[keep_going]
        self._beams = beams.select(keep_going)
        return [], NextStep(rows, self._beams.tokens[..., -1].ravel())

    def end_with_prefixes(self) -> None:
        """Make a hypothesis of every prefix if there is no room for more tokens."""
        for sentence in range(len(self._requests)):
            self._complete(self._beams, sentence, 0, 0)

    def _choose(self, beams: Beams, logits: Floats, sources: Rows) -> list[GroupChoice]:
        """Rank the candidates of every group.

        Args:
            beams: the active hypotheses.
            logits: (R, V), changed in place.
            sources: (R,), index of the request of each row.
        """
        self._filter(beams, logits, sources)
        # Enough candidates that `width` remain after those that end, and those that earlier groups
        # have chosen.
        options = self._options
        ends = len(options.end_tokens)
        wanted = self._width * (1 + ends)
        count = min(logits.shape[-1], wanted + (self._groups - 1) * (self._width + ends))
        ids, values = topk(logits, count)
        self._stuck = ~np.isfinite(values[:, 0])
        scores = _log_probs(values, self._normalize(logits))
        choices: list[GroupChoice] = []
        taken = np.full((len(self._sentences), 0), NO_TOKEN, np.int64)
        for group in range(self._groups):
            rows = beams.rows[:, group]
            penalties = options.diversity_penalty * _times_taken(ids[rows], taken)
            ranked = self._rank(beams.sums[:, group], ids[rows], scores[rows], penalties, wanted)
            choice = GroupChoice(ranked, ranked.unfinished(self._width))
            choices.append(choice)
            taken = np.concatenate([taken, *_taken_by(choice, self._width)], axis=-1)
        return choices

    def _filter(self, beams: Beams, logits: Floats, sources: Rows) -> None:
        """Apply penalties and bans to logits, in place; see ``_choose``."""
        length = beams.tokens.shape[-1]
        rows = beams.rows.ravel()
        tokens = np.zeros((len(logits), length), np.int64)
        tokens[rows] = beams.tokens.reshape(len(rows), length)
        self._filters.apply_in_beam(logits, tokens, sources, self._normalizer)

    def _normalize(self, logits: Floats) -> Doubles:
        """The logarithms of the sums that turn logits (R, V) into probabilities, or zeros: (R,)."""
        left_as_is = self._options.by_transformers and not self._options.renormalize_logits
        return np.zeros(len(logits)) if left_as_is else self._normalizer(logits)

    def _rank(
        self, sums: Doubles, ids: Ids, scores: Doubles, penalties: Doubles, wanted: int
    ) -> Candidates:
        """Sums (B, K) and candidates (B, K, C) to the best of all K * C.

        On a tie the better hypothesis is first, then the lower id.
        """
        batch, _, count = ids.shape
        totals = sums[..., None] + scores
        flat = (totals - penalties).reshape(batch, -1)
        parents = np.broadcast_to(np.arange(flat.shape[-1]) // count, flat.shape)
        order = np.lexsort((ids.reshape(batch, -1), parents, -flat), axis=-1)[:, :wanted]
        tokens = along(ids.reshape(batch, -1), order)
        found = along(totals.reshape(batch, -1), order)
        own = along(scores.reshape(batch, -1), order)
        ends = self._options.ends(tokens) & np.isfinite(found)
        return Candidates(found, order // count, tokens, own, ends).pad(self._width)

    def _collect(
        self, beams: Beams, group: int, ranked: Candidates, attention: Floats | None
    ) -> None:
        """Collect hypotheses that ended, have ``max_length`` tokens, or have no allowed token."""
        last = beams.tokens.shape[-1] + 1 >= self._options.max_length
        complete = np.isfinite(ranked.totals) & (ranked.ends | last)
        for place, rank in np.argwhere(complete[:, : self._width]):
            beam = int(ranked.parents[place, rank])
            attended = None if attention is None else attention[beams.rows[place, group, beam]]
            token = _LastToken(
                int(ranked.tokens[place, rank]),
                float(ranked.scores[place, rank]),
                bool(ranked.ends[place, rank]),
                attended,
            )
            self._complete(beams, place, group, beam, token)
        for place, beam in np.argwhere(self._without_token(beams, group)):
            self._complete(beams, place, group, beam)

    def _without_token(self, beams: Beams, group: int) -> NDArray[np.bool_]:
        """Beams without an allowed token, which finish as they are: (B, K)."""
        alive = np.isfinite(beams.sums[:, group])
        stuck: NDArray[np.bool_] = alive & self._stuck[beams.rows[:, group]]
        if self._options.by_transformers:  # there they rank below all others
            others = (alive & ~stuck).any(-1)
            found = np.array([bool(self._finished[s][group].found) for s in self._sentences])
            stuck[others | found] = False
        return stuck

    def _complete(
        self, beams: Beams, place: int, group: int, beam: int, last: _LastToken | None = None
    ) -> None:
        """Make a hypothesis of one beam, with its last token if there is one."""
        sentence = int(self._sentences[place])
        finished, length = self._finished[sentence][group], self._requests[sentence].length
        if finished.closed:
            return
        tokens = beams.tokens[place, group, beam].tolist()
        scores = beams.scores[place, group, beam]
        attended = None if beams.attention is None else beams.attention[place, group, beam]
        ended = False
        if last is not None:
            tokens.append(last.token)
            scores = np.append(scores, last.score)
            ended = last.ends
            if attended is not None and last.attention is not None:
                attended = np.concatenate([attended, last.attention[None]])
        if attended is not None:
            attended = attended[:, :length]
        finished.found.append(
            make_hypothesis(tokens, scores, attended, ended, self._options, self._uncounted)
        )

    def _close(self, beams: Beams) -> None:
        """Close the groups that are done, and drop their beams."""
        length = beams.tokens.shape[-1]
        for place, sentence in enumerate(self._sentences):
            for group, finished in enumerate(self._finished[sentence]):
                sums = beams.sums[place, group]
                highest = float(sums.max())
                finished.closed = finished.closed or is_done(
                    self._options, finished, highest, length, self._uncounted
                )
                if finished.closed:
                    sums[:] = -np.inf

    def hypotheses(self) -> list[list[Hypothesis]]:
        """For each request its hypotheses, best first."""
        found = []
        for groups in self._finished:
            together = best_first(made for group in groups for made in group.best())
            found.append(together[: self._options.num_hypotheses])
        return found


class BeamSearch:
    """Beam search over one batch."""

    def __init__(self, model: Model, requests: Sequence[Request], options: ResolvedOptions) -> None:
        self._model, self._requests, self._options = model, requests, options

    def run(self) -> list[list[Hypothesis]]:
        """Take all steps; for each request its hypotheses, best first."""
        prefilled = prefill(self._model, self._requests, self._options)
        normalizer = self._model.log_normalizer or log_normalizer
        choice = BeamChoice(self._requests, self._options, prefilled, normalizer)
        if prefilled.logits is None:
            choice.end_with_prefixes()
            return choice.hypotheses()
        steps = BatchSteps(self._model, self._requests, self._options, prefilled)
        return run(choice, steps)


def _log_probs(values: Floats, normalizer: Doubles) -> Doubles:
    """Logits (R, C) to log-probabilities; a banned token stays at -inf."""
    finite = np.where(np.isfinite(normalizer), normalizer, 0)[:, None]
    log_probs: Doubles = np.where(np.isfinite(values), values - finite, -np.inf)
    return log_probs


def _times_taken(ids: Ids, taken: Ids) -> Doubles:
    """Count how often earlier groups (B, N) chose each candidate (B, K, C).

    Source: Vijayakumar et al. 2016, section 4, Hamming diversity.
    """
    if not taken.size:
        return np.zeros(ids.shape)
    times: Doubles = (ids[..., None] == taken[:, None, None]).sum(-1)
    return times


def _taken_by(choice: GroupChoice, width: int) -> tuple[Ids, Ids]:
    """The tokens of a group's next beams, and the end tokens that it chose; (B, K) each."""
    ranked, followed = choice
    top = slice(width)
    return (
        np.where(np.isfinite(followed.totals), followed.tokens, NO_TOKEN),
        np.where(ranked.ends[:, top], ranked.tokens[:, top], NO_TOKEN),
    )
