"""Continuous batching: rows enter and leave the running batch at any step.

Axes: R rows of the model's batch, V vocabulary.
"""

import operator
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tfexport.runtime.engine import Engine
from tfexport.runtime.model.bundle_model import Floats, Ids
from tfexport.runtime.model.slots import Slots
from tfexport.runtime.scheduler.batch import Ended
from tfexport.runtime.scheduler.entries import GreedyEntry, SearchEntry, make_entry
from tfexport.runtime.scheduler.observer import Observer
from tfexport.runtime.scheduler.submission import Row
from tfexport.runtime.search.topk import token_log_probs

_Places = NDArray[np.intp]


class ContinuousBatch:
    """See ``RunningBatch``; a step gives every row its next token.

    An entry has as many rows of the model's batch as its search follows, anywhere in the batch.
    """

    def __init__(self, engine: Engine, capacity: int, observer: Observer) -> None:
        """Make the buffers.

        Raises:
            BundleError: onnxruntime cannot run the graph.
        """
        self._slots = Slots(engine.model, capacity)
        self._observer, self._capacity = observer, capacity
        self._entries: list[GreedyEntry | SearchEntry] = []
        self._places: list[_Places] = []  # of each entry, in the model's batch
        self._tokens: Ids = np.zeros(0, np.int64)  # (R,), the next ones

    @property
    def rows(self) -> Sequence[Row]:
        """See ``RunningBatch``."""
        return [entry.row for entry in self._entries]

    @property
    def capacity(self) -> int:
        """See ``RunningBatch``."""
        return self._capacity

    @property
    def free(self) -> int:
        """See ``RunningBatch``; a row keeps its whole width, which it may need at any step."""
        return self._capacity - sum(entry.row.width for entry in self._entries)

    def enter(self, rows: Sequence[Row]) -> None:
        """See ``RunningBatch``."""
        if not rows:
            return
        first = self._slots.rows
        self._slots.enter([row.request.source for row in rows])
        entries = [make_entry(row, self._observer) for row in rows]
        self._entries += entries
        self._places += [np.array([first + place]) for place in range(len(rows))]
        self._tokens = np.append(self._tokens, [entry.first for entry in entries])

    def step(self) -> Ended:
        """See ``RunningBatch``."""
        scored = any(entry.scored for entry in self._entries)
        best, logits = self._slots.step(self._tokens, scored)
        scores = self._scores(best, logits)
        ended: Ended = []
        kept: list[int] = []
        sources: list[_Places] = []
        tokens: list[Ids | list[int]] = []
        for index, entry in enumerate(self._entries):
            places = self._places[index]
            then: tuple[_Places, Ids | list[int]] | None
            if isinstance(entry, GreedyEntry):
                place = int(places[0])
                token = entry.take(int(best[place]), float(scores[place]))
                then = None if token is None else (places, [token])
            else:
                taken = entry.take(logits[places])
                then = None if taken is None else (places[taken.rows], taken.tokens)
            if then is None:
                ended.append((entry.row, entry.hypotheses()))
                continue
            kept.append(index)
            sources.append(then[0])
            tokens.append(then[1])
        self._go_on(kept, sources, tokens)
        return ended

    def leave(self) -> None:
        """See ``RunningBatch``."""
        kept = [
            index for index, entry in enumerate(self._entries) if not entry.row.submission.is_over()
        ]
        if len(kept) < len(self._entries):
            places = [self._places[index] for index in kept]
            self._go_on(kept, places, [self._tokens[rows] for rows in places])

    def clear(self) -> None:
        """See ``RunningBatch``."""
        self._go_on([], [], [])

    def _scores(self, best: Ids, logits: Floats) -> NDArray[np.float64]:
        """Log-probabilities (R,) of the best tokens; NaN where they are not wanted."""
        scores = np.full(len(best), np.nan)
        greedy = [
            (int(places[0]), entry.row.options)
            for entry, places in zip(self._entries, self._places, strict=True)
            if entry.scored and isinstance(entry, GreedyEntry)
        ]
        if greedy:
            rows = np.array([place for place, _ in greedy])
            allowed = logits[rows]
            # The same for all of them: they are the model's own, which the graph keeps.
            allowed[:, list(greedy[0][1].suppress_tokens)] = -np.inf
            scores[rows] = token_log_probs(allowed, best[rows])
        return scores

    def _go_on(
        self, kept: list[int], sources: list[_Places], tokens: list[Ids | list[int]]
    ) -> None:
        """Keep some entries, whose next rows continue these rows of the model's batch."""
        given = np.concatenate(tokens) if tokens else np.zeros(0, np.int64)
        every = np.concatenate(sources) if sources else np.zeros(0, np.intp)
        if len(every) == self._slots.rows and all(map(operator.is_, sources, self._places)):
            self._tokens[every] = given  # nobody left or moved, as in most steps
            return
        places = _settle(every)
        rows, self._tokens = np.empty_like(every), np.empty_like(given)
        rows[places], self._tokens[places] = every, given
        self._slots.select(rows)
        self._entries = [self._entries[index] for index in kept]
        ends = np.cumsum([len(part) for part in sources])[:-1]
        self._places = np.split(places, ends) if sources else []


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
