"""Attention of chosen heads over given tokens, by models that give that of all heads."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfexport.runtime.model.interface import Floats, Model

_POSITIONS = 32  # of which attention is computed at a time: it has all heads of all layers


def attend_heads(
    model: Model, row: Any, ids: Sequence[int], heads: Sequence[Sequence[int]]
) -> Floats:
    """See ``Model.alignment``: by ``Model.attend``."""
    layers, numbers = zip(*heads, strict=True)
    state, parts = model.encode([row]), []
    none = np.zeros(0, np.int64) if model.has_shortlist else None  # logits are not needed
    for at in range(0, len(ids), _POSITIONS):
        tokens = np.array([ids[at : at + _POSITIONS]], np.int64)
        _, weights = model.attend(tokens, state, none)
        parts.append(weights[0, list(layers), list(numbers)])
    return np.concatenate(parts, axis=1)


def no_logits(shape: tuple[int, ...]) -> Floats:
    """Logits without candidates, -inf each; they take no memory and cannot be written to."""
    return np.broadcast_to(np.float32(-np.inf), shape)
