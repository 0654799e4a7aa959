"""One token a row at every step: greedy search and sampling.

Axes: R rows, S source, T tokens, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np

from tfexport.runtime.model.bundle_model import Floats, Model
from tfexport.runtime.options import Step
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search.logit_filters import Filters
from tfexport.runtime.search.prefill import advance, all_candidates, begin
from tfexport.runtime.search.ranking import finish
from tfexport.runtime.search.request import Request
from tfexport.runtime.search.resolved_options import ResolvedOptions
from tfexport.runtime.search.sampling import draw
from tfexport.runtime.search.topk import log_normalizer


class _Path:
    """What one row has become."""

    generator: np.random.Generator  # of a row that is sampled

    def __init__(self, request: int, sample: int, prefix: list[int], scores: list[float]) -> None:
        self.request, self.sample = request, sample
        self.tokens, self.scores = prefix, scores
        self.attention: list[Floats] = []
        self.finished = False


class PathSearch:
    """A batch of rows that grow by a token each at every step, and leave when they end.

    A row ends with an end token, at ``max_length``, where a callback says so, or where no token is
    allowed.
    """

    def __init__(self, model: Model, requests: Sequence[Request], options: ResolvedOptions) -> None:
        self._model, self._requests, self._options = model, requests, options
        samples = self._options.num_hypotheses if self._options.sampling else 1
        begun = begin(model, requests, options)
        self._filters = Filters(options, requests)
        self._candidates = all_candidates(requests)
        self._paths = [
            _Path(i, sample, [*request.prefix], begun.prefix_scores[i].tolist())
            for i, request in enumerate(requests)
            for sample in range(request.sample, request.sample + samples)
        ]
        if self._options.sampling:
            for path in self._paths:
                seed = [options.seed, requests[path.request].number, path.sample]
                path.generator = np.random.default_rng(seed)
        self._active = self._paths if begun.logits is not None else []
        self._state, self._logits, self._attention = begun.state, begun.logits, None
        rows = np.repeat(np.arange(len(requests)), samples)
        if begun.attention is not None:
            for path in self._paths:
                count = len(path.tokens)
                path.attention.extend(begun.attention[path.request, :count])
            if self._active:
                self._attention = begun.attention[rows, -1]
        if samples > 1 and begun.logits is not None:
            self._state.select(rows)
            self._logits = begun.logits[rows]

    @property
    def active(self) -> bool:
        """Whether any row still grows."""
        return bool(self._active)

    def step(self) -> list[Step]:
        """Let every active row grow by one token."""
        assert self._logits is not None
        tokens = np.array([path.tokens for path in self._active], np.int64)
        tokens = tokens.reshape(len(self._active), -1)
        self._filters.apply(self._logits, tokens, self._state.sources)
        allowed = np.isfinite(self._logits.max(-1))
        if not allowed.all():
            self._continue(allowed)
            if not self._active:
                return []
        if self._options.sampling:
            chosen = draw(self._logits, [path.generator for path in self._active], self._options)
        else:
            chosen = self._logits.argmax(-1)
        picked = np.take_along_axis(self._logits, chosen[:, None], -1)[:, 0]
        scores = picked - log_normalizer(self._logits)
        ends = self._options.ends(chosen)
        steps, going = [], np.zeros(len(chosen), bool)
        for row, path in enumerate(self._active):
            path.tokens.append(int(chosen[row]))
            path.scores.append(float(scores[row]))
            if self._attention is not None:
                path.attention.append(self._attention[row])
            path.finished = bool(ends[row])
            last = path.finished or len(path.tokens) >= self._options.max_length
            step = Step(self._requests[path.request].number, path.sample, len(path.tokens) - 1,
                        path.tokens[-1], path.scores[-1], last)  # fmt: skip
            steps.append(step)
            stop = self._options.callback is not None and bool(self._options.callback(step))
            going[row] = not (last or stop)
        if not going.all():
            self._continue(going)
            chosen = chosen[going]
        if self._active:
            logits, attention = advance(
                self._model, chosen[:, None], self._state, self._options, self._candidates
            )
            self._logits = logits[:, -1]
            self._attention = None if attention is None else attention[:, -1]
        return steps

    def _continue(self, going: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
        assert self._logits is not None
        self._active = [path for path, on in zip(self._active, going, strict=True) if on]
        if not self._active:
            return
        self._state.select(np.flatnonzero(going))
        self._logits = self._logits[going]
        if self._attention is not None:
            self._attention = self._attention[going]

    def hypotheses(self) -> list[list[Hypothesis]]:
        """For each request its hypotheses, best first, the earlier one on a tie."""
        found: list[list[Hypothesis]] = [[] for _ in self._requests]
        for path in self._paths:
            length = len(self._requests[path.request].ids)
            attention = None
            if self._options.needs_attention:
                rows = [row[:length] for row in path.attention]
                attention = np.array(rows, np.float32).reshape(len(rows), length)
            made = finish(
                path.tokens, np.array(path.scores), attention, path.finished, self._options
            )
            found[path.request].append(made)
        return [sorted(row, key=lambda made: -made.score) for row in found]
