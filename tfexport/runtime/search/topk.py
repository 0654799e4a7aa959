"""Top-k over a vocabulary without sorting it, and log-probabilities of single tokens.

Axes: R rows, V vocabulary, K best.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tfexport.runtime.model.interface import Floats, Ids

BLOCK = 64  # values whose maximum is computed in a first pass
Number = TypeVar("Number", np.float32, np.float64)


def log_normalizer(logits: Floats) -> NDArray[np.float64]:
    """(R, V) to (R,): what to subtract from a logit to get its natural-log softmax.

    -inf where no token is allowed.
    """
    top = logits.max(-1)
    safe = np.where(np.isfinite(top), top, 0)
    with np.errstate(divide="ignore"):
        log_sum = np.log(np.exp(logits - safe[:, None]).sum(-1, dtype=np.float64))
    normalizer: NDArray[np.float64] = safe + log_sum
    return normalizer


def token_log_probs(logits: Floats, tokens: Ids) -> NDArray[np.float64]:
    """Natural-log softmax of one token a row: (R, V) and (R,) to (R,)."""
    picked = np.take_along_axis(logits, tokens[:, None], -1)[:, 0]
    log_probs: NDArray[np.float64] = picked - log_normalizer(logits)
    return log_probs


def topk(values: NDArray[Number], k: int) -> tuple[Ids, NDArray[Number]]:
    """The ``k`` largest values of each row, largest first, and of equal ones the lowest ids.

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
        return ids, np.take_along_axis(values, ids, -1)
    if k >= size:
        ids = np.broadcast_to(np.arange(size), values.shape)
    else:
        ids = _any_largest(values, k)
        _settle_ties(values, ids)
    found = np.take_along_axis(values, ids, -1)
    order = np.lexsort((ids, -found), axis=-1)
    return np.take_along_axis(ids, order, -1), np.take_along_axis(found, order, -1)


def _any_largest(values: NDArray[Number], k: int) -> NDArray[np.intp]:
    """The ids of the ``k`` largest of each row, in any order, any of equal ones among them."""
    size = values.shape[-1]
    blocks = size // BLOCK
    if k * BLOCK * 4 > size:
        return np.argpartition(values, size - k, axis=-1)[:, size - k :]
    # The largest values lie in the blocks with the largest maxima: most of a vocabulary is read
    # once, and only these blocks are partitioned.
    highest = values[:, : blocks * BLOCK].reshape(len(values), blocks, BLOCK).max(-1)
    chosen = np.argpartition(highest, blocks - k, axis=-1)[:, blocks - k :]
    inside = (chosen[:, :, None] * BLOCK + np.arange(BLOCK)).reshape(len(values), -1)
    rest = np.broadcast_to(np.arange(blocks * BLOCK, size), (len(values), size - blocks * BLOCK))
    places = np.concatenate([inside, rest], axis=-1)
    found = np.take_along_axis(values, places, -1)
    best_places = np.argpartition(found, found.shape[-1] - k, axis=-1)[:, -k:]
    return np.take_along_axis(places, best_places, -1)


def _settle_ties(values: NDArray[Number], ids: NDArray[np.intp]) -> None:
    """Of values that equal the smallest chosen one, choose those with the lowest ids."""
    k = ids.shape[-1]
    smallest = np.take_along_axis(values, ids, -1).min(-1)
    for row in np.flatnonzero((values >= smallest[:, None]).sum(-1) > k):
        above = np.flatnonzero(values[row] > smallest[row])
        equal = np.flatnonzero(values[row] == smallest[row])
        ids[row] = np.concatenate([above, equal[: k - len(above)]])
