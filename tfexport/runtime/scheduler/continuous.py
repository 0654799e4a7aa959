"""Continuous batching: rows enter and leave the running batch at any step.

Axes: R rows of the model's batch, V vocabulary.
"""

import dataclasses
import math
import time
from collections.abc import Iterable, Sequence
from itertools import chain, compress, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfexport.runtime.engine import Engine
from tfexport.runtime.model.interface import Floats, Ids, Model, Run
from tfexport.runtime.options import Step
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.scheduler.submission import Ended, Observer, RunningBatch, SubmissionRow
from tfexport.runtime.search import (
    Choice,
    NextStep,
    Prefixes,
    Request,
    ResolvedOptions,
    make_choice,
)
from tfexport.runtime.search.logits import token_log_probs
from tfexport.runtime.search.ranking import make_hypothesis

# Axes: W rows of the model's batch that a sequence takes, V vocabulary.

ENTERING = 2  # share of the slots that has to be free before rows enter a full batch
# Greedy rows go on for so long before results are handed over and the batch looks at its queue:
# longer while more rows wait than enter, as every look costs some time of each row that runs.
_STEPS, _SECONDS, _SECONDS_IF_FULL = 16, 0.005, 0.02


def fits_slots(requests: Sequence[Request], options: ResolvedOptions, slots: int) -> bool:
    """Whether rows with these options can be decoded step by step from their logits."""
    return (
        options.width <= slots
        and not options.needs_attention
        and not options.return_alternatives
        and options.callback is None
        and all(
            row.candidates is None
            and row.inputs is None
            and row.rule is None
            and row.required is None  # decoded by two searches, one after the other
            and len(row.prefix) < options.max_length
            for row in requests
        )
    )


def make_sequence(row: SubmissionRow, observer: Observer, model: Model) -> "RowSequence":
    """Make a sequence of a row; greedy rows that the model supports need no search."""
    options = row.options
    own = ((), (options.first_token,))
    plain = options.beam_size == 1 and options.fits_greedy_of(model) and row.request.prefix in own
    return GreedySequence(row, observer) if plain else SearchSequence(row, observer)


class _Reporter:
    """Reports the tokens of a row."""

    def __init__(self, row: SubmissionRow, observer: Observer) -> None:
        self._submission, self._observer, self._started = row.submission, observer, False
        self.wanted = row.submission.on_step is not None

    def started(self) -> None:
        """Report the first token."""
        if not self._started:
            self._started = True
            self._observer.first_token(time.monotonic() - self._submission.submitted)

    def tell(self, steps: Iterable[Step]) -> None:
        """Report a step of the row: one token for each of its hypotheses."""
        self.started()
        for step in steps:
            self._submission.tell(step)


class Outputs(NamedTuple):
    """The model's outputs of a step, for R rows of its batch.

    Attributes:
        best: the best token of each row.
        scores: its log-probability; NaN if no row of greedy search asks for it.
        logits: (R, V), or (0, V) if no sequence asks for probabilities.
    """

    best: list[int]
    scores: list[float]
    logits: Floats


# How a sequence continues: the row of the model's batch that each of its next rows continues, and
# the next token of each.
Continuation = tuple[list[int], list[int]]


