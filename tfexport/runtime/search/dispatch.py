"""Which search a batch takes."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from tfexport.runtime.model.bundle_model import Model
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search.beam import BeamSearch
from tfexport.runtime.search.logit_filters import Filters
from tfexport.runtime.search.one_call import beam_in_one_call
from tfexport.runtime.search.plain import greedy_in_one_call
from tfexport.runtime.search.prefill import begin
from tfexport.runtime.search.ranking import finish
from tfexport.runtime.search.request import Request
from tfexport.runtime.search.resolved_options import ResolvedOptions
from tfexport.runtime.search.stepwise import PathSearch
from tfexport.runtime.search.topk import best, log_normalizer


def decode(
    model: Model, requests: Sequence[Request], options: ResolvedOptions
) -> list[list[Hypothesis]]:
    """Decode one batch of rows whose prefixes are equally long.

    Returns:
        For each row its hypotheses, best first; at least one.
    """
    found = _search(model, requests, options)
    if options.return_scores:
        return found
    return [[dataclasses.replace(made, score=math.nan) for made in row] for row in found]


def _search(
    model: Model, requests: Sequence[Request], options: ResolvedOptions
) -> list[list[Hypothesis]]:
    if options.return_alternatives:
        return _alternatives(model, requests, options)
    plain = all(not row.prefix and row.candidates is None for row in requests)
    if options.beam_size > 1:
        # Of twice as many candidates half are left when all that can end have ended.
        enough_tokens = 2 * options.beam_size <= model.vocab_size
        if model.has_beam and options.fits_beam_graph and plain and enough_tokens:
            return beam_in_one_call(model, requests, options)
        return BeamSearch(model, requests, options).run()
    if model.has_generate and options.fits_greedy_graph and plain:
        rows = [row.ids for row in requests]
        (end,) = options.end_tokens
        found = greedy_in_one_call(model, rows, options.max_length, end, options)
        return [[made] for made in found]
    search = PathSearch(model, requests, options)
    while search.active:
        search.step()
    return search.hypotheses()


def _alternatives(
    model: Model, requests: Sequence[Request], options: ResolvedOptions
) -> list[list[Hypothesis]]:
    """The best tokens behind the prefix, likeliest first, each with its best continuation."""
    # The first token counts as a prefix does: with the model's own probability.
    begun = begin(model, requests, options, whole_vocabulary=True)
    inner = dataclasses.replace(
        options, return_alternatives=False, min_alternative_probability=0.0, num_hypotheses=1
    )
    if begun.logits is None:
        return decode(model, requests, inner)
    log_probs = begun.logits - log_normalizer(begun.logits)[:, None]
    Filters(options, requests).apply(begun.logits, begun.prefix, np.arange(len(requests)))
    ids, values = best(begun.logits, min(options.num_hypotheses, begun.logits.shape[-1]))
    with np.errstate(invalid="ignore"):
        probabilities = np.exp(values - log_normalizer(begun.logits)[:, None])
    # The best one stays, whatever its probability.
    kept = np.isfinite(values) & (probabilities >= options.min_alternative_probability)
    kept[:, 0] = np.isfinite(values[:, 0])

    results: list[list[Hypothesis]] = [[] for _ in requests]
    longer: list[Request] = []
    slots: list[tuple[int, int]] = []
    for row, rank in np.argwhere(kept):
        token = int(ids[row, rank])
        results[row].append(Hypothesis([], 0.0))
        if token in options.end_tokens:
            attention = None if begun.attention is None else begun.attention[row]
            if attention is not None:
                attention = attention[:, : len(requests[row].ids)]
            results[row][-1] = finish(
                [*requests[row].prefix, token],
                np.append(begun.prefix_scores[row], log_probs[row, token]),
                attention,
                True,
                options,
            )
            continue
        prefix = (*requests[row].prefix, token)
        longer.append(dataclasses.replace(requests[row], prefix=prefix, sample=int(rank)))
        slots.append((int(row), len(results[row]) - 1))
    size = max(1, len(requests))
    for start in range(0, len(longer), size):
        part = longer[start : start + size]
        found = decode(model, part, inner)
        for (row, place), made in zip(slots[start:], found, strict=False):
            results[row][place] = made[0]
    for row, found_row in enumerate(results):
        if not found_row:  # no token is allowed
            results[row] = decode(model, [requests[row]], inner)[0]
    return results
