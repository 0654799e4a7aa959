"""Alternatives: the most probable tokens after a prefix, each with its best continuation.

Axes: B batch, N alternatives, V vocabulary.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tfexport.runtime.model.interface import Ids, Model
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search.batch import Prefilled, prefill
from tfexport.runtime.search.logits import LogitFilters, log_normalizer, topk
from tfexport.runtime.search.ranking import make_hypothesis
from tfexport.runtime.search.request import Request, ResolvedOptions

Decode = Callable[[Model, Sequence[Request], ResolvedOptions], list[list[Hypothesis]]]


def decode_alternatives(
    model: Model, requests: Sequence[Request], options: ResolvedOptions, decode: Decode
) -> list[list[Hypothesis]]:
    """Make branches after the prefix of each row, and decode each branch.

    Args:
        model: the model that decodes.
        requests: the rows; their prefixes are equally long.
        options: how many branches, and how to decode them.
        decode: decodes a batch of branches, each a row with a longer prefix.

    Returns:
        For each row its alternatives, likeliest first token first; at least one.
    """
    # The first token is scored as part of the prefix: with the unfiltered probability.
    prefilled = prefill(model, requests, options, full_vocabulary=True)
    # ``given`` still names the alternatives, so that branches are decoded stepwise.
    inner = dataclasses.replace(
        options, return_alternatives=False, min_alternative_probability=0.0, num_hypotheses=1,
    )  # fmt: skip
    if prefilled.logits is None:
        return decode(model, requests, inner)
    log_probs = prefilled.logits - log_normalizer(prefilled.logits)[:, None]
    ids, kept = _first_tokens(prefilled, requests, options)

    results: list[list[Hypothesis]] = [[] for _ in requests]
    # The first token of a branch is chosen already.
    inner = dataclasses.replace(inner, suppress_first_tokens=())
    branches: list[Request] = []
    slots: list[tuple[int, int]] = []  # row of each branch, and index among its alternatives
    for row, rank in np.argwhere(kept):
        request, token = requests[row], int(ids[row, rank])
        if token in options.end_tokens:
            score = float(log_probs[row, token])
            results[row].append(_ended(prefilled, request, row, token, score, options))
            continue
        prefix = (*request.prefix, token)
        branches.append(dataclasses.replace(request, prefix=prefix, sample=int(rank)))
        slots.append((int(row), len(results[row])))
        results[row].append(Hypothesis([], 0.0))  # until the branch is decoded
    size = max(1, len(requests))
    for start in range(0, len(branches), size):
        found = decode(model, branches[start : start + size], inner)
        for (row, place), made in zip(slots[start:], found, strict=False):
            results[row][place] = made[0]
    for row, alternatives in enumerate(results):
        if not alternatives:  # no token is allowed
            results[row] = decode(model, [requests[row]], inner)[0]
    return results


def _first_tokens(
    prefilled: Prefilled, requests: Sequence[Request], options: ResolvedOptions
) -> tuple[Ids, NDArray[np.bool_]]:
    """The best tokens of each row (B, N) after all filters, and which are probable enough."""
    logits = prefilled.logits
    assert logits is not None
    LogitFilters(options, requests).apply(logits, prefilled.prefix, np.arange(len(requests)))
    ids, values = topk(logits, min(options.num_hypotheses, logits.shape[-1]))
    with np.errstate(invalid="ignore"):
        probabilities = np.exp(values - log_normalizer(logits)[:, None])
    # The best one is always kept.
    kept = np.isfinite(values) & (probabilities >= options.min_alternative_probability)
    kept[:, 0] = np.isfinite(values[:, 0])
    return ids, kept


def _ended(
    prefilled: Prefilled,
    request: Request,
    row: int,
    token: int,
    score: float,
    options: ResolvedOptions,
) -> Hypothesis:
    """The alternative whose first token is an end token."""
    attention = None
    if prefilled.attention is not None:
        attention = prefilled.attention[row][:, : len(request.ids)]
    scores = np.append(prefilled.prefix_scores[row], score)
    uncounted = options.uncounted(request.prefix)
    return make_hypothesis([*request.prefix, token], scores, attention, True, options, uncounted)
