"""Top-k against a sort, and log-probabilities against their formula."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfexport.runtime.search.logits import BLOCK, log_normalizer, token_log_probs, topk

pytestmark = pytest.mark.no_model


@given(
    values=st.lists(
        st.lists(st.sampled_from([0.0, 1.0, 2.0, -np.inf]), min_size=9, max_size=9),
        min_size=1, max_size=4,
    ),
    count=st.integers(1, 9),
)  # fmt: skip
def test_best_is_the_head_of_a_sort_with_the_lowest_id_first(
    values: list[list[float]], count: int
) -> None:
    ids, found = topk(np.array(values, np.float32), count)
    for row, chosen, kept in zip(values, ids.tolist(), found.tolist(), strict=True):
        expected = sorted(range(9), key=lambda i: (-row[i], i))[:count]
        assert chosen == expected
        assert kept == [row[i] for i in expected]


@given(
    seed=st.integers(0, 1000),
    size=st.integers(600, 900),
    count=st.integers(1, 12),
    step=st.sampled_from([0.0, 0.5, 2.0]),
)
def test_best_of_many_is_the_head_of_a_sort(seed: int, size: int, count: int, step: float) -> None:
    values = np.random.default_rng(seed).normal(size=(3, size)).astype(np.float32)
    values = np.round(values / step) * np.float32(step) if step else values
    values[1, 50:] = -np.inf
    ids, found = topk(values, count)
    for row, chosen, kept in zip(values, ids.tolist(), found.tolist(), strict=True):
        expected = sorted(range(size), key=lambda i: (-row[i], i))[:count]
        assert chosen == expected
        assert kept == row[expected].tolist()


@given(seed=st.integers(0, 1000), count=st.integers(1, 3), near=st.booleans())
def test_a_tie_with_the_last_is_found_wherever_it_is(seed: int, count: int, near: bool) -> None:
    draw = np.random.default_rng(seed)
    values = np.zeros((1, 2000), np.float32)
    blocks = values.shape[1] // BLOCK
    # In one block, or in as many as there are.
    places = np.arange(draw.integers(blocks), blocks * BLOCK, blocks) if near else np.arange(2000)
    values[0, draw.choice(places, count + draw.integers(0, 9), replace=False)] = 1
    (chosen,), _ = topk(values, count)
    assert chosen.tolist() == sorted(np.flatnonzero(values[0] == 1).tolist())[:count]


def test_normalizer_of_a_row_without_a_way_on_is_minus_infinity() -> None:
    logits = np.array([[0.0, 0.0], [-np.inf, -np.inf]], np.float32)
    assert log_normalizer(logits).tolist() == [pytest.approx(math.log(2)), -math.inf]


def test_log_prob_of_a_token_is_its_logit_in_the_softmax() -> None:
    logits = np.array([[1.0, 2.0, 3.0], [0.0, -np.inf, 500.0]], np.float32)
    whole = math.log(math.exp(1) + math.exp(2) + math.exp(3))
    assert token_log_probs(logits, np.array([1, 2])) == pytest.approx([2 - whole, 0.0])
    assert token_log_probs(logits, np.array([0, 1])).tolist() == [
        pytest.approx(1 - whole),
        -math.inf,
    ]