class GreedySequence:
    """A row with greedy search, by the best tokens of the graph.

    Attributes:
        row: the row.
        scored: whether probabilities of its tokens are requested.
        first: the token before the first one.
    """

    def __init__(self, row: SubmissionRow, observer: Observer) -> None:
        options = row.options
        self.row, self.scored, self.first = row, options.return_scores, options.bos_id
        # Read at every token: local attributes are faster.
        self._prefix, self._longest = row.request.prefix, options.max_length
        self._end, self._last_token = options.eos_id, options.last_token
        self._least = options.min_length
        self._reporter = _Reporter(row, observer)
        self._tokens: list[int] = []
        self._scores: list[float] = []
        self._finished = False

    def take(self, indices: list[int], outputs: Outputs) -> Continuation | None:
        """Take the graph's token, or a forced one; return None after the last one.

        Args:
            indices: its rows of the model's batch.
            outputs: of a step.
        """
        (index,) = indices
        place, token, score = len(self._tokens), outputs.best[index], outputs.scores[index]
        given = place < len(self._prefix)
        if given:
            token, score = self._prefix[place], 0.0
        elif self._last_token is not None and place == self._longest - 1:
            token, score = self._last_token, 0.0
        self._tokens.append(token)
        self._scores.append(score)
        self._finished = token == self._end
        last = self._finished or place + 1 >= self._longest
        if self._reporter.wanted and not given:
            self._reporter.tell([Step(self.row.request.number, 0, place, token, score, last)])
        elif not place:
            self._reporter.started()
        return None if last else (indices, [token])

    @property
    def left(self) -> int:
        """Tokens that it may still get."""
        return self._longest - len(self._tokens)

    @property
    def owed(self) -> int:
        """Tokens that it has to get before its end token."""
        return max(0, self._least - len(self._tokens))

    @property
    def told(self) -> bool:
        """Whether somebody waits for each of its tokens."""
        return self._reporter.wanted

    def extend(self, tokens: list[int]) -> bool:
        """Take tokens of a run; return whether it has ended."""
        self._reporter.started()
        first = len(self._tokens)
        self._tokens += tokens
        self._scores += [math.nan] * len(tokens)
        self._finished = tokens[-1] == self._end
        over = self._finished or not self.left
        if self._reporter.wanted:
            for place in range(max(first, len(self._prefix)), len(self._tokens)):
                last = over and place + 1 == len(self._tokens)
                token, number = self._tokens[place], self.row.request.number
                self._reporter.tell([Step(number, 0, place, token, math.nan, last)])
        return over

    def hypotheses(self) -> list[Hypothesis]:
        """The only hypothesis."""
        scores = np.array(self._scores)
        uncounted = self.row.options.uncounted(self._prefix)
        made = make_hypothesis(
            self._tokens, scores, None, self._finished, self.row.options, uncounted
        )
        return [made if self.scored else dataclasses.replace(made, score=math.nan)]


class SearchSequence:
    """A row with any other search, by logits; see ``GreedySequence``."""

    scored = True

    def __init__(self, row: SubmissionRow, observer: Observer) -> None:
        self.row, self.first = row, row.options.bos_id
        self._reporter = _Reporter(row, observer)
        self._prefix_scores: list[float] = []
        self._choice: Choice | None = None

    def take(self, indices: list[int], outputs: Outputs) -> Continuation | None:
        """Take the logits of its rows; return None after the last ones."""
        logits = outputs.logits[indices]  # (W, V), a copy, which a search may change
        prefix, place = self.row.request.prefix, len(self._prefix_scores)
        if place < len(prefix):
            return indices, [self._take_of_prefix(logits, prefix[place])]
        if self._choice is None:
            request, options = self.row.request, self.row.options
            tokens = np.array([prefix], np.int64).reshape(1, -1)
            prefixes = Prefixes(tokens, np.array([self._prefix_scores]).reshape(1, -1))
            self._choice = make_choice([request], options, prefixes)
            # So far one row of the batch; from now on as many as the search needs.
            first = self._choice.first_rows
            steps, then = self._choice.take(logits[first])
            then = None if then is None else NextStep(first[then.rows], then.tokens)
        else:
            steps, then = self._choice.take(logits)
        self._reporter.tell(steps)
        if then is None:
            return None
        return [indices[row] for row in then.rows], then.tokens.tolist()

    def _take_of_prefix(self, logits: Floats, token: int) -> int:
        first = not self._prefix_scores
        certain = first and token == self.row.options.first_token
        score = 0.0 if certain else float(token_log_probs(logits, np.array([token]))[0])
        self._prefix_scores.append(score)
        return token

    def hypotheses(self) -> list[Hypothesis]:
        """Best first."""
        assert self._choice is not None
        (found,) = self._choice.hypotheses()
        if self.row.options.return_scores:
            return found
        return [dataclasses.replace(made, score=math.nan) for made in found]


