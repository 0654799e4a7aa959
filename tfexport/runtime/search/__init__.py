"""Search: from a model's logits to hypotheses. docs/decoding.md has every definition."""

from tfexport.runtime.search.dispatch import decode
from tfexport.runtime.search.plain import greedy, greedy_in_one_call, until
from tfexport.runtime.search.request import Request
from tfexport.runtime.search.resolved_options import ResolvedOptions
from tfexport.runtime.search.scoring import score_targets
from tfexport.runtime.search.stepwise import PathSearch

__all__ = [
    "PathSearch",
    "Request",
    "ResolvedOptions",
    "decode",
    "greedy",
    "greedy_in_one_call",
    "score_targets",
    "until",
]
