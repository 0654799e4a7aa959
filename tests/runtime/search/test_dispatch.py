"""What holds for every search: company, order, dead ends and attention."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.table_model import TableModel
from tests.support.table_search import BOS, EOS, facts, search
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search import Request

pytestmark = pytest.mark.no_model

OPTIONS: list[dict[str, Any]] = [
    {},
    {"beam_size": 3},
    {"beam_size": 4, "num_hypotheses": 4, "early_stopping": False, "length_penalty": 0.5},
    {"beam_size": 4, "beam_groups": 2, "diversity_penalty": 0.7, "num_hypotheses": 4},
    {"beam_size": 3, "coverage_penalty": 0.4, "return_attention": True},
    {"sampling": True, "seed": 7, "num_hypotheses": 3, "top_k": 4},
    {"sampling": True, "seed": 8, "top_p": 0.8, "temperature": 1.3},
    {"return_alternatives": True, "num_hypotheses": 3},
    {"return_alternatives": True, "num_hypotheses": 3, "sampling": True, "seed": 2},
    {"no_repeat_ngram_size": 2, "repetition_penalty": 1.4, "min_length": 2},
]


@settings(max_examples=40)
@given(
    options=st.sampled_from(OPTIONS),
    lengths=st.lists(st.integers(1, 6), min_size=2, max_size=5),
    seed=st.integers(0, 1000),
    order=st.randoms(use_true_random=False),
)
def test_results_depend_neither_on_company_nor_on_order(
    options: dict[str, Any], lengths: list[int], seed: int, order: Any
) -> None:
    model = TableModel(7, seed)
    rows = [Request([7 + i] * length, number=i) for i, length in enumerate(lengths)]
    together = search(model, rows, max_length=6, return_token_scores=True, **options)
    shuffled = list(rows)
    order.shuffle(shuffled)
    again = search(model, shuffled, max_length=6, return_token_scores=True, **options)
    for row, hypotheses in zip(rows, together, strict=True):
        (alone,) = search(model, [row], max_length=6, return_token_scores=True, **options)
        for other in (alone, again[shuffled.index(row)]):
            assert [facts(made) for made in other] == [facts(made) for made in hypotheses]
            for one, two in zip(other, hypotheses, strict=True):
                if options.get("return_attention"):
                    assert one.attention is not None
                    assert two.attention is not None
                    assert np.array_equal(one.attention, two.attention)


@pytest.mark.parametrize("options", [{}, {"beam_size": 3}, {"sampling": True}], ids=str)
def test_where_no_token_is_allowed_a_row_ends_as_it_is(options: dict[str, Any]) -> None:
    # Each token once, and never the end: after four tokens nothing is left.
    rows = [Request([9]), Request([8, 8])]
    found = search(TableModel(5, 2), rows, max_length=9, no_repeat_ngram_size=1, suppress=(EOS,),
                   **options)  # fmt: skip
    for hypotheses in found:
        assert sorted(hypotheses[0].tokens) == [0, 2, 3, 4]
        assert not hypotheses[0].finished


def test_nothing_is_allowed_at_all() -> None:
    everything = tuple(range(5))
    ways: list[dict[str, Any]] = [{}, {"beam_size": 2}, {"return_alternatives": True}]
    for options in ways:
        (found,) = search(
            TableModel(5), [Request([9])], suppress=everything, max_length=3, **options
        )
        assert found == [Hypothesis([], 0.0, finished=False)]


def test_attention_is_the_rows_that_made_the_tokens() -> None:
    model, row = TableModel(6, 12), Request([9, 8, 7], prefix=(2,))
    other = Request([5] * 6, prefix=(3,))
    choices: list[tuple[dict[str, Any], Callable[[Any], Any]]] = [
        ({}, lambda weights: weights[-1].mean(0)),
        ({"attention_layer": 0, "attention_head": 1}, lambda weights: weights[0, 1]),
    ]
    ways: list[dict[str, Any]] = [{}, {"beam_size": 3}]
    for options in ways:
        for choice, pick in choices:
            made = search(model, [row, other], max_length=5, return_attention=True,
                          return_token_scores=True, **options, **choice)[0][0]  # fmt: skip
            assert made.attention is not None
            assert made.attention.shape == (len(made.tokens), 3)
            for i in range(len(made.tokens)):
                weights = model.weights(row.ids, [BOS, *made.tokens[:i]], 3)
                assert made.attention[i] == pytest.approx(pick(weights))
