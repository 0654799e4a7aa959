"""Penalties and bans on logits that are written down here."""

from typing import Any

import numpy as np
import pytest

from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.search import Request, ResolvedOptions
from tfexport.runtime.search.logits import LogitFilters

pytestmark = pytest.mark.no_model

END = 1
LOGITS = [[2.0, -2.0, 4.0, -4.0, 1.0]]


def filtered(
    tokens: list[list[int]],
    requests: list[Request] | None = None,
    suppress: tuple[int, ...] = (),
    sequences: tuple[tuple[int, ...], ...] = (),
    **options: Any,
) -> list[list[float]]:
    """The logits of each row behind its tokens."""
    resolved = ResolvedOptions.of(DecodingOptions(**options), 0, (END,), 9, suppress, sequences)
    filters = LogitFilters(resolved, requests or [Request([7]) for _ in tokens])
    logits = np.array(LOGITS * len(tokens), np.float32)
    filters.apply(logits, np.array(tokens, np.int64), np.arange(len(tokens)))
    found: list[list[float]] = logits.tolist()
    return found


def banned(rows: list[list[float]]) -> list[list[int]]:
    """The ids that each row may not choose."""
    return [[token for token, value in enumerate(row) if value == -np.inf] for row in rows]


def test_without_options_logits_stay() -> None:
    assert filtered([[2, 3]]) == LOGITS


def test_repetition_makes_tokens_less_likely_once_however_often_they_came() -> None:
    assert filtered([[2, 3, 2]], repetition_penalty=2.0) == [[2.0, -2.0, 2.0, -8.0, 1.0]]


def test_suppressed_tokens_are_banned() -> None:
    assert banned(filtered([[2], [3]], suppress=(0, 4))) == [[0, 4], [0, 4]]


@pytest.mark.parametrize(("length", "expected"), [(2, [END]), (3, [])])
def test_end_tokens_are_banned_before_the_least_length(length: int, expected: list[int]) -> None:
    assert banned(filtered([[2] * length], min_length=3)) == [expected]


@pytest.mark.parametrize(
    ("size", "expected"), [(1, [[2, 3, 4], [0, 2]]), (2, [[3, 4], [2]]), (3, [[4], [2]])]
)
def test_no_ngram_comes_twice(size: int, expected: list[list[int]]) -> None:
    # In the first row 2 was followed by 4 and by 3, and 3 2 by 4.
    rows = [[3, 2, 4, 2, 3, 2], [0, 2, 2, 2, 2, 2]]
    assert banned(filtered(rows, no_repeat_ngram_size=size)) == expected


def test_sequences_are_not_completed() -> None:
    rows = filtered([[2, 3], [3, 2]], sequences=((2, 3, 4), (2, 0), (3,)))
    assert banned(rows) == [[3, 4], [0, 3]]
    assert banned(filtered([[3]], sequences=((2, 3, 4),))) == [[]], "shorter than the sequence"


def test_each_row_keeps_to_its_own_candidates() -> None:
    requests = [Request([7], candidates=np.array([1, 4])), Request([7])]
    rows = filtered([[2], [2]], requests)
    assert banned(rows) == [[0, 2, 3], []]
    assert rows[0][4] == LOGITS[0][4]
