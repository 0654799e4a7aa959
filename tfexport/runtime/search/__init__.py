"""Search: from a model's logits to hypotheses. docs/decoding.md has every definition."""

from tfexport.runtime.model.abandoned import AbandonedError
from tfexport.runtime.search.batch import Choice, NextStep, Prefixes
from tfexport.runtime.search.dispatch import decode, make_choice
from tfexport.runtime.search.graph_search import greedy_in_one_call, truncate_at_eos
from tfexport.runtime.search.request import Request, ResolvedOptions
from tfexport.runtime.search.stepwise import StepwiseSearch, greedy

__all__ = [
    "AbandonedError",
    "Choice",
    "NextStep",
    "Prefixes",
    "Request",
    "ResolvedOptions",
    "StepwiseSearch",
    "decode",
    "greedy",
    "greedy_in_one_call",
    "make_choice",
    "truncate_at_eos",
]
