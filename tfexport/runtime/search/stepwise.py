"""Stepwise decoding by greedy search or sampling: one token for each row at every step.

Axes: R rows, S source, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tfexport.runtime.model.interface import Floats, Ids, Model, Source
from tfexport.runtime.options import DecodingOptions, Step
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search.batch import BatchSteps, NextStep, Prefixes, prefill
from tfexport.runtime.search.logits import LogitFilters, token_log_probs, topk
from tfexport.runtime.search.ranking import best_first, make_hypothesis
from tfexport.runtime.search.request import Request, ResolvedOptions

# Axes: R rows, V vocabulary.


Doubles = NDArray[np.float64]
_FLOAT32 = np.finfo(np.float32)


def draw(
    logits: Floats, generators: Sequence[np.random.Generator], options: DecodingOptions
) -> Ids:
    """One token a row: (R, V) to (R,).

    Temperature acts first, then top-k, then top-p. Every token has a waiting time from the row's
    generator, and the token with the greatest ratio of weight to time is drawn. So rounding, which
    depends on the batch, changes a draw only if two tokens are almost equal. Source: the
    exponential race; with logarithms Gumbel-max, Maddison et al. 2014.
    """
    size = logits.shape[-1]
    numbers = np.stack([generator.random(size) for generator in generators])
    times = np.maximum(-np.log1p(-numbers), np.finfo(np.float64).tiny)
    scaled = _scale(logits, options.temperature)
    if options.top_k or options.top_p < 1:
        ids, weights = _best(scaled, options.top_k or size, options.top_p)
        first = (weights / np.take_along_axis(times, ids, -1)).argmax(-1)
        return np.take_along_axis(ids, first[:, None], -1)[:, 0]
    chosen: Ids = (np.exp(scaled) / times).argmax(-1)
    return chosen


def _scale(logits: Floats, temperature: float) -> Floats:
    """Logits over temperature, the best of each row at 0; banned tokens stay at -inf."""
    # The divisor has to stay finite and positive in float32.
    divisor = np.clip(temperature, _FLOAT32.tiny, _FLOAT32.max).astype(np.float32)
    with np.errstate(over="ignore"):  # an overflow gives -inf: probability 0
        scaled: Floats = (logits - logits.max(-1, keepdims=True)) / divisor
    return scaled


def _best(scaled: Floats, top_k: int, top_p: float) -> tuple[Ids, Doubles]:
    """The tokens that may be drawn, and their weights: (R, K) each; some of them may weigh 0."""
    size = scaled.shape[-1]
    top_k = min(top_k, size)
    # Few tokens have most of the probability: more are sorted only if needed.
    count = top_k if top_p == 1 else min(64, top_k)
    whole = np.exp(scaled).sum(-1, dtype=np.float64) if top_k == size else None
    while True:
        ids, values = topk(scaled, count)
        weights = np.exp(values.astype(np.float64))
        if top_p == 1:
            break
        if count == top_k:
            whole = weights.sum(-1)
        if whole is not None and (count == top_k or (weights.sum(-1) >= top_p * whole).all()):
            before = np.cumsum(weights, -1) - weights
            weights = np.where(before < top_p * whole[:, None], weights, 0)
            # The best token is kept for any top_p.
            weights[:, 0] = 1
            break
        count = min(4 * count, top_k)
    return ids, weights


class _Sequence:
    """The tokens of one row so far.

    Attributes:
        request: index of the request that the row decodes.
        sample: index of the sample among those of one request.
        tokens: the prefix, and the tokens chosen so far.
        scores: their natural-log probabilities.
        attention: (S,) of each token, if it is needed.
        finished: whether an end token ended it.
        generator: random number generator of the row, if it is sampled.
    """

    generator: np.random.Generator

    def __init__(self, request: int, sample: int, prefix: list[int], scores: list[float]) -> None:
        self.request, self.sample = request, sample
        self.tokens, self.scores = prefix, scores
        self.attention: list[Floats] = []
        self.finished = False


class StepwiseChoice:
    """Greedy search or sampling as a ``Choice``; finished rows are removed.

    A row ends with an end token, at ``max_length``, if a callback returns true, or if no token is
    allowed.
    """

    def __init__(
        self, requests: Sequence[Request], options: ResolvedOptions, prefixes: Prefixes
    ) -> None:
        """Start after the prefixes.

        Args:
            requests: the requests, with prefixes of equal length.
            options: how to decode them.
            prefixes: the prefixes of the requests.
        """
        self._requests, self._options = requests, options
        self._filters = LogitFilters(options, requests)
        samples = options.num_hypotheses if options.sampling else 1
        self._sequences = self._start(prefixes, samples)
        self._active = self._sequences
        self.first_rows: NDArray[np.intp] = np.repeat(np.arange(len(requests)), samples)

    def take(
        self, logits: Floats, attention: Floats | None = None
    ) -> tuple[list[Step], NextStep | None]:
        """See ``Choice``."""
        tokens = np.array([sequence.tokens for sequence in self._active], np.int64)
        tokens = tokens.reshape(len(self._active), -1)
        sources = np.array([sequence.request for sequence in self._active], np.intp)
        self._filters.apply(logits, tokens, sources)
        # Rows without an allowed token are removed.
        rows = np.flatnonzero(np.isfinite(logits.max(-1)))
        logits = logits[rows]
        attention = None if attention is None else attention[rows]
        self._active = [self._active[row] for row in rows]
        if not self._active:
            return [], None
        chosen = self._choose(logits)
        steps, going = self._append(logits, attention, chosen)
        self._active = [self._active[place] for place in np.flatnonzero(going)]
        return steps, NextStep(rows[going], chosen[going]) if self._active else None

    def _start(self, prefixes: Prefixes, samples: int) -> list[_Sequence]:
        """One sequence for each sample of each request, holding the prefix."""
        sequences = [
            _Sequence(i, sample, [*request.prefix], prefixes.prefix_scores[i].tolist())
            for i, request in enumerate(self._requests)
            for sample in range(request.sample, request.sample + samples)
        ]
        for sequence in sequences:
            if self._options.sampling:
                number = self._requests[sequence.request].number
                seed = [self._options.seed, number, sequence.sample]
                sequence.generator = np.random.default_rng(seed)
            if prefixes.attention is not None:
                attended = prefixes.attention[sequence.request, : len(sequence.tokens)]
                sequence.attention.extend(attended)
        return sequences

    def _choose(self, logits: Floats) -> Ids:
        if self._options.sampling:
            generators = [sequence.generator for sequence in self._active]
            return draw(logits, generators, self._options)
        best: Ids = logits.argmax(-1)
        return best

    def _append(
        self, logits: Floats, attention: Floats | None, tokens: Ids
    ) -> tuple[list[Step], NDArray[np.bool_]]:
        """Append a token to every row: the steps for callbacks, and which rows continue (R,)."""
        scores = token_log_probs(logits, tokens)
        ends = self._options.ends(tokens)
        callback = self._options.callback
        steps, keep_going = [], np.zeros(len(tokens), bool)
        for row, sequence in enumerate(self._active):
            sequence.tokens.append(int(tokens[row]))
            sequence.scores.append(float(scores[row]))
            if attention is not None:
                sequence.attention.append(attention[row])
            sequence.finished = bool(ends[row])
            last = sequence.finished or len(sequence.tokens) >= self._options.max_length
            number = self._requests[sequence.request].number
            step = Step(number, sequence.sample, len(sequence.tokens) - 1,
                        sequence.tokens[-1], sequence.scores[-1], last)  # fmt: skip
            steps.append(step)
            stop = callback is not None and bool(callback(step))
            keep_going[row] = not (last or stop)
        return steps, keep_going

    def hypotheses(self) -> list[list[Hypothesis]]:
        """The hypotheses of each request so far, best first, on a tie the earlier one."""
        found: list[list[Hypothesis]] = [[] for _ in self._requests]
        for sequence in self._sequences:
            request = self._requests[sequence.request]
            length, attention = request.length, None
            if self._options.needs_attention:
                rows = [row[:length] for row in sequence.attention]
                attention = np.array(rows, np.float32).reshape(len(rows), length)
            scores = np.array(sequence.scores)
            uncounted = self._options.uncounted(request.prefix)
            made = make_hypothesis(
                sequence.tokens, scores, attention, sequence.finished, self._options, uncounted
            )
            found[sequence.request].append(made)
        return [best_first(row) for row in found]


class StepwiseSearch:
    """Greedy search or sampling over a batch."""

    def __init__(self, model: Model, requests: Sequence[Request], options: ResolvedOptions) -> None:
        prefilled = prefill(model, requests, options)
        self._choice = StepwiseChoice(requests, options, prefilled)
        self._steps = BatchSteps(model, requests, options, prefilled)
        self._active = prefilled.logits is not None
        if self._active:
            self._steps.select(self._choice.first_rows)

    @property
    def active(self) -> bool:
        """Whether any row is unfinished."""
        return self._active

    def run(self) -> list[list[Hypothesis]]:
        """Decode to the end; for each request its hypotheses, best first."""
        while self._active:
            self.step()
        return self._choice.hypotheses()

    def step(self) -> list[Step]:
        """Append one token to every active row."""
        steps, then = self._choice.take(self._steps.logits, self._steps.attention)
        self._active = then is not None
        if then is not None:
            self._steps.advance(then)
        return steps


def greedy(
    model: Model, rows: Sequence[Source], max_length: int, bos_id: int, eos_id: int
) -> list[Hypothesis]:
    """Decode sources, none of them empty, taking the best token at every step.

    The best token is the argmax of the logits, the lowest id on a tie. A row ends with ``eos_id``
    or after ``max_length`` tokens.
    """
    options = ResolvedOptions.of(DecodingOptions(), bos_id, (eos_id,), max_length)
    requests = [Request.of(row, number) for number, row in enumerate(rows)]
    return [found[0] for found in StepwiseSearch(model, requests, options).run()]
