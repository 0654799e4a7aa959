"""Ranking: scores of hypotheses, and how many of them a beam needs.

Axes: T tokens, S source.
Sources: Wu et al. 2016 (length and coverage penalty), Kasai et al. 2022 (patience).
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tfexport.runtime.model.interface import Floats
from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.results import Hypothesis


def normalize(total: float, length: int, length_penalty: float) -> float:
    """Summed log-probability over length ** length_penalty; 0 for a hypothesis of no tokens."""
    return total / length**length_penalty if length else 0.0


def hypotheses_per_group(options: DecodingOptions) -> int:
    """Hypotheses that each group of a beam has to finish: num_hypotheses / groups, rounded up."""
    return -(-options.num_hypotheses // options.beam_groups)


def stopping_count(options: DecodingOptions) -> int:
    """Finished hypotheses without which no group is done, unless it is at its greatest length.

    With early stopping they end it: its beam size * patience, rounded to the nearest integer, and
    at least as many as have to be returned. Without, the own rules want those that have to be
    returned; transformers a beam.
    Source: Kasai et al. 2022.
    """
    width = options.beam_size // options.beam_groups
    own = hypotheses_per_group(options)
    if not options.early_stopping:
        return options.beam_size if options.search_rules == "transformers" else own
    return max(1, own, math.floor(width * options.patience + 0.5))


def length_at_best(options: DecodingOptions) -> str:
    """The length at which the best followed hypothesis may have its best score.

    Further tokens only lower its sum, so the best possible score is at the greatest length if the
    length penalty is positive, else at the least, the "next". transformers takes the "present"
    length, unless the search is exhaustive and the penalty positive.

    Returns:
        "present", "next" or "longest".
    """
    own = options.search_rules != "transformers" or options.exhaustive
    if options.length_penalty > 0:
        return "longest" if own else "present"
    return "present" if options.search_rules == "transformers" else "next"


def best_first(hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
    """Hypotheses by descending score; ties keep their order."""
    return sorted(hypotheses, key=lambda made: -made.score)


def coverage(attention: Floats) -> float:
    """Coverage penalty: 0 if every source position was attended to, else negative.

    The sum over source positions s of ln(min(1, sum over tokens t of attention[t, s])).
    Source: Wu et al. 2016, section 7, equation 14, without its weight beta.

    Args:
        attention: (T, S).
    """
    covered = attention.sum(0, dtype=np.float64)
    # Weights that softmax rounded to 0 are clipped, or one position would make the sum -inf.
    smallest = float(np.finfo(np.float32).tiny)
    return float(np.log(np.clip(covered, smallest, 1)).sum())


def make_hypothesis(
    tokens: list[int],
    scores: NDArray[np.float64] | Sequence[float],
    attention: Floats | None,
    finished: bool,
    options: DecodingOptions,
    uncounted: int = 0,
) -> Hypothesis:
    """Score a complete sequence, and keep what the options request.

    Args:
        tokens: all tokens that count, the end token included if there is one.
        scores: (T,), their natural-log probabilities.
        attention: (T, S) over the row's own source positions.
        finished: whether the last token is an end token.
        options: scoring options, and what to return.
        uncounted: tokens at the start that do not count for the score.
    """
    listed: list[float] = scores.tolist() if isinstance(scores, np.ndarray) else [*scores]
    total, length = math.fsum(listed[uncounted:]), len(tokens) - uncounted
    score = normalize(total, length, options.length_penalty)
    if options.coverage_penalty and attention is not None and tokens:
        score += options.coverage_penalty * coverage(attention)
    kept = len(tokens) - (finished and not options.return_end_token)
    returned = attention[:kept].copy() if attention is not None else None
    return Hypothesis(
        tokens[:kept],
        score,
        returned if options.return_attention or options.replace_unknowns else None,
        listed if options.return_token_scores else None,
        finished,
    )
