"""Logits: penalties, bans, log-probabilities and the top k.

Axes: R rows, T tokens so far, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tfexport.runtime.model.interface import Floats, Ids
from tfexport.runtime.search.request import LogitRule, Request, ResolvedOptions


class LogitFilters:
    """All filters of the options, in the order in which they act."""

    def __init__(self, options: ResolvedOptions, requests: Sequence[Request]) -> None:
        self._options = options
        self._candidates = [request.candidates for request in requests]
        self._limited = any(candidates is not None for candidates in self._candidates)
        self._first = len(requests[0].prefix) if requests else 0  # prefixes are equally long
        size = options.encoder_no_repeat_ngram_size
        self._rules = _rows_of_rules(requests)
        self._of_source = [continuations(row.source_ids, size) for row in requests] if size else []

    @property
    def idle(self) -> bool:
        """Whether no option in use changes any logits, except at the greatest length."""
        options = self._options
        return (
            options.repetition_penalty == 1
            and not options.no_repeat_ngram_size
            and not options.encoder_no_repeat_ngram_size
            and not options.suppress_sequences
            and not options.min_length
            and not options.suppress_tokens
            and not options.suppress_first_tokens
            and not self._limited
            and not self._rules
        )

    def apply(self, logits: Floats, tokens: Ids, requests: NDArray[np.intp]) -> None:
        """Change logits in place; a token that is banned gets -inf.

        Args:
            logits: (R, V).
            tokens: (R, T), tokens so far, without the start token.
            requests: (R,), which request each row belongs to.
        """
        options, length = self._options, tokens.shape[1]
        seen = tokens
        if options.by_transformers:
            seen = np.concatenate([np.full_like(tokens, options.bos_id, shape=(len(tokens), 1)),
                                   tokens], axis=1)  # fmt: skip
        if options.repetition_penalty != 1 and seen.shape[1]:
            _penalize(logits, seen, options.repetition_penalty)
        if options.no_repeat_ngram_size and seen.shape[1] >= options.no_repeat_ngram_size:
            _ban_repeated(logits, seen, options.no_repeat_ngram_size)
        if options.encoder_no_repeat_ngram_size:
            self._ban_of_source(logits, seen, requests)
        for sequence in options.suppress_sequences:
            _ban_completion(logits, tokens, sequence)
        if length < options.min_length:
            logits[:, list(options.end_tokens)] = -np.inf
        # A forced token overrides all bans except those below, which are the same for every row and
        # length.
        if options.last_token is not None and length == options.max_length - 1:
            logits[:] = -np.inf
            logits[:, options.last_token] = 0
        if options.suppress_tokens:
            logits[:, list(options.suppress_tokens)] = -np.inf
        if options.suppress_first_tokens and length == self._first:
            logits[:, list(options.suppress_first_tokens)] = -np.inf
        self.keep_candidates(logits, requests)
        self._apply_rules(logits, tokens, requests)

    def apply_in_beam(
        self,
        logits: Floats,
        tokens: Ids,
        requests: NDArray[np.intp],
        normalizer: Callable[[Floats], NDArray[np.float64]],
    ) -> bool:
        """Change logits as a beam search does; see ``apply``.

        Returns:
            Whether they have to be normalised to be log-probabilities.
        """
        by_transformers = self._options.by_transformers
        if by_transformers:  # there penalties and bans act on log-probabilities
            # A shortlist is no ban: probabilities are normalised over the row's candidates.
            self.keep_candidates(logits, requests)
            logits -= normalizer(logits)[:, None].astype(logits.dtype)
        self.apply(logits, tokens, requests)
        return not by_transformers or self._options.renormalize_logits

    def _apply_rules(self, logits: Floats, tokens: Ids, requests: NDArray[np.intp]) -> None:
        """Have the rules of rows act; see ``apply``."""
        for rule, ruled in self._rules:
            rows = np.flatnonzero(ruled[requests])
            if len(rows) == len(requests):
                rule(logits, tokens)
            elif len(rows):
                part = logits[rows]
                rule(part, tokens[rows])
                logits[rows] = part

    def _ban_of_source(self, logits: Floats, seen: Ids, requests: NDArray[np.intp]) -> None:
        """Ban tokens that would complete an n-gram of the row's source."""
        before = self._options.encoder_no_repeat_ngram_size - 1
        if seen.shape[1] < before:
            return
        for row, request in enumerate(requests):
            tail = tuple(seen[row, seen.shape[1] - before :].tolist())
            # A source may hold ids that the target vocabulary does not have.
            banned = [i for i in self._of_source[request].get(tail, []) if i < logits.shape[1]]
            logits[row, banned] = -np.inf

    def keep_candidates(self, logits: Floats, requests: NDArray[np.intp]) -> None:
        """Ban tokens outside the shortlist of a row; see ``apply``."""
        if not self._limited:
            return
        for row, request in enumerate(requests):
            candidates = self._candidates[request]
            if candidates is not None:
                kept = logits[row, candidates]
                logits[row] = -np.inf
                logits[row, candidates] = kept


def _rows_of_rules(requests: Sequence[Request]) -> list[tuple[LogitRule, NDArray[np.bool_]]]:
    """Each rule, and which requests have it."""
    rules: list[LogitRule] = []
    for request in requests:
        if request.rule is not None and request.rule not in rules:
            rules.append(request.rule)
    return [(rule, np.array([request.rule == rule for request in requests])) for rule in rules]


def continuations(ids: Sequence[int], size: int) -> dict[tuple[int, ...], list[int]]:
    """Map each ``size`` - 1 successive ids to the ids that follow them."""
    found: dict[tuple[int, ...], list[int]] = {}
    for start in range(len(ids) - size + 1):
        *before, last = ids[start : start + size]
        found.setdefault(tuple(before), []).append(last)
    return found


