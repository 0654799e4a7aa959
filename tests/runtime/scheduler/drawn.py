"""Drawn requests, and what ``Translator`` gives for each alone."""

import math
import random
from typing import Any

from tfexport.errors import TfexportError
from tfexport.runtime import Hypothesis, Translator

Job = tuple[list[list[int]], dict[str, Any], list[list[Hypothesis]]]  # rows, options, expected


def draw_options(draw: random.Random, vocabulary: int) -> dict[str, Any]:
    """Options of every search that may share a batch with others, and of some that may not."""
    kind = draw.random()
    options: dict[str, Any] = {"max_length": draw.choice([1, 2, 5, 12, 12, 20])}
    maybe: list[tuple[dict[str, Any], float]] = [
        ({"min_length": 1}, 0.2),
        ({"repetition_penalty": draw.choice([1.3, 0.8])}, 0.2),
        ({"no_repeat_ngram_size": draw.choice([1, 2])}, 0.2),
        ({"return_end_token": True}, 0.1),
        ({"suppress_tokens": [draw.randrange(4, vocabulary) for _ in range(3)]}, 0.15),
        ({"return_scores": False}, 0.2),
        ({"return_token_scores": True}, 0.1),
    ]
    if 0.4 < kind < 0.7:
        options["beam_size"] = draw.choice([2, 3, 4])
        maybe += [
            ({"num_hypotheses": 2}, 0.4),
            ({"length_penalty": draw.choice([0.0, 0.6, 2.0])}, 0.3),
            ({"early_stopping": draw.random() < 0.5}, 0.3),
            ({"search_rules": "transformers"}, 0.2),
            ({"beam_size": 4, "beam_groups": 2, "diversity_penalty": 0.5}, 0.15),
            ({"coverage_penalty": 0.2}, 0.15),
        ]
    elif kind >= 0.7:
        options |= {"sampling": True, "seed": draw.randrange(100)}
        maybe += [
            ({"top_k": draw.choice([1, 5])}, 0.5),
            ({"top_p": draw.choice([0.3, 0.9])}, 0.5),
            ({"num_hypotheses": 3}, 0.3),
        ]
    for more, chance in maybe:
        if draw.random() < chance:
            options |= more
    return options


def draw_jobs(translator: Translator, count: int, seed: int) -> list[Job]:
    """Requests of one to four rows; options that contradict each other are drawn again."""
    draw = random.Random(seed)
    vocabulary = translator.manifest.limits.source_vocab_size
    jobs: list[Job] = []
    while len(jobs) < count:
        rows = [
            [draw.randrange(4, vocabulary) for _ in range(draw.randint(1, 30))]
            for _ in range(draw.choice([1, 1, 1, 2, 4]))
        ]
        options = draw_options(draw, vocabulary)
        try:
            expected = translator.generate(rows, **options)
        except TfexportError:
            continue
        jobs.append((rows, options, [result.hypotheses for result in expected]))
    return jobs


def same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> bool:
    """Whether tokens are equal, and scores within 1e-4."""
    return len(found) == len(expected) and all(
        len(ours) == len(theirs)
        and all(_same(one, other) for one, other in zip(ours, theirs, strict=True))
        for ours, theirs in zip(found, expected, strict=True)
    )


def _same(one: Hypothesis, other: Hypothesis) -> bool:
    if (one.tokens, one.finished) != (other.tokens, other.finished):
        return False
    pairs = [(one.score, other.score)]
    if (one.token_scores is None) != (other.token_scores is None):
        return False
    if one.token_scores is not None and other.token_scores is not None:
        pairs += zip(one.token_scores, other.token_scores, strict=True)
    return all(
        (math.isnan(ours) and math.isnan(theirs)) or abs(ours - theirs) < 1e-4
        for ours, theirs in pairs
    )
