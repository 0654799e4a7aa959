"""Greedy and beam search in one call of a graph give what the searches step by step give."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfexport.bundle import read_manifest
from tfexport.errors import BundleError
from tfexport.runtime import Translator
from tfexport.runtime.model.interface import BeamRecord
from tfexport.runtime.model.onnxruntime_model import OnnxModel
from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.search import Request, ResolvedOptions, decode
from tfexport.runtime.search.beam import BeamSearch
from tfexport.runtime.search.graph_search import beam_in_one_call, truncate_at_eos

VOCABULARY, BOS, EOS = 19, 1, 2


def resolved(**options: Any) -> ResolvedOptions:
    chosen = DecodingOptions(**options)
    return ResolvedOptions.of(chosen, BOS, (EOS,), chosen.max_length)


@pytest.fixture(name="model", scope="module")
def _model(tiny_bundle: Path) -> OnnxModel:
    return OnnxModel(tiny_bundle, read_manifest(tiny_bundle), 1)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_one_call_gives_what_steps_give(model: OnnxModel, data: st.DataObject) -> None:
    size = data.draw(st.integers(2, VOCABULARY // 2), label="beam_size")
    options = resolved(
        beam_size=size,
        num_hypotheses=data.draw(st.integers(1, size)),
        patience=data.draw(st.sampled_from([0.2, 1.0, 2.5])),
        length_penalty=data.draw(st.sampled_from([0.0, 0.6, 1.0, 2.0])),
        max_length=data.draw(st.integers(1, 12)),
        return_token_scores=data.draw(st.booleans()),
        return_end_token=data.draw(st.booleans()),
    )
    rows = data.draw(st.lists(st.lists(st.integers(3, 16), min_size=1, max_size=9), min_size=1,
                              max_size=4))  # fmt: skip
    requests = [Request(row, number) for number, row in enumerate(rows)]
    recorded = beam_in_one_call(model, requests, options)
    stepped = BeamSearch(model, requests, options).run()
    for one, other in zip(recorded, stepped, strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in other]
        assert [h.finished for h in one] == [h.finished for h in other]
        assert [h.score for h in one] == pytest.approx([h.score for h in other], abs=1e-5)
        for ours, theirs in zip(one, other, strict=True):
            assert (ours.token_scores is None) == (theirs.token_scores is None)
            assert (ours.token_scores or []) == pytest.approx(theirs.token_scores or [], abs=1e-5)


@pytest.mark.parametrize(
    ("options", "one_call"),
    [
        ({}, True),
        ({"patience": 2.0, "length_penalty": 0.3, "num_hypotheses": 3}, True),
        ({"early_stopping": False}, False),
        ({"beam_groups": 2, "beam_size": 4}, False),
        ({"min_length": 2}, False),
        ({"return_attention": True}, False),
        ({"coverage_penalty": 0.1}, False),
        ({"no_repeat_ngram_size": 2}, False),
    ],
    ids=str,
)
def test_what_one_call_cannot_do_goes_step_by_step(
    options: dict[str, Any], one_call: bool, model: OnnxModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def spy(*args: Any) -> BeamRecord:
        calls.append(args)
        return OnnxModel.beam(model, *args)

    monkeypatch.setattr(model, "beam", spy)
    decode(model, [Request([4, 5])], resolved(**{"beam_size": 3, "max_length": 4, **options}))
    assert bool(calls) == one_call
    calls.clear()
    decode(model, [Request([4, 5], prefix=(6,))], resolved(beam_size=3, max_length=4))
    assert not calls
    decode(model, [Request([4, 5])], resolved(beam_size=model.vocab_size // 2 + 1, max_length=4))
    assert not calls, "twice as many candidates as there are tokens"


def test_a_bundle_without_a_beam_graph_steps(tiny_bundle: Path) -> None:
    translator = Translator(tiny_bundle)
    whole = translator.generate([[4, 5, 3], [6, 3]], beam_size=4, num_hypotheses=4)
    translator.engine.model.has_beam = False
    stepped = translator.generate([[4, 5, 3], [6, 3]], beam_size=4, num_hypotheses=4)
    for one, other in zip(whole, stepped, strict=True):
        assert [h.tokens for h in one.hypotheses] == [h.tokens for h in other.hypotheses]


def test_a_beam_that_cannot_be_fails_before_memory_is_taken_for_it(model: OnnxModel) -> None:
    with pytest.raises(BundleError):
        model.beam([[4, 5]], 2**31, 1, 5)


def test_a_row_is_cut_before_its_first_end_token() -> None:
    assert truncate_at_eos([5, 6, EOS, 7, EOS], EOS) == [5, 6]
    assert truncate_at_eos([EOS, EOS], EOS) == []
    assert truncate_at_eos([5, 6], EOS) == [5, 6]
