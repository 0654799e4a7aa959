"""Comparisons of logits, as they are or as log-probabilities."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tfexport.export.parity.compare import compare_logits
from tfexport.export.parity.eager_run import Eager

LOGITS = np.array([[0.5, -1.0, 2.0], [3.0, 0.0, -300.0]], np.float32)


def eager(own: bool, embeddings: bool = True) -> Eager:
    config = SimpleNamespace(has_embeddings=embeddings)
    made: Any = SimpleNamespace(runs_own_code=own, config=config)
    return cast(Eager, made)


@pytest.mark.parametrize(("own", "embeddings"), [(False, True), (True, False)])
def test_logits_of_originals_and_decoder_states_are_compared_as_they_are(
    own: bool, embeddings: bool
) -> None:
    found = compare_logits(eager(own, embeddings), "full prefix", (2, 7), LOGITS, LOGITS + 1)
    assert not found.passed


def test_logits_of_own_code_are_compared_as_log_probabilities() -> None:
    own = eager(own=True)
    assert compare_logits(own, "full prefix", (2, 7), LOGITS, LOGITS + 1).passed
    other = LOGITS.copy()
    other[0, 1] += 0.01
    assert not compare_logits(own, "full prefix", (2, 7), LOGITS, other).passed


def test_probabilities_that_float32_does_not_hold_count_as_equal() -> None:
    other = LOGITS.copy()
    other[1, 2] = -87.0
    assert compare_logits(eager(own=True), "full prefix", (2, 7), LOGITS, other).passed
    other[1, 2] = -70.0
    assert not compare_logits(eager(own=True), "full prefix", (2, 7), LOGITS, other).passed


def test_nan_is_a_difference() -> None:
    other = LOGITS.copy()
    other[0, 0] = np.nan
    assert not compare_logits(eager(own=True), "full prefix", (2, 7), LOGITS, other).passed
