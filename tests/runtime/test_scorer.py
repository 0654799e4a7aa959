"""Scores of given targets are those that decoding gives."""

import numpy as np
import pytest

from tests.support.table_model import TableModel
from tests.support.table_search import BOS, EOS, facts, search
from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.scorer import score_targets
from tfexport.runtime.search import Request, ResolvedOptions

pytestmark = pytest.mark.no_model


def test_score_of_a_given_target_is_what_decoding_would_have_returned() -> None:
    model = TableModel(6, 13)
    rows = [Request([9, 8], number=0), Request([7], number=1)]
    options = DecodingOptions(return_token_scores=True, return_attention=True, length_penalty=0.7)
    found = search(model, rows, return_token_scores=True, return_attention=True,
                   length_penalty=0.7, max_length=40)  # fmt: skip
    made = [hypotheses[0] for hypotheses in found]
    assert all(one.finished for one in made)
    scored = score_targets(
        model, [row.ids for row in rows], [[*one.tokens, EOS] for one in made],  # type: ignore[arg-type]
        ResolvedOptions.of(options, BOS, (EOS,), 20), vocab_size=6,
    )  # fmt: skip
    assert [facts(one)[:3] for one in scored] == [facts(one)[:3] for one in made]
    for one, two in zip(scored, made, strict=True):
        assert one.token_scores == pytest.approx(two.token_scores)
        assert one.attention is not None
        assert two.attention is not None
        assert np.allclose(one.attention, two.attention)


def test_long_targets_are_scored_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TableModel(6, 13)
    options = ResolvedOptions.of(DecodingOptions(return_attention=True), BOS, (EOS,), 20)
    sources, targets = [[9, 8], [7]], [[2, 3, 4, 5, EOS], [3, EOS]]
    whole = score_targets(model, sources, targets, options, 6)  # type: ignore[arg-type]
    monkeypatch.setattr("tfexport.runtime.scorer.LOGITS_AT_ONCE", 24)
    parts = score_targets(model, sources, targets, options, 6)  # type: ignore[arg-type]
    assert [one.score for one in parts] == pytest.approx([one.score for one in whole])
    for one, two in zip(parts, whole, strict=True):
        assert one.attention is not None
        assert np.array_equal(one.attention, two.attention)  # type: ignore[arg-type]
