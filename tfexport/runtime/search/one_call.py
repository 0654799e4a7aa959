"""Beam search from a graph's record of it: what ``BeamSearch`` gives, without Python in every step.

Axes: T steps, B sentences, K hypotheses followed, N = 2 K candidates of a step, best first.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from tfexport.runtime.model.bundle_model import BeamRecord, Model
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search.ranking import enough_hypotheses, finish
from tfexport.runtime.search.request import Request
from tfexport.runtime.search.resolved_options import ResolvedOptions


def beam_in_one_call(
    model: Model, requests: Sequence[Request], options: ResolvedOptions
) -> list[list[Hypothesis]]:
    """For each request its hypotheses, best first.

    Args:
        model: with a beam graph.
        requests: without prefixes and candidates.
        options: of which ``fits_beam_graph`` holds.
    """
    enough = enough_hypotheses(options)
    rows = [request.ids for request in requests]
    record = model.beam(rows, options.beam_size, enough, options.max_length)
    found = _Replay(record, options.beam_size, options)
    return [found.hypotheses(sentence, enough) for sentence in range(len(requests))]


class _Replay:
    """A record, and the way back through it."""

    def __init__(self, record: BeamRecord, width: int, options: ResolvedOptions) -> None:
        self._width, self._options = width, options
        self._ends = options.ends(record.tokens)
        # Place k holds which candidate hypothesis k of the next step is.
        self._followed = np.argsort(self._ends, axis=-1, kind="stable")[..., :width].tolist()
        self._tokens = record.tokens.tolist()
        self._parents = record.parents.tolist()
        self._log_probs = record.log_probs

    def hypotheses(self, sentence: int, enough: int) -> list[Hypothesis]:
        """What one sentence finished until it had enough, best first."""
        found = []
        for step, ranks in self._complete(sentence):
            traced = [self._trace(sentence, step, rank) for rank in ranks]
            found += [made for made in traced if made is not None]
            if len(found) >= enough:
                break
        # Of equal ones the one that was finished first.
        found.sort(key=lambda made: -made.score)
        return found[: self._options.num_hypotheses]

    def _complete(self, sentence: int) -> Iterator[tuple[int, list[int]]]:
        """Which candidates of each step end, or are at their full length."""
        for step, ends in enumerate(self._ends[:, sentence, : self._width]):
            last = step + 1 >= self._options.max_length
            yield step, [rank for rank, end in enumerate(ends) if end or last]

    def _trace(self, sentence: int, step: int, rank: int) -> Hypothesis | None:
        """The hypothesis that a candidate completes; None if it stands for none."""
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
        every = np.array(scores[::-1], np.float64)
        if parent > 0 or not np.isfinite(every).all():  # at first there is one hypothesis
            return None
        return finish(tokens[::-1], every, None, finished, self._options)
