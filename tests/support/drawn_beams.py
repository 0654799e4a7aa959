"""Drawn settings of beam search, for the engines that run it in one call."""

import random
from typing import Any

from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.search import ResolvedOptions

ENDS = (2, 6, 3)  # some of which are end tokens of a setting
# What a rule is when it bans, forces and changes nothing.
NO_RULES: dict[str, Any] = {
    "ends": (2,), "start": 1, "stop": "early", "length_penalty": 1.0, "on_log_probs": False,
    "renormalize": False, "first_token": None, "last_token": None, "min_length": 0, "ngram": 0,
    "source_ngram": 0, "repetition_penalty": 1.0, "suppressed": (), "suppressed_first": (),
    "sequences": (),
}  # fmt: skip


def draw_options(draw: random.Random, size: int) -> ResolvedOptions:
    """Any of the options that ``fits_beam_rules`` knows, each of them more often not.

    Args:
        draw: gives the random numbers.
        size: V; the end tokens are among ``ENDS``.
    """

    def sometimes(values: list[Any], otherwise: Any, chance: float = 0.3) -> Any:
        return draw.choice(values) if draw.random() < chance else otherwise

    def some_ids(most: int) -> tuple[int, ...]:
        return tuple(draw.sample(range(size), draw.randint(1, most)))

    beams = draw.randint(2, min(size // 2, 5))
    transformers, early = draw.random() < 0.5, draw.random() < 0.3
    most = draw.randint(1, 13)
    given: dict[str, Any] = {
        "beam_size": beams,
        "num_hypotheses": draw.randint(1, beams),
        "length_penalty": draw.choice([0.0, 0.6, 1.0, 1.0, 4.0, -2.0]),
        "early_stopping": early,
        "max_length": most,
        "min_length": min(most, sometimes([1, 2, 5], 0)),
        "no_repeat_ngram_size": sometimes([1, 2, 3], 0),
        "encoder_no_repeat_ngram_size": sometimes([1, 2, 3], 0, 0.2),
        "repetition_penalty": sometimes([0.7, 1.3, 4.0], 1.0),
        "suppress_first_tokens": sometimes([some_ids(3)], ()),
        "first_token": sometimes([draw.randrange(size)], None),
        "last_token": sometimes([2, draw.randrange(size)], None),
        "return_token_scores": True,
        "return_end_token": draw.random() < 0.5,
    }
    if transformers:
        given |= {
            "search_rules": "transformers",
            "exhaustive": not early and draw.random() < 0.5,
            "renormalize_logits": draw.random() < 0.3,
        }
    elif early:
        given["patience"] = draw.choice([0.3, 1.0, 2.0])
    sequences = tuple(some_ids(2) for _ in range(draw.randint(1, 4)))
    return ResolvedOptions.of(
        DecodingOptions(**given),
        draw.randrange(size),
        ENDS[: draw.choice([1, 1, 2, 3])],
        most,
        sometimes([some_ids(3)], ()),
        sometimes([sequences], ()),
    )
