"""Backtrace: hypotheses from the candidates that a beam search in a graph chose among.

Axes: T steps, B sentences, K beam size, N = 2 K candidates of a step, best first.
"""

from collections.abc import Iterator

import numpy as np

from tfexport.runtime.model.interface import BeamRecord
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search.ranking import best_first, make_hypothesis, stopping_count
from tfexport.runtime.search.resolved_options import ResolvedOptions


class Backtrace:
    """The recorded candidates (T, B, N) of a beam search, with the links to their parents."""

    def __init__(self, record: BeamRecord, options: ResolvedOptions) -> None:
        self._options, self._width = options, options.beam_size
        self._ends = options.ends(record.tokens)
        # (T, B, K): index of the candidate that becomes hypothesis k of the next step. These are
        # the candidates that do not end, best first.
        followed = np.argsort(self._ends, axis=-1, kind="stable")[..., : self._width]
        self._followed = followed.tolist()
        self._tokens = record.tokens.tolist()
        self._parents = record.parents.tolist()
        self._log_probs = record.log_probs

    def hypotheses(self, sentence: int) -> list[Hypothesis]:
        """The finished hypotheses of one sentence, best first."""
        num_finished = stopping_count(self._options)
        found: list[Hypothesis] = []
        for step, ranks in self._complete(sentence):
            traced = [self._trace(sentence, step, rank) for rank in ranks]
            found += [made for made in traced if made is not None]
            if len(found) >= num_finished:
                break
        return best_first(found)[: self._options.num_hypotheses]

    def _complete(self, sentence: int) -> Iterator[tuple[int, list[int]]]:
        """For each step the ranks of candidates that end or have ``max_length`` tokens."""
        for step, ends in enumerate(self._ends[:, sentence, : self._width]):
            last = step + 1 >= self._options.max_length
            yield step, [rank for rank, end in enumerate(ends) if end or last]

    def _trace(self, sentence: int, step: int, rank: int) -> Hypothesis | None:
        """Follow a candidate back to the start token; None if it is a placeholder."""
        finished = bool(self._ends[step, sentence, rank])
        tokens, scores = [], []
        while True:
            tokens.append(self._tokens[step][sentence][rank])
            scores.append(self._log_probs[step, sentence, rank])
            parent = self._parents[step][sentence][rank]
            if step == 0:
                break
            step -= 1
            rank = self._followed[step][sentence][parent]
        in_order = np.array(scores[::-1], np.float64)
        # Before the first step there is one hypothesis, the start token: none has another parent.
        if parent > 0 or not np.isfinite(in_order).all():
            return None
        return make_hypothesis(tokens[::-1], in_order, None, finished, self._options)
