"""Scoring: the log-probabilities of given targets, by teacher forcing.

Axes: B batch, S source, T target, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np

from tfexport.runtime.model.interface import Floats, Model
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search.batch import advance
from tfexport.runtime.search.logits import token_log_probs
from tfexport.runtime.search.ranking import make_hypothesis
from tfexport.runtime.search.request import ResolvedOptions

LOGITS_AT_ONCE = 1 << 25  # 128 MB of logits; longer targets are scored in parts


def score_targets(
    model: Model,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    options: ResolvedOptions,
    vocab_size: int,
) -> list[Hypothesis]:
    """Score one batch.

    Args:
        model: the model of the bundle.
        sources: ids as the encoder takes them, none empty.
        targets: ids without the start token, with the end token if it is to be scored.
        options: length and coverage penalty, and what to return; logit filters have no effect.
        vocab_size: V.
    """
    state = model.encode(sources)
    longest = max(len(target) for target in targets)
    given = np.full((len(targets), longest + 1), options.bos_id, np.int64)
    for row, target in enumerate(targets):
        given[row, 1 : len(target) + 1] = target
    width = max(1, LOGITS_AT_ONCE // (len(targets) * vocab_size))
    scores = np.zeros((len(targets), longest))
    attention: list[Floats] = []
    for start in range(0, longest, width):
        part = given[:, start : min(start + width, longest)]
        logits, weights = advance(model, part, state, options)
        if weights is not None:
            attention.append(weights)
        for i in range(part.shape[1]):
            scores[:, start + i] = token_log_probs(logits[:, i], given[:, start + i + 1])
    attended = np.concatenate(attention, axis=1) if attention else None
    return [
        make_hypothesis(
            list(target),
            scores[row, : len(target)],
            None if attended is None else attended[row, : len(target), : len(sources[row])],
            bool(target) and target[-1] in options.end_tokens,
            options,
        )
        for row, target in enumerate(targets)
    ]
