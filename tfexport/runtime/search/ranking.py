"""What every search ends with: a hypothesis and its score."""

import math

import numpy as np
from numpy.typing import NDArray

from tfexport.runtime.model.bundle_model import Floats
from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.results import Hypothesis


def normalize(total: float, length: int, length_penalty: float) -> float:
    """Summed log-probability to a score; a hypothesis of nothing scores 0."""
    return total / length**length_penalty if length else 0.0


def enough_hypotheses(options: DecodingOptions) -> int:
    """Finished hypotheses with which one group of a beam is done, with early stopping."""
    width = options.beam_size // options.beam_groups
    enough = math.floor(width * options.patience + 0.5)
    return max(1, wanted_hypotheses(options), enough)


def wanted_hypotheses(options: DecodingOptions) -> int:
    """Hypotheses that one group of a beam has to finish."""
    return -(-options.num_hypotheses // options.beam_groups)


def coverage(attention: Floats) -> float:
    """How far source positions were left out: 0 if none was, else below.

    The sum over source positions of ln(min(1, what all tokens attended to it together)).
    Source: Wu et al. 2016, section 7.

    Args:
        attention: (T, S).
    """
    covered = attention.sum(0, dtype=np.float64)
    # What softmax rounded to 0 is taken as float32's smallest, lest one position decide all.
    smallest = float(np.finfo(np.float32).tiny)
    return float(np.log(np.clip(covered, smallest, 1)).sum())


def finish(
    tokens: list[int],
    scores: NDArray[np.float64],
    attention: Floats | None,
    finished: bool,
    options: DecodingOptions,
) -> Hypothesis:
    """Make a hypothesis.

    Args:
        tokens: all that count, the end token included if there is one.
        scores: (T,), their natural-log probabilities.
        attention: (T, S) over the row's own source positions.
        finished: the last token is an end token.
        options: how the score is made, and what is to be returned.
    """
    score = normalize(math.fsum(scores), len(tokens), options.length_penalty)
    if options.coverage_penalty and attention is not None and tokens:
        score += options.coverage_penalty * coverage(attention)
    kept = len(tokens) - (finished and not options.return_end_token)
    returned = attention[:kept].copy() if attention is not None else None
    return Hypothesis(
        tokens[:kept],
        score,
        returned if options.return_attention or options.replace_unknowns else None,
        scores.tolist() if options.return_token_scores else None,
        finished,
    )
