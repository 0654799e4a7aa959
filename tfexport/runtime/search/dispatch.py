"""Choosing the search of a batch by its options and the graphs of the model."""

import dataclasses
import math
from collections.abc import Sequence

from tfexport.runtime.model.interface import Model
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search.alternatives import decode_alternatives
from tfexport.runtime.search.batch import Choice, Prefixes
from tfexport.runtime.search.beam import BeamChoice, BeamSearch
from tfexport.runtime.search.graph_search import beam_in_one_call, greedy_in_one_call
from tfexport.runtime.search.request import Request, ResolvedOptions
from tfexport.runtime.search.stepwise import StepwiseChoice, StepwiseSearch

# The longest search with ``going`` that may run inside a graph, where it cannot be stopped.
_LONGEST_IN_ONE_CALL = 512


def decode(
    model: Model, requests: Sequence[Request], options: ResolvedOptions
) -> list[list[Hypothesis]]:
    """Decode one batch of rows whose prefixes are equally long.

    Returns:
        For each row its hypotheses, best first; at least one.

    Raises:
        AbandonedError: ``options.going`` returned false.
    """
    if options.return_alternatives:
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
    kind = BeamChoice if options.beam_size > 1 else StepwiseChoice
    return kind(requests, options, prefixes)


def _search(
    model: Model, requests: Sequence[Request], options: ResolvedOptions
) -> list[list[Hypothesis]]:
    # The graphs of a complete search take no shortlists and no prefixes, except for a forced first
    # token that is part of the graph.
    own = ((), (options.first_token,))
    unconstrained = all(row.prefix in own and row.candidates is None for row in requests)
    in_one_call = options.going is None or options.max_length <= _LONGEST_IN_ONE_CALL
    unconstrained = unconstrained and in_one_call
    if options.beam_size > 1:
        # The graph takes the top 2 K candidates, of which at least K are not the end token.
        enough_tokens = 2 * options.beam_size <= model.vocab_size
        if model.has_beam and options.fits_beam_graph and unconstrained and enough_tokens:
            return beam_in_one_call(model, requests, options)
        return BeamSearch(model, requests, options).run()
    if model.has_generate and options.fits_greedy_graph and unconstrained:
        rows = [row.source for row in requests]
        found = greedy_in_one_call(model, rows, options.max_length, options.eos_id, options)
        return [[made] for made in found]
    return StepwiseSearch(model, requests, options).run()
