"""Draws follow the distribution that the options shape, and depend on seed and row alone."""

from collections.abc import Sequence

import numpy as np
import pytest

from tests.support.table_model import TableModel
from tests.support.table_search import EOS, log_probs, search
from tfexport.runtime.search import Request

pytestmark = pytest.mark.no_model


def test_samples_follow_the_distribution() -> None:
    model, count = TableModel(6, 4, scale=1.0), 4000
    for options, shaped in (
        ({}, lambda p: p),
        ({"temperature": 0.5}, lambda p: p**2),
        ({"top_k": 3}, lambda p: np.where(p >= np.sort(p)[-3], p, 0)),
        ({"top_p": 0.6}, lambda p: np.where(np.cumsum(np.sort(p)[::-1])[
            np.argsort(np.argsort(-p))] - p < 0.6, p, 0)),
        ({"top_p": 0.0}, lambda p: np.where(p == p.max(), p, 0)),
        ({"top_k": 4, "top_p": 0.7, "temperature": 2.0}, None),
    ):  # fmt: skip
        rows = [Request([9], number=i) for i in range(count)]
        found = search(model, rows, sampling=True, seed=1, max_length=1, **options)
        drawn = [EOS if h[0].finished else h[0].tokens[0] for h in found]
        seen = np.bincount(drawn, minlength=6) / count
        p = np.exp(log_probs(model, rows[0], []))
        if shaped is None:
            p = np.sqrt(p)
            p = np.where(p >= np.sort(p)[-4], p, 0) / np.sort(p)[-4:].sum()
            order = np.argsort(-p)
            kept = order[np.cumsum(p[order]) - p[order] < 0.7]
            expected = np.zeros(6)
            expected[kept] = p[kept]
        else:
            expected = shaped(p)
        expected = expected / expected.sum()
        # Five standard deviations; draws are seeded, so this does not flicker.
        room = 5 * np.sqrt(expected * (1 - expected) / count)
        assert (np.abs(seen - expected) <= room).all(), (options, seen, expected)


def test_seed_and_row_decide_the_draws() -> None:
    model = TableModel(12, 4, scale=0.5)
    rows = [Request([9], number=i) for i in range(30)]

    def draws(seed: int, part: Sequence[Request]) -> list[list[int]]:
        found = search(model, part, sampling=True, seed=seed, max_length=8)
        return [hypotheses[0].tokens for hypotheses in found]

    assert draws(1, rows) == draws(1, rows)
    assert draws(1, rows)[10:] == draws(1, rows[10:])
    assert draws(1, rows) != draws(2, rows)
    assert len({tuple(row) for row in draws(1, rows)}) > 20


def test_score_of_a_sample_is_the_models_own() -> None:
    model, row = TableModel(6, 4), Request([9])
    (found,) = search(model, [row], sampling=True, temperature=3.0, top_k=5, seed=3, max_length=7,
                      num_hypotheses=4)  # fmt: skip
    for made in found:
        tokens = [*made.tokens, *([EOS] if made.finished else [])]
        values = [log_probs(model, row, tokens[:i])[token] for i, token in enumerate(tokens)]
        assert made.score == pytest.approx(sum(values) / len(values), abs=1e-5)
    assert [made.score for made in found] == sorted((m.score for m in found), reverse=True)
