"""The best of a vocabulary, without sorting it.

Axes: R rows, V vocabulary, K candidates.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tfexport.runtime.model import Floats, Ids

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


def best(values: NDArray[Number], count: int) -> tuple[Ids, NDArray[Number]]:
    """The ``count`` largest values of each row, largest first, and of equal ones the lowest ids.

    Args:
        values: (R, V).
        count: K, from 1 to V.

    Returns:
        ids: (R, K).
        values: (R, K).
    """
    size = values.shape[-1]
    if count == 1:
        ids = values.argmax(-1)[:, None]
        return ids, np.take_along_axis(values, ids, -1)
    if count >= size:
        ids = np.broadcast_to(np.arange(size), values.shape)
    else:
        ids = np.argpartition(values, size - count, axis=-1)[:, size - count :]
        _settle_ties(values, ids)
    found = np.take_along_axis(values, ids, -1)
    order = np.lexsort((ids, -found), axis=-1)
    return np.take_along_axis(ids, order, -1), np.take_along_axis(found, order, -1)


def _settle_ties(values: NDArray[Number], ids: NDArray[np.intp]) -> None:
    """Where more values equal the smallest chosen one, choose the lowest ids among them."""
    count = ids.shape[-1]
    smallest = np.take_along_axis(values, ids, -1).min(-1)
    for row in np.flatnonzero((values >= smallest[:, None]).sum(-1) > count):
        above = np.flatnonzero(values[row] > smallest[row])
        equal = np.flatnonzero(values[row] == smallest[row])
        ids[row] = np.concatenate([above, equal[: count - len(above)]])
