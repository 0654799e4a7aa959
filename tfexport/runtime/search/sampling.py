"""Draws from a distribution that temperature, top-k and top-p shape.

Axes: R rows, V vocabulary.
"""

from __future__ import annotations  # numpy.random takes 3 MB, and only sampling needs it

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tfexport.runtime.model.interface import Floats, Ids
from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.search.topk import topk

Doubles = NDArray[np.float64]
_FLOAT32 = np.finfo(np.float32)


def draw(
    logits: Floats, generators: Sequence[np.random.Generator], options: DecodingOptions
) -> Ids:
    """One token a row: (R, V) to (R,).

    Temperature acts first, then top-k, then top-p. Every token has a waiting time from the row's
    generator, and the token with the most weight for its time is drawn: rounding, which differs
    with the batch, changes a draw only where two tokens are as good as equal.
    Source: the exponential race; with logarithms Gumbel-max, Maddison et al. 2014.
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
    return ids, weights
