"""When a beam search is done: by this project's own rules, or by those of transformers.

Sources: Kasai et al. 2022 (patience); transformers, ``GenerationMixin._beam_search``.
"""

import math

from tfexport.runtime.search.beam_state import FinishedGroup
from tfexport.runtime.search.ranking import hypotheses_per_group, normalize, stopping_count
from tfexport.runtime.search.resolved_options import ResolvedOptions


def is_done(
    options: ResolvedOptions,
    finished: FinishedGroup,
    highest: float,
    length: int,
    uncounted: int = 0,
) -> bool:
    """Whether a group of beams needs no further step.

    Args:
        options: that say when.
        finished: its hypotheses so far.
        highest: the greatest sum of its beams; -inf if there are none.
        length: tokens of each of them.
        uncounted: those at their beginning that are no part of the score.
    """
    if length >= options.max_length or math.isinf(highest):
        return True
    if options.early_stopping:
        return len(finished.found) >= stopping_count(options)
    wanted = options.beam_size if options.by_transformers else hypotheses_per_group(options)
    if len(finished.found) < wanted:
        return False
    at_best = _length_at_best(options, length) - uncounted
    reachable = normalize(highest, at_best, options.length_penalty)
    return finished.best()[wanted - 1].score >= reachable


def _length_at_best(options: ResolvedOptions, length: int) -> int:
    """The length at which the best followed hypothesis is taken to be worth most.

    Further tokens only lower its sum, so the best score that is left comes from the greatest length
    if the length penalty is positive, else from the least. transformers takes the present length,
    unless the search is exhaustive and the penalty positive.
    """
    if options.by_transformers and not (options.exhaustive and options.length_penalty > 0):
        return length
    return options.max_length if options.length_penalty > 0 else length + 1
