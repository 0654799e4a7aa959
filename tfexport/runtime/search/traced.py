"""Placing required phrases by the trace of a search, whose positions are not read again.

Axes: T tokens, S source.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from tfexport.runtime.model.interface import Floats, Model, Traced, TracedRows
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search.drafts import Draft
from tfexport.runtime.search.placed import Reader, Reading, make_reading
from tfexport.runtime.search.ranking import make_hypothesis, normalize
from tfexport.runtime.search.request import Request, ResolvedOptions
from tfexport.runtime.search.required import Tokens

MOST_READ = 8192  # tokens at once, whose positions are kept
_LEAST = -1e20  # log-probabilities below it are of suppressed tokens


class TracedReader:
    """See ``Reader``: what a draft shares with the translation that was found is known."""

    def __init__(
        self, traced: Traced, rows: Sequence[int], options: ResolvedOptions, reader: Reader
    ) -> None:
        """Take a trace.

        Args:
            traced: a search by these options.
            rows: for each translation its row in the trace.
            options: how it was made; none acts on probabilities.
            reader: what reads drafts that have all tokens that they may have.
        """
        self._traced, self._rows, self._options, self._reader = traced, rows, options, reader
        self._found: list[Tokens] = []
        self._read: TracedRows | None = None

    def align(self, drafts: Sequence[Draft]) -> list[Floats]:
        """See ``Reader``."""
        self._found = [draft.tokens for draft in drafts]
        return [
            self._traced.attention[row, : len(draft.tokens)]
            for draft, row in zip(drafts, self._rows, strict=True)
        ]

    def read(self, drafts: Sequence[Draft]) -> list[Reading]:
        """See ``Reader``."""
        options = self._options
        most = options.max_length
        if options.last_token is not None and any(len(each.tokens) + 1 >= most for each in drafts):
            return self._reader.read(drafts)
        if sum(len(each.tokens) + 1 for each in drafts) > MOST_READ:
            return self._reader.read(drafts)
        shared = [_shared(draft.tokens, self._found[draft.row]) for draft in drafts]
        inputs, targets = list[Tokens](), list[Tokens]()
        for draft, start in zip(drafts, shared, strict=True):
            inputs.append((options.bos_id, *draft.tokens)[start:most])
            targets.append((*draft.tokens, options.eos_id)[start:most])
        rows = [self._rows[draft.row] for draft in drafts]
        known = known_log_probs(self._traced, rows, shared, drafts[0].request.prefix, options)
        self._read = self._traced.rows.branch(rows, shared)
        readings, at = list[Reading](), 0
        found = self._read.read(inputs, targets)
        best, gaps = found.best.tolist(), found.gaps.tolist()
        log_probs = _log_probs(found.log_probs.tolist())
        for draft, before, start, wanted in zip(drafts, known, shared, targets, strict=True):
            part = slice(at, at + len(wanted))
            at += len(wanted)
            scores = before + log_probs[part]
            readings.append(
                make_reading(draft, best[part], gaps[part], scores, wanted, start=start)
            )
        return readings

    def go_on(
        self, drafts: Sequence[tuple[Draft, Reading]], places: Sequence[int]
    ) -> list[Hypothesis | None]:
        """See ``Reader``."""
        options = self._options
        if self._read is None or not drafts:
            return self._reader.go_on(drafts, places)
        results = list[Hypothesis | None]()
        starts = [reading.agreed or 0 for _, reading in drafts]
        first = [
            draft.tokens[agreed - 1] if agreed else options.bos_id
            for (draft, _), agreed in zip(drafts, starts, strict=True)
        ]
        left = [options.max_length - agreed for agreed in starts]
        branch = self._read.branch(places, starts)
        going = options.going or _always
        made = branch.run(first, left, options.eos_id, options.last_token, going)
        for (draft, reading), agreed, (tokens, log_probs) in zip(drafts, starts, made, strict=True):
            scores = [*reading.log_probs[:agreed], *_log_probs(log_probs)]
            finished = tokens[-1] == options.eos_id
            if options.last_token is not None and agreed + len(tokens) == options.max_length:
                scores[-1] = 0  # a forced token is certain
            whole = [*draft.tokens[:agreed], *tokens]
            uncounted = options.uncounted(draft.request.prefix)
            results.append(make_hypothesis(whole, scores, None, finished, options, uncounted))
        return results


def retrace(
    model: Model,
    requests: Sequence[Request],
    found: Sequence[Hypothesis],
    options: ResolvedOptions,
) -> Traced | None:
    """The trace of translations that were found in another way; None if the model has none."""
    rows = [request.source for request in requests]
    end = [options.eos_id]
    chosen = [made.tokens or end for made in found]
    if sum(map(len, chosen)) > MOST_READ:
        return None
    return model.retrace(rows, [[options.bos_id, *row[:-1]] for row in chosen], chosen)


def _shared(tokens: Tokens, others: Tokens) -> int:
    """Tokens before the first that differs; a row has always one to read, the end token."""
    at, most = 0, min(len(tokens), len(others))
    while at < most and tokens[at] == others[at]:
        at += 1
    return at


def known_log_probs(
    traced: Traced,
    rows: Sequence[int],
    counts: Sequence[int],
    prefix: Tokens,
    options: ResolvedOptions,
) -> list[list[float]]:
    """Log-probabilities of the first tokens of rows of a trace.

    Args:
        traced: the trace.
        rows: rows of it; one may be repeated.
        counts: tokens of each.
        prefix: of all rows, a forced first token or nothing.
        options: how they were decoded.
    """
    most: dict[int, int] = {}
    for row, count in zip(rows, counts, strict=True):
        most[row] = max(count, most.get(row, 0))
    found = dict(zip(most, traced.log_probs([*most], [*most.values()]), strict=True))
    for values in found.values():  # forced tokens are certain
        values[: len(prefix)] = [0.0] * min(len(prefix), len(values))
        if options.last_token is not None and len(values) == options.max_length:
            values[-1] = 0.0
    return [found[row][:count] for row, count in zip(rows, counts, strict=True)]


def score(
    traced: Traced,
    found: Mapping[int, Hypothesis],
    prefix: Tokens,
    options: ResolvedOptions,
) -> Iterator[tuple[int, Hypothesis]]:
    """Give the hypotheses of a trace, by their rows, the scores of a search in one call."""
    rows = [row for row in found if row not in traced.without]
    counts = [len(found[row].tokens) + _has_end(found[row], options) for row in rows]
    log_probs = known_log_probs(traced, rows, counts, prefix, options)
    means = dict(traced.without)
    for row, values in zip(rows, log_probs, strict=True):
        total = 0.0
        for value in values:  # as the engine adds them; ``sum`` rounds in another way
            total += value
        means[row] = float(np.float32(total / max(1, len(values))))
    for row, made in found.items():
        length = len(made.tokens) + _has_end(made, options)
        mean = normalize(means[row] * length, length, options.length_penalty)
        yield row, Hypothesis(made.tokens, mean, finished=made.finished, unmet=made.unmet)


def _has_end(made: Hypothesis, options: ResolvedOptions) -> bool:
    """Whether an end token follows the tokens."""
    return made.finished and not options.return_end_token


def _log_probs(values: Iterable[float]) -> list[float]:
    return [value if value > _LEAST else -math.inf for value in values]


def _always() -> bool:
    return True
