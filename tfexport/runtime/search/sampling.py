"""Draws from a distribution that temperature, top-k and top-p shape.

Axes: R rows, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tfexport.runtime.model.bundle_model import Floats, Ids
from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.search.topk import topk

Doubles = NDArray[np.float64]
_FLOAT32 = np.finfo(np.float32)


def draw(
    logits: Floats, generators: Sequence[np.random.Generator], options: DecodingOptions
) -> Ids:
    """One token a row: (R, V) to (R,).

    Temperature acts first, then top-k, then top-p. Each row takes one number from its own
    generator, so its draws do not depend on the other rows of the batch.
    """
    numbers = np.array([generator.random() for generator in generators])
    scaled = _scale(logits, options.temperature)
    size = logits.shape[-1]
    if options.top_k or options.top_p < 1:
        return _draw_from_best(scaled, numbers, options.top_k or size, options.top_p)
    return _invert(np.exp(scaled).astype(np.float64), numbers)


def _scale(logits: Floats, temperature: float) -> Floats:
    """Logits over temperature, the best of each row at 0; banned tokens stay at -inf."""
    # The divisor has to stay finite and positive in float32.
    divisor = np.clip(temperature, _FLOAT32.tiny, _FLOAT32.max).astype(np.float32)
    with np.errstate(over="ignore"):  # an overflow gives -inf: probability 0
        scaled: Floats = (logits - logits.max(-1, keepdims=True)) / divisor
    return scaled


def _draw_from_best(scaled: Floats, numbers: Doubles, top_k: int, top_p: float) -> Ids:
    size = scaled.shape[-1]
    top_k = min(top_k, size)
    # Few tokens hold most of the probability: look at more only where they do not.
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
            # The best token stays whatever top_p is.
            weights[:, 0] = 1
            break
        count = min(4 * count, top_k)
    # By id: rounding, which differs with the batch, may change the order of close probabilities.
    order = np.argsort(ids, axis=-1)
    ids, weights = np.take_along_axis(ids, order, -1), np.take_along_axis(weights, order, -1)
    return np.take_along_axis(ids, _invert(weights, numbers)[:, None], -1)[:, 0]


def _invert(weights: Doubles, numbers: Doubles) -> Ids:
    """Numbers from [0, 1) to indices, each as often as its share of the weights says."""
    sums = np.cumsum(weights, -1)
    drawn = (sums <= numbers[:, None] * sums[:, -1:]).sum(-1)
    # Rounding may put a number at the very end, behind the last index that weighs anything.
    last = weights.shape[-1] - 1 - (weights[:, ::-1] > 0).argmax(-1)
    chosen: Ids = np.minimum(drawn, last)
    return chosen
