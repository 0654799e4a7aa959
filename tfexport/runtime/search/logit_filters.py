"""Logit filters: penalties and bans that act on logits before they become probabilities.

Axes: R rows, T tokens so far, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tfexport.runtime.model.bundle_model import Floats, Ids
from tfexport.runtime.search.request import Request
from tfexport.runtime.search.resolved_options import ResolvedOptions


class LogitFilters:
    """All filters that the options ask for, in the order in which they act."""

    def __init__(self, options: ResolvedOptions, requests: Sequence[Request]) -> None:
        self._options = options
        self._candidates = [request.candidates for request in requests]
        self._limited = any(candidates is not None for candidates in self._candidates)

    def apply(self, logits: Floats, tokens: Ids, requests: NDArray[np.intp]) -> None:
        """Change logits in place; a token that is banned gets -inf.

        Args:
            logits: (R, V).
            tokens: (R, T), tokens so far, without the start token.
            requests: (R,), which request each row belongs to.
        """
        options, length = self._options, tokens.shape[1]
        if options.repetition_penalty != 1 and length:
            _penalize(logits, tokens, options.repetition_penalty)
        if self._options.suppress_tokens:
            logits[:, list(self._options.suppress_tokens)] = -np.inf
        if length < options.min_length:
            logits[:, list(self._options.end_tokens)] = -np.inf
        if options.no_repeat_ngram_size and length >= options.no_repeat_ngram_size:
            _ban_repeated(logits, tokens, options.no_repeat_ngram_size)
        for sequence in self._options.suppress_sequences:
            _ban_completion(logits, tokens, sequence)
        if self._limited:
            self._keep_candidates(logits, requests)

    def _keep_candidates(self, logits: Floats, requests: NDArray[np.intp]) -> None:
        """Ban tokens outside the shortlist of a row."""
        for row, request in enumerate(requests):
            candidates = self._candidates[request]
            if candidates is not None:
                kept = logits[row, candidates]
                logits[row] = -np.inf
                logits[row, candidates] = kept


def _penalize(logits: Floats, tokens: Ids, penalty: float) -> None:
    """Repetition penalty: make tokens that a row holds less likely (Keskar et al. 2019)."""
    # A token that came twice is penalised once: the same value is written twice.
    found = np.take_along_axis(logits, tokens, -1)
    changed = np.where(found > 0, found / penalty, found * penalty)
    np.put_along_axis(logits, tokens, changed.astype(logits.dtype), -1)


def _ban_repeated(logits: Floats, tokens: Ids, size: int) -> None:
    """Ban tokens that would complete an n-gram of ``size`` tokens which a row holds already."""
    ngrams = sliding_window_view(tokens, size, axis=1)
    tail = tokens[:, tokens.shape[1] - size + 1 :]
    rows, places = np.nonzero((ngrams[:, :, :-1] == tail[:, None]).all(-1))
    logits[rows, ngrams[rows, places, -1]] = -np.inf


def _ban_completion(logits: Floats, tokens: Ids, sequence: tuple[int, ...]) -> None:
    """Ban the last token of a sequence in rows that end with the tokens before it."""
    *before, last = sequence
    if len(before) <= tokens.shape[1]:
        tail = tokens[:, tokens.shape[1] - len(before) :]
        logits[(tail == before).all(-1), last] = -np.inf
