"""Search: from a model's logits to token sequences."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tfexport.runtime.model import Floats, Model
from tfexport.runtime.result import Hypothesis


def until(row: list[int], eos_id: int) -> list[int]:
    """A row of tokens up to its end token."""
    return row[: row.index(eos_id)] if eos_id in row else row


def greedy_in_one_call(
    model: Model, rows: Sequence[Sequence[int]], max_length: int, eos_id: int
) -> list[Hypothesis]:
    """What ``greedy`` gives, from a model whose graphs hold the loop: no Python runs per step."""
    found = model.generate(rows, max_length)
    return [
        Hypothesis(until(row, eos_id), score)
        for row, score in zip(found.sequences.tolist(), found.scores.tolist(), strict=True)
    ]


def greedy(
    model: Model, rows: Sequence[Sequence[int]], max_length: int, bos_id: int, eos_id: int
) -> list[Hypothesis]:
    """Decode rows of source ids, none of them empty, taking the best token at every step.

    The best token is the argmax of the logits, the lowest id on a tie. A row ends with ``eos_id``
    or after ``max_length`` tokens, and then leaves the batch.
    """
    tokens: list[list[int]] = [[] for _ in rows]
    log_probs = np.zeros(len(rows))
    steps = np.zeros(len(rows), np.int64)
    active = np.arange(len(rows))
    state = model.encode(rows) if max_length > 0 else None
    best = np.full(len(rows), bos_id, np.int64)
    for _ in range(max_length):
        assert state is not None
        logits = model.step(best[:, None], state)[:, -1]
        best = logits.argmax(-1)
        log_probs[active] += _log_probability(logits, best)
        steps[active] += 1
        going = best != eos_id
        for row, token in zip(active[going], best[going], strict=True):
            tokens[row].append(int(token))
        if not going.all():
            active, best = active[going], best[going]
            if not active.size:
                break
            state.keep(np.flatnonzero(going))
    scores = log_probs / np.maximum(steps, 1)
    return [Hypothesis(row, float(score)) for row, score in zip(tokens, scores, strict=True)]


def _log_probability(logits: Floats, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
    """(B, V) and (B,) to (B,): the natural-log softmax at the chosen ids."""
    top = logits.max(-1, keepdims=True)
    log_sum = np.log(np.exp(logits - top).sum(-1, dtype=np.float64))
    picked = np.take_along_axis(logits, chosen[:, None], -1)[:, 0]
    result: NDArray[np.float64] = picked - top[:, 0] - log_sum
    return result
