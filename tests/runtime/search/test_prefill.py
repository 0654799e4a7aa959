"""Prefixes are taken in one step, and count."""

from typing import Any

import pytest

from tests.support.table_model import TableModel
from tests.support.table_search import log_probs, search
from tfexport.runtime.search import Request

pytestmark = pytest.mark.no_model


def test_prefix_is_taken_in_one_step_and_counts() -> None:
    model, row = TableModel(6, 3), Request([9], prefix=(4, 5, 4))
    (found,) = search(model, [row], max_length=6, return_token_scores=True, end_tokens=(99,))
    made = found[0]
    assert made.tokens[:3] == [4, 5, 4]
    assert len(made.tokens) == 6
    assert model.steps == 3, "three new tokens, three steps, the first with the whole prefix"
    expected = [
        log_probs(model, row, made.tokens[:i])[token] for i, token in enumerate(made.tokens)
    ]
    assert made.token_scores == pytest.approx(expected, abs=1e-5)
    assert made.score == pytest.approx(sum(expected) / 6, abs=1e-5)


@pytest.mark.parametrize("options", [{}, {"beam_size": 2}, {"return_alternatives": True}], ids=str)
def test_prefix_may_fill_the_whole_length(options: dict[str, Any]) -> None:
    model, row = TableModel(6, 3), Request([9], prefix=(4, 5))
    (found,) = search(model, [row], max_length=2, return_attention=True, **options)
    assert found[0].tokens == [4, 5]
    assert not found[0].finished
    expected = log_probs(model, row, [])[4] + log_probs(model, row, [4])[5]
    assert found[0].score == pytest.approx(expected / 2, abs=1e-5)
    assert found[0].attention is not None
    assert found[0].attention.shape == (2, 1)
