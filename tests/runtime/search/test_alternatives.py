"""Alternatives against the best first tokens and a search behind each."""

import math

import pytest

from tests.support.table_model import TableModel
from tests.support.table_search import EOS, log_probs, search
from tfexport.runtime.search import Request

pytestmark = pytest.mark.no_model


def test_alternatives_are_the_best_first_tokens_with_their_best_continuation() -> None:
    model, row = TableModel(7, 5), Request([9, 8], prefix=(3,))
    (found,) = search(model, [row], return_alternatives=True, num_hypotheses=4, max_length=5)
    first = log_probs(model, row, [3])
    order = sorted(range(7), key=lambda token: (-first[token], token))[:4]
    for token, made in zip(order, found, strict=True):
        if token == EOS:
            assert made.tokens == [3]
            assert made.finished
            continue
        longer = Request([9, 8], prefix=(3, token))
        (alone,) = search(model, [longer], max_length=5)
        assert made.tokens == alone[0].tokens
        assert made.score == pytest.approx(alone[0].score)
    likely = math.exp(first[order[1]]) - 1e-6
    (few,) = search(model, [row], return_alternatives=True, num_hypotheses=4, max_length=5,
                    min_alternative_probability=likely)  # fmt: skip
    assert [made.tokens for made in few] == [made.tokens for made in found[:2]]
