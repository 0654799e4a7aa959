"""Attention of finished rows, by models that give none at each step.

Axes: T tokens, S source.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tfexport.runtime.model.interface import Floats, Model
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search.request import Request, ResolvedOptions

Decode = Callable[[Model, Sequence[Request], ResolvedOptions], list[list[Hypothesis]]]


def decode_attended(
    model: Model, requests: Sequence[Request], options: ResolvedOptions, decode: Decode
) -> list[list[Hypothesis]]:
    """Decode rows without attention, and then add that of their tokens; see ``decode``.

    Args:
        model: it has ``alignment``.
        requests: with the ids of their sources.
        options: they need attention.
        decode: of options that need none.
    """
    found = decode(model, requests, options.without_attention())
    return [
        [replace(made, attention=_attention(model, request, made, options)) for made in row]
        for request, row in zip(requests, found, strict=True)
    ]


def _attention(
    model: Model, request: Request, made: Hypothesis, options: ResolvedOptions
) -> Floats:
    """The attention (T, S) by which each token was chosen."""
    if not made.tokens:
        return np.zeros((0, request.length), np.float32)
    ids = [options.bos_id, *made.tokens[:-1]]
    weights = model.alignment(request.source, ids, options.attention_heads)
    mean: Floats = weights.mean(0)
    return mean