RowSequence = GreedySequence | SearchSequence
_Places = NDArray[np.intp]


class ContinuousBatch(RunningBatch):
    """See ``RunningBatch``; a step gives every row its next token.

    A sequence takes as many rows of the model's batch as its search follows, at any index.

    """

    def __init__(
        self, engine: Engine, capacity: int, observer: Observer, wake: NDArray[np.int32]
    ) -> None:
        """Make the buffers.

        Args:
            engine: an open bundle.
            capacity: see ``RunningBatch``.
            observer: receives events.
            wake: (1,), set while rows wait.

        Raises:
            BundleError: onnxruntime cannot run the graph.
        """
        super().__init__(capacity)
        self._wake = wake
        self._model = engine.model
        self._slots = self._model.running_rows(capacity)
        self._observer = observer
        self._hold([])
        self._indices: list[list[int]] = []  # rows of each sequence in the model's batch
        self._tokens: Ids = np.zeros(0, np.int64)  # (R,), the next tokens

    @property
    def free(self) -> int:
        """See ``RunningBatch``; each row reserves the most that it may need."""
        return self._free

    def enter(self, rows: Sequence[SubmissionRow]) -> None:
        """See ``RunningBatch``."""
        sequences = [make_sequence(row, self._observer, self._model) for row in rows]
        first = self._slots.rows
        self._slots.enter([row.request.source for row in rows])
        self._hold([*self._sequences, *sequences])
        self._indices += [[first + place] for place in range(len(rows))]
        self._tokens = np.append(self._tokens, [sequence.first for sequence in sequences])

    def step(self) -> Ended:
        """See ``RunningBatch``."""
        if self._plain:
            return self._run(self._plain)
        best, logits = self._slots.step(self._tokens, self._scored)
        best = best.copy()
        scores = self._scores(best, logits) if self._scored else [math.nan] * len(best)
        outputs = Outputs(best.tolist(), scores, logits)
        ended: Ended = []
        kept: list[tuple[RowSequence, Continuation]] = []
        for sequence, indices in zip(self._sequences, self._indices, strict=True):
            try:
                then = sequence.take(indices, outputs)
                if then is None:
                    ended.append((sequence.row, sequence.hypotheses()))
                else:
                    kept.append((sequence, then))
            except Exception as error:  # only this row fails
                sequence.row.submission.fail(error)
        self._continue(kept)
        return ended

    def _run(self, sequences: list[GreedySequence]) -> Ended:
        """Several steps of rows of greedy search, which need no logits."""
        by_row = list(sequences)
        for sequence, (index,) in zip(sequences, self._indices, strict=True):
            by_row[index] = sequence
        options = by_row[0].row.options  # its rules are the graph's, and so the same for all
        run = Run(
            [sequence.left for sequence in by_row],
            options.eos_id,
            options.first_token,
            options.last_token,
            1 if any(sequence.told for sequence in by_row) else _STEPS,
            self.capacity // ENTERING - self.free,
            _SECONDS_IF_FULL if self._wake[0] else _SECONDS,
            self._wake,
            [sequence.owed for sequence in by_row],
        )
        tokens, counts, kept = self._slots.run(self._tokens, run)
        ended: Ended = []
        lasts: list[int] = []
        for sequence, row, count in zip(by_row, tokens.tolist(), counts.tolist(), strict=True):
            lasts.append(row[count - 1])
            try:
                if sequence.extend(row[:count]):
                    ended.append((sequence.row, sequence.hypotheses()))
            except Exception as error:  # only this row fails
                sequence.row.submission.fail(error)
        self._tokens = np.array(lasts, np.int64)[kept]
        if len(kept) < len(by_row):
            self._hold([by_row[row] for row in kept.tolist()])
            self._indices = [[row] for row in range(len(kept))]
        return ended

    def leave(self) -> None:
        """See ``RunningBatch``."""
        over = [row.submission.is_over() for row in self.rows]
        if any(over):
            for row in compress(self.rows, over):
                row.submission.end_if_late()
            sequences = zip(self._sequences, self._indices, over, strict=True)
            self._continue([
                (sequence, (indices, self._tokens[indices].tolist()))
                for sequence, indices, leaves in sequences
                if not leaves
            ])  # fmt: skip

    def clear(self) -> None:
        """See ``RunningBatch``."""
        self._slots.select(np.zeros(0, np.intp))
        self._hold([])
        self._indices, self._tokens = [], np.zeros(0, np.int64)

    def _hold(self, sequences: list[RowSequence]) -> None:
        self._sequences, self.rows = sequences, list[SubmissionRow]()
        self._scored, self._free = False, self.capacity
        plain = [sequence for sequence in sequences if isinstance(sequence, GreedySequence)]
        for sequence in sequences:
            self.rows.append(sequence.row)
            self._scored |= sequence.scored
            self._free -= sequence.row.options.width
        # Rows whose next tokens need nothing of Python.
        self._plain = plain if len(plain) == len(sequences) and not self._scored else []

    def _scores(self, best: Ids, logits: Floats) -> list[float]:
        """Log-probabilities (R,) of ``best``, which least lengths change; NaN if not requested."""
        scores = np.full(len(best), np.nan)
        sequences = zip(self._sequences, self._indices, strict=True)
        greedy = [
            (indices[0], sequence)
            for sequence, indices in sequences
            if isinstance(sequence, GreedySequence) and (sequence.scored or sequence.owed)
        ]
        if greedy:
            rows = [place for place, _ in greedy]
            allowed = logits[rows]
            # The same for all of them: the model's own rules, which are part of the graph.
            options = greedy[0][1].row.options
            allowed[:, list(options.suppress_tokens)] = -np.inf
            owing = [place for place, (_, sequence) in enumerate(greedy) if sequence.owed]
            allowed[owing, options.eos_id] = -np.inf
            best[np.array(rows)[owing]] = allowed[owing].argmax(-1)
            scores[rows] = token_log_probs(allowed, best[rows])
            scores[[place for place, sequence in greedy if not sequence.scored]] = math.nan
        found: list[float] = scores.tolist()
        return found

    def _continue(self, kept: Sequence[tuple[RowSequence, Continuation]]) -> None:
        """Keep some sequences, and move rows whose index changes."""
        followed = [sources for _, (sources, _) in kept]
        sources = list(chain(*followed))
        tokens = list(chain(*(tokens for _, (_, tokens) in kept)))
        if followed == self._indices:  # true in most steps
            self._tokens[sources] = tokens
            return
        indices = _settle(np.array(sources, np.intp))
        rows, self._tokens = np.empty_like(indices), np.empty(len(indices), np.int64)
        rows[indices], self._tokens[indices] = sources, tokens
        self._slots.select(rows)
        settled = iter(indices.tolist())
        self._hold([sequence for sequence, _ in kept])
        self._indices = [list(islice(settled, len(rows))) for rows in followed]


def _settle(sources: _Places) -> _Places:
    """The index of each row that continues ``sources``; as many as possible stay where they are."""
    count = len(sources)
    indices = np.full(count, -1)
    taken = np.zeros(count, bool)
    # If several rows continue one row, the first may stay.
    _, firsts = np.unique(sources, return_index=True)
    stay = firsts[sources[firsts] < count]
    indices[stay] = sources[stay]
    taken[indices[stay]] = True
    indices[indices < 0] = np.flatnonzero(~taken)
    return indices
