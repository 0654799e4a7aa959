"""Scores and counts by the formulas of docs/decoding.md."""

import math
from typing import Any

import numpy as np
import pytest

from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search.ranking import (
    best_first,
    coverage,
    hypotheses_per_group,
    make_hypothesis,
    normalize,
    stopping_count,
)

pytestmark = pytest.mark.no_model

ATTENTION = np.array([[0.25, 0.75, 0.0], [0.5, 0.5, 0.0]], np.float32)


def test_a_sum_is_divided_by_the_length_to_the_power_of_the_penalty() -> None:
    assert normalize(-6.0, 4, 1.0) == -1.5
    assert normalize(-6.0, 4, 0.5) == -3.0
    assert normalize(-6.0, 4, 0.0) == -6.0
    assert normalize(-6.0, 4, -1.0) == -24.0
    assert normalize(0.0, 0, 1.0) == 0.0


@pytest.mark.parametrize(
    ("options", "each", "stops"),
    [
        ({"beam_size": 4}, 1, 4),
        ({"beam_size": 4, "patience": 0.5}, 1, 2),
        ({"beam_size": 4, "patience": 0.01}, 1, 1),
        ({"beam_size": 3, "patience": 0.5}, 1, 2),
        ({"beam_size": 4, "patience": 0.5, "num_hypotheses": 3}, 3, 3),
        ({"beam_size": 6, "beam_groups": 3, "num_hypotheses": 4}, 2, 2),
        ({"beam_size": 6, "beam_groups": 3, "patience": 2.0}, 1, 4),
    ],
    ids=str,
)
def test_a_group_finishes_its_share_and_stops_by_patience(
    options: dict[str, Any], each: int, stops: int
) -> None:
    chosen = DecodingOptions(**options)
    assert hypotheses_per_group(chosen) == each
    assert stopping_count(chosen) == stops


def test_of_equal_scores_the_earlier_one_stays_first() -> None:
    made = [Hypothesis([n], score) for n, score in enumerate([-2.0, -1.0, -2.0, -1.0])]
    assert [one.tokens for one in best_first(made)] == [[1], [3], [0], [2]]


def test_coverage_sums_the_logs_of_what_each_position_got_up_to_one() -> None:
    assert coverage(ATTENTION[:, :2]) == pytest.approx(math.log(0.75))
    assert coverage(ATTENTION * 4) == pytest.approx(math.log(np.finfo(np.float32).tiny))
    assert coverage(np.ones((2, 3), np.float32)) == 0.0


def test_a_hypothesis_holds_what_was_asked_for() -> None:
    scores = np.array([-1.0, -3.0])
    plain = make_hypothesis([5, 2], scores, ATTENTION, True, DecodingOptions())
    assert plain == Hypothesis([5], -2.0, None, None, True)
    assert plain.attention is None
    options = DecodingOptions(
        return_attention=True, return_token_scores=True, return_end_token=True, length_penalty=0.0
    )
    whole = make_hypothesis([5, 2], scores, ATTENTION, True, options)
    assert whole == Hypothesis([5, 2], -4.0, None, [-1.0, -3.0], True)
    assert whole.attention is not None
    assert whole.attention.shape == (2, 3)
    cut = make_hypothesis([5, 6], scores, ATTENTION, False, DecodingOptions())
    assert cut.tokens == [5, 6], "a token that does not end a row is no end token to leave out"


def test_the_coverage_penalty_is_added_with_its_weight() -> None:
    options = DecodingOptions(beam_size=2, coverage_penalty=0.5)
    made = make_hypothesis([5, 2], np.array([-1.0, -3.0]), ATTENTION[:, :2], True, options)
    assert made.score == pytest.approx(-2.0 + 0.5 * math.log(0.75))
