"""Choosing the search of a batch by its options and the graphs of the model.

Searches are imported when they are first needed: a process decodes its first sentence sooner.
"""

import dataclasses
import math
from collections.abc import Sequence

from tfexport.runtime.model.interface import Model, NoTokenError
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search.batch import Choice, Prefixes
from tfexport.runtime.search.graph_search import (
    beam_in_one_call,
    greedy_in_one_call,
    starts_alike,
)
from tfexport.runtime.search.request import Request, ResolvedOptions
from tfexport.runtime.search.stepwise import StepwiseChoice, StepwiseSearch


def decode(
    model: Model, requests: Sequence[Request], options: ResolvedOptions
) -> list[list[Hypothesis]]:
    """Decode one batch of rows whose prefixes are equally long.

    Returns:
        For each row its hypotheses, best first; at least one.

    Raises:
        AbandonedError: ``options.going`` returned false.
    """
    if options.needs_attention and not model.has_attention:
        from tfexport.runtime.search.attended import decode_attended  # noqa: PLC0415

        found = decode_attended(model, requests, options, decode)
    elif any(request.required is not None for request in requests):
        from tfexport.runtime.search.constrained import decode_constrained  # noqa: PLC0415

        found = decode_constrained(model, requests, options, _search)
    elif options.return_alternatives:
        from tfexport.runtime.search.alternatives import decode_alternatives  # noqa: PLC0415

        found = decode_alternatives(model, requests, options, decode)
    else:
        found = _search(model, requests, options)
    if options.return_scores:
        return found
    return [[dataclasses.replace(made, score=math.nan) for made in row] for row in found]


def make_choice(
    requests: Sequence[Request], options: ResolvedOptions, prefixes: Prefixes
) -> Choice:
    """Make the search of rows that are decoded step by step, without alternatives."""
    if options.beam_size == 1:
        return StepwiseChoice(requests, options, prefixes)
    from tfexport.runtime.search.beam import BeamChoice  # noqa: PLC0415

    return BeamChoice(requests, options, prefixes)


def _search(
    model: Model, requests: Sequence[Request], options: ResolvedOptions
) -> list[list[Hypothesis]]:
    unconstrained = starts_alike(requests, options)
    if options.beam_size > 1:
        found = _beam_in_one_call(model, requests, options) if unconstrained else None
        if found is not None:
            return found
        from tfexport.runtime.search.beam import BeamSearch  # noqa: PLC0415

        return BeamSearch(model, requests, options).run()
    if model.has_generate and options.fits_greedy_of(model) and unconstrained:
        rows = [row.source for row in requests]
        most, end = options.max_length, options.eos_id
        made = greedy_in_one_call(model, rows, most, end, options, options.going)
        return [[each] for each in made]
    return StepwiseSearch(model, requests, options).run()


def _beam_in_one_call(
    model: Model, requests: Sequence[Request], options: ResolvedOptions
) -> list[list[Hypothesis]] | None:
    """The hypotheses of each request; None if the model has no search in one call for them."""
    # At least K of the candidates of a step are not an end token.
    if 2 * options.beam_size > model.vocab_size:
        return None
    if not (model.has_beam and options.fits_beam_rules):
        return None
    of_ids = all(row.inputs is None for row in requests)
    if options.encoder_no_repeat_ngram_size and not of_ids:
        return None
    if len(requests[0].prefix) >= options.max_length:
        return None
    try:
        return beam_in_one_call(model, requests, options)
    except NoTokenError:
        return None
