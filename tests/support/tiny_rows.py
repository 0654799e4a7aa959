"""Rows for a tiny bundle, and what came of them."""

import random

from tfexport.runtime import TranslationResult


def rows_of(number: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(3, 17) for _ in range(draw.randint(1, 12))] for _ in range(number)]


def tokens(results: list[TranslationResult]) -> list[list[list[int]]]:
    return [[made.tokens for made in result.hypotheses] for result in results]


def scores(results: list[TranslationResult]) -> list[float]:
    return [made.score for result in results for made in result.hypotheses]
