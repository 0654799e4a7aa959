"""Continuous batching: rows enter and leave the running batch at any step.

Axes: R rows of the model's batch, V vocabulary.
"""

import math
from collections.abc import Sequence
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfexport.runtime.engine import Engine
from tfexport.runtime.model.interface import Floats, Ids
from tfexport.runtime.scheduler.batch import Ended
from tfexport.runtime.scheduler.entries import GreedyEntry, SearchEntry, make_entry
from tfexport.runtime.scheduler.observer import Observer
from tfexport.runtime.scheduler.submission import Row
from tfexport.runtime.search.topk import token_log_probs

_Places = NDArray[np.intp]


class ContinuousBatch:
    """See ``RunningBatch``; a step gives every row its next token.

    An entry has as many rows of the model's batch as its search follows, anywhere in the batch.

    Attributes:
        rows: see ``RunningBatch``.
        capacity: see ``RunningBatch``.
        free: see ``RunningBatch``; a row keeps its full width, which it may need at any step.
    """

    def __init__(self, engine: Engine, capacity: int, observer: Observer) -> None:
        """Make the buffers.

        Raises:
            BundleError: onnxruntime cannot run the graph.
        """
        self._slots = engine.model.running_rows(capacity)
        self._observer, self.capacity = observer, capacity
        self._hold([])
        self._places: list[list[int]] = []  # of each entry, in the model's batch
        self._tokens: Ids = np.zeros(0, np.int64)  # (R,), the next ones

    def enter(self, rows: Sequence[Row]) -> None:
        """See ``RunningBatch``."""
        entries = [make_entry(row, self._observer) for row in rows]
        first = self._slots.rows
        self._slots.enter([row.request.source for row in rows])
        self._hold([*self._entries, *entries])
        self._places += [[first + place] for place in range(len(rows))]
        self._tokens = np.append(self._tokens, [entry.first for entry in entries])

    def step(self) -> Ended:
        """See ``RunningBatch``."""
        best, logits = self._slots.step(self._tokens, self._scored)
        tokens = best.tolist()
        scores = self._scores(best, logits) if self._scored else [math.nan] * len(tokens)
        ended: Ended = []
        kept: list[_Kept] = []
        for entry, places in zip(self._entries, self._places, strict=True):
            try:
                then = _take(entry, places, tokens, scores, logits)
                if then is None:
                    ended.append((entry.row, entry.hypotheses()))
                else:
                    kept.append(then)
            except Exception as error:  # it is this row's alone
                entry.row.submission.fail(error)
        self._go_on(kept)
        return ended

    def leave(self) -> None:
        """See ``RunningBatch``."""
        over = [row.submission.end_if_late() for row in self.rows]
        if any(over):
            entries = zip(self._entries, self._places, over, strict=True)
            self._go_on([
                _Kept(entry, places, self._tokens[places].tolist())
                for entry, places, leaves in entries
                if not leaves
            ])  # fmt: skip

    def clear(self) -> None:
        """See ``RunningBatch``."""
        self._slots.select(np.zeros(0, np.intp))
        self._hold([])
        self._places, self._tokens = [], np.zeros(0, np.int64)

    def _hold(self, entries: list[GreedyEntry | SearchEntry]) -> None:
        self._entries = entries
        self.rows: Sequence[Row] = [entry.row for entry in entries]
        self._scored = any(entry.scored for entry in entries)
        self.free = self.capacity - sum(row.options.width for row in self.rows)

    def _scores(self, best: Ids, logits: Floats) -> list[float]:
        """Log-probabilities (R,) of the best tokens; NaN where they are not wanted."""
        scores = np.full(len(best), np.nan)
        entries = zip(self._entries, self._places, strict=True)
        greedy = [
            (places[0], entry.row.options)
            for entry, places in entries
            if entry.scored and isinstance(entry, GreedyEntry)
        ]
        if greedy:
            rows = [place for place, _ in greedy]
            allowed = logits[rows]
            # The same for all of them: they are the model's own, which the graph keeps.
            allowed[:, list(greedy[0][1].suppress_tokens)] = -np.inf
            scores[rows] = token_log_probs(allowed, best[rows])
        found: list[float] = scores.tolist()
        return found

    def _go_on(self, kept: Sequence["_Kept"]) -> None:
        """Keep some entries, and move what changes its place."""
        followed = [entry.sources for entry in kept]
        sources = list(chain.from_iterable(followed))
        tokens = [token for entry in kept for token in entry.tokens]
        if followed == self._places:  # as in most steps
            self._tokens[sources] = tokens
            return
        places = _settle(np.array(sources, np.intp))
        rows, self._tokens = np.empty_like(places), np.empty(len(places), np.int64)
        rows[places], self._tokens[places] = sources, tokens
        self._slots.select(rows)
        settled = iter(places.tolist())
        self._hold([entry.entry for entry in kept])
        self._places = [list(islice(settled, len(entry.sources))) for entry in kept]


class _Kept(NamedTuple):
    """An entry that goes on.

    Attributes:
        entry: of the batch.
        sources: rows of the model's batch that its next rows continue.
        tokens: the next token of each.
    """

    entry: GreedyEntry | SearchEntry
    sources: list[int]
    tokens: list[int]


def _take(
    entry: GreedyEntry | SearchEntry,
    places: list[int],
    tokens: list[int],
    scores: list[float],
    logits: Floats,
) -> _Kept | None:
    """Give an entry what the step found at its places; None if it ends."""
    if isinstance(entry, GreedyEntry):
        (place,) = places
        token = entry.take(tokens[place], scores[place])
        return None if token is None else _Kept(entry, places, [token])
    taken = entry.take(logits[places])
    if taken is None:
        return None
    return _Kept(entry, [places[row] for row in taken.rows], taken.tokens.tolist())


def _settle(sources: _Places) -> _Places:
    """Where rows go that continue ``sources``: as many as can stay where they are."""
    count = len(sources)
    places = np.full(count, -1)
    taken = np.zeros(count, bool)
    # Of rows that continue the same one, the first may stay.
    _, firsts = np.unique(sources, return_index=True)
    stay = firsts[sources[firsts] < count]
    places[stay] = sources[stay]
    taken[places[stay]] = True
    places[places < 0] = np.flatnonzero(~taken)
    return places
