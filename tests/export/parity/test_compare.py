"""Comparisons of logits, as they are or as log-probabilities."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from tfexport.export.parity.compare import compare_logits
from tfexport.export.parity.eager_run import EagerRun

LOGITS = np.array([[0.5, -1.0, 2.0], [3.0, 0.0, -300.0]], np.float32)


def run(log_probs: bool) -> EagerRun:
    eager: Any = SimpleNamespace(compares_log_probs=log_probs)
    return EagerRun(eager, (), (2, 7))


def test_logits_of_originals_and_decoder_states_are_compared_as_they_are() -> None:
    assert not compare_logits(run(False), "full prefix", LOGITS, LOGITS + 1).passed


def test_logits_of_own_code_are_compared_as_log_probabilities() -> None:
    own = run(True)
    assert compare_logits(own, "full prefix", LOGITS, LOGITS + 1).passed
    other = LOGITS.copy()
    other[0, 1] += 0.01
    assert not compare_logits(own, "full prefix", LOGITS, other).passed


def test_probabilities_that_float32_does_not_hold_count_as_equal() -> None:
    other = LOGITS.copy()
    other[1, 2] = -87.0
    assert compare_logits(run(True), "full prefix", LOGITS, other).passed
    other[1, 2] = -70.0
    assert not compare_logits(run(True), "full prefix", LOGITS, other).passed


def test_nan_is_a_difference() -> None:
    other = LOGITS.copy()
    other[0, 0] = np.nan
    assert not compare_logits(run(True), "full prefix", LOGITS, other).passed