def _penalize(logits: Floats, tokens: Ids, penalty: float) -> None:
    """Repetition penalty: make earlier tokens of a row less likely (Keskar et al. 2019)."""
    # A token that came twice is penalised once: the same value is written twice.
    found = np.take_along_axis(logits, tokens, -1)
    changed = np.where(found > 0, found / penalty, found * penalty)
    np.put_along_axis(logits, tokens, changed.astype(logits.dtype), -1)


def _ban_repeated(logits: Floats, tokens: Ids, size: int) -> None:
    """Ban tokens that would repeat an n-gram of ``size`` tokens."""
    ngrams = sliding_window_view(tokens, size, axis=1)
    tail = tokens[:, tokens.shape[1] - size + 1 :]
    rows, indices = np.nonzero((ngrams[:, :, :-1] == tail[:, None]).all(-1))
    logits[rows, ngrams[rows, indices, -1]] = -np.inf


def _ban_completion(logits: Floats, tokens: Ids, sequence: tuple[int, ...]) -> None:
    """Ban the last token of a sequence in rows that end with the tokens before it."""
    *before, last = sequence
    if len(before) <= tokens.shape[1]:
        tail = tokens[:, tokens.shape[1] - len(before) :]
        logits[(tail == before).all(-1), last] = -np.inf


# Axes: R rows, V vocabulary, K best.


LOGITS_AT_ONCE = 1 << 25  # 128 MB; of longer targets a part at a time is computed
BLOCK = 64  # values of a block, whose largest is found first
Number = TypeVar("Number", np.float32, np.float64)
Scalar = TypeVar("Scalar", bound=np.generic)


def log_normalizer(logits: Floats) -> NDArray[np.float64]:
    """(R, V) to (R,): the value to subtract from a logit for its natural-log softmax.

    -inf where no token is allowed.
    """
    top = logits.max(-1)
    safe = np.where(np.isfinite(top), top, 0)
    exponentials = logits - safe[:, None]
    np.exp(exponentials, out=exponentials)
    with np.errstate(divide="ignore"):
        log_sum = np.log(exponentials.sum(-1, dtype=np.float64))
    normalizer: NDArray[np.float64] = safe + log_sum
    return normalizer


def token_log_probs(logits: Floats, tokens: Ids) -> NDArray[np.float64]:
    """Natural-log softmax of one token a row: (R, V) and (R,) to (R,)."""
    picked = np.take_along_axis(logits, tokens[:, None], -1)[:, 0]
    log_probs: NDArray[np.float64] = picked - log_normalizer(logits)
    return log_probs


def along(values: NDArray[Scalar], places: NDArray[np.intp]) -> NDArray[Scalar]:
    """The values (R, K) of rows (R, V) at places (R, K), as ``np.take_along_axis``, but faster."""
    found: NDArray[Scalar] = values[np.arange(len(values))[:, None], places]
    return found


def topk(values: NDArray[Number], k: int) -> tuple[Ids, NDArray[Number]]:
    """The ``k`` largest values of each row, largest first; on a tie the lowest ids.

    Args:
        values: (R, V).
        k: from 1 to V.

    Returns:
        ids: (R, K).
        values: (R, K).
    """
    size = values.shape[-1]
    if k == 1:
        ids = values.argmax(-1)[:, None]
        return ids, along(values, ids)
    ids = np.broadcast_to(np.arange(size), values.shape) if k >= size else _largest(values, k)
    found = along(values, ids)
    order = np.lexsort((ids, -found), axis=-1)
    return along(ids, order), along(found, order)


def _largest(values: NDArray[Number], k: int) -> NDArray[np.intp]:
    """The ids of the ``k`` largest values of each row, in any order; on a tie the lowest ids."""
    size = values.shape[-1]
    blocks = size // BLOCK
    if k * BLOCK * 4 > size:
        ids = np.argpartition(values, size - k, axis=-1)[:, size - k :]
        return _settle_ties(values, ids, values)
    # The largest values are in the blocks with the largest maxima, so only these are partitioned.
    # The values of a block lie `blocks` apart, so that maxima of all are taken value by value.
    highest = values[:, : blocks * BLOCK].reshape(len(values), BLOCK, blocks).max(1)
    chosen = np.argpartition(highest, blocks - k, axis=-1)[:, blocks - k :]
    inside = (chosen[:, :, None] + np.arange(BLOCK) * blocks).reshape(len(values), -1)
    rest = np.broadcast_to(np.arange(blocks * BLOCK, size), (len(values), size - blocks * BLOCK))
    indices = np.concatenate([inside, rest], axis=-1)
    found = along(values, indices)
    best = np.argpartition(found, found.shape[-1] - k, axis=-1)[:, -k:]
    # Values that tie with the smallest are among these, or in another block with such a maximum.
    return _settle_ties(values, along(indices, best), found, highest)


def _settle_ties(
    values: NDArray[Number], ids: NDArray[np.intp], *places: NDArray[Number]
) -> NDArray[np.intp]:
    """Among values equal to the smallest chosen one, choose the lowest ids.

    Rows with more than k such values, or larger ones, in one of ``places`` are looked at.
    """
    k = ids.shape[-1]
    smallest = along(values, ids).min(-1)
    tied = [(place >= smallest[:, None]).sum(-1) > k for place in places]
    for row in np.flatnonzero(np.any(tied, axis=0)):
        above = np.flatnonzero(values[row] > smallest[row])
        equal = np.flatnonzero(values[row] == smallest[row])
        ids[row] = np.concatenate([above, equal[: k - len(above)]])
    return ids
