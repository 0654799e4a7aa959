"""Rows in the running batch, each with the search that its own options ask for.

Axes: W rows of the model's batch that an entry takes, V vocabulary.
"""

import dataclasses
import math
import time
from collections.abc import Iterable, Sequence

import numpy as np

from tfexport.runtime.model.interface import Floats
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.scheduler.observer import Observer
from tfexport.runtime.scheduler.submission import Row
from tfexport.runtime.search import (
    Choice,
    NextStep,
    Prefixes,
    Request,
    ResolvedOptions,
    make_choice,
)
from tfexport.runtime.search.ranking import make_hypothesis
from tfexport.runtime.search.topk import token_log_probs
from tfexport.runtime.step import Step


def fits_slots(requests: Sequence[Request], options: ResolvedOptions, slots: int) -> bool:
    """Whether rows can be decoded in a running batch: step by step, by their logits alone."""
    return (
        options.width <= slots
        and not options.needs_attention
        and not options.return_alternatives
        and options.callback is None
        and all(
            row.candidates is None and row.inputs is None and len(row.prefix) < options.max_length
            for row in requests
        )
    )


def make_entry(row: Row, observer: Observer) -> "GreedyEntry | SearchEntry":
    """An entry for a row; a row that the graph itself can decode greedily needs no search."""
    options = row.options
    own = ((), (options.first_token,))
    plain = options.beam_size == 1 and options.fits_greedy_graph and row.request.prefix in own
    return GreedyEntry(row, observer) if plain else SearchEntry(row, observer)


class _Told:
    """Tells of a row's tokens as they come."""

    def __init__(self, row: Row, observer: Observer) -> None:
        self._submission, self._observer, self._begun = row.submission, observer, False
        self.wanted = row.submission.on_step is not None

    def begin(self) -> None:
        """Tell of the first token."""
        if not self._begun:
            self._begun = True
            self._observer.first_token(time.monotonic() - self._submission.submitted)

    def tell(self, steps: Iterable[Step]) -> None:
        """One step of the row, of one token for each of its hypotheses."""
        self.begin()
        for step in steps:
            self._submission.tell(step)


class GreedyEntry:
    """Greedy search by the best tokens that the graph chooses.

    Attributes:
        row: that is decoded.
        scored: its tokens' probabilities are wanted.
        first: the token before the first one.
    """

    def __init__(self, row: Row, observer: Observer) -> None:
        options = row.options
        self.row, self.scored, self.first = row, options.return_scores, options.bos_id
        # Read at every token: attributes of their own are found sooner.
        self._prefix, self._longest = row.request.prefix, options.max_length
        self._end, self._last_token = options.eos_id, options.last_token
        self._told = _Told(row, observer)
        self._tokens: list[int] = []
        self._scores: list[float] = []
        self._finished = False

    def take(self, best: int, score: float) -> int | None:
        """Take the graph's token, or the one that is forced; None when it was the last one."""
        place, token = len(self._tokens), best
        given = place < len(self._prefix)
        if given:
            token, score = self._prefix[place], 0.0
        elif self._last_token is not None and place == self._longest - 1:
            token, score = self._last_token, 0.0
        self._tokens.append(token)
        self._scores.append(score)
        self._finished = token == self._end
        last = self._finished or place + 1 >= self._longest
        if self._told.wanted and not given:
            self._told.tell([Step(self.row.request.number, 0, place, token, score, last)])
        elif not place:
            self._told.begin()
        return None if last else token

    def hypotheses(self) -> list[Hypothesis]:
        """Its only one."""
        scores = np.array(self._scores)
        uncounted = self.row.options.uncounted(self._prefix)
        made = make_hypothesis(
            self._tokens, scores, None, self._finished, self.row.options, uncounted
        )
        return [made if self.scored else dataclasses.replace(made, score=math.nan)]


class SearchEntry:
    """Any other search that chooses by logits; see ``GreedyEntry``."""

    scored = True

    def __init__(self, row: Row, observer: Observer) -> None:
        self.row, self.first = row, row.options.bos_id
        self._told = _Told(row, observer)
        self._prefix_scores: list[float] = []
        self._choice: Choice | None = None

    def take(self, logits: Floats) -> NextStep | None:
        """Take logits (W, V), which may be changed; None when they were the last ones."""
        if len(self._prefix_scores) < len(self.row.request.prefix):
            return self._take_of_prefix(logits)
        if self._choice is None:
            request, options = self.row.request, self.row.options
            tokens = np.array([request.prefix], np.int64).reshape(1, -1)
            prefixes = Prefixes(tokens, np.array([self._prefix_scores]).reshape(1, -1))
            self._choice = make_choice([request], options, prefixes)
            # One row of the batch until here, and then as many as the search needs.
            first = self._choice.first_rows
            steps, then = self._choice.take(logits[first])
            then = None if then is None else NextStep(first[then.rows], then.tokens)
        else:
            steps, then = self._choice.take(logits)
        self._told.tell(steps)
        return then

    def _take_of_prefix(self, logits: Floats) -> NextStep:
        place, prefix = len(self._prefix_scores), self.row.request.prefix
        token = np.array([prefix[place]])
        certain = place == 0 and prefix[0] == self.row.options.first_token
        self._prefix_scores.append(0.0 if certain else float(token_log_probs(logits, token)[0]))
        return NextStep(np.zeros(1, np.intp), token)

    def hypotheses(self) -> list[Hypothesis]:
        """Best first."""
        assert self._choice is not None
        (found,) = self._choice.hypotheses()
        if self.row.options.return_scores:
            return found
        return [dataclasses.replace(made, score=math.nan) for made in found]
