"""Beam search in one call of a graph gives what the search step by step gives."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfexport.bundle import read_manifest
from tfexport.errors import BundleError
from tfexport.runtime import Translator
from tfexport.runtime.model.bundle_model import BeamRecord, Model
from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.search import Request, ResolvedOptions, decode
from tfexport.runtime.search.beam import BeamSearch
from tfexport.runtime.search.one_call import beam_in_one_call

VOCABULARY, BOS, EOS = 19, 1, 2


def resolved(**options: Any) -> ResolvedOptions:
    chosen = DecodingOptions(**options)
    return ResolvedOptions.of(chosen, BOS, (EOS,), chosen.max_length)


@pytest.fixture(name="model", scope="module")
def _model(tiny_bundle: Path) -> Model:
    return Model(tiny_bundle, read_manifest(tiny_bundle), 1)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_one_call_gives_what_steps_give(model: Model, data: st.DataObject) -> None:
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


class _Scripted:
    """A model whose record is written by hand."""

    has_beam, vocab_size = True, VOCABULARY

    def __init__(self, *steps: list[tuple[int, int, float]]) -> None:
        self.steps = steps

    def beam(self, rows: Any, beam_size: int, enough: int, max_length: int) -> BeamRecord:
        columns = np.array(self.steps, object).transpose(2, 0, 1)[:, :, None]
        return BeamRecord(columns[0].astype(np.int64), columns[1].astype(np.int64),
                          columns[2].astype(np.float32))  # fmt: skip


def test_a_candidate_that_stands_for_nothing_is_none() -> None:
    # One token is possible at first: the others continue beams that are not there, or are banned.
    model: Any = _Scripted(
        [(EOS, 0, -1.0), (5, 0, -np.inf), (6, 1, -0.5), (7, 1, -0.5)],
        [(5, 0, -0.5), (6, 0, -0.5), (7, 1, -0.5), (8, 1, -0.5)],
    )
    options = resolved(beam_size=2, num_hypotheses=2, max_length=2)
    (found,) = beam_in_one_call(model, [Request([4])], options)
    assert [(h.tokens, h.score) for h in found] == [([], -1.0)]


def test_the_way_back_skips_what_ended() -> None:
    # The end token stands first, so beam 0 of the next step is the second candidate.
    model: Any = _Scripted(
        [(EOS, 0, -0.1), (5, 0, -0.2), (6, 0, -0.3), (7, 0, -9.0)],
        [(8, 1, -0.1), (9, 0, -0.3), (EOS, 0, -5.0), (EOS, 1, -5.0)],
    )
    options = resolved(beam_size=2, num_hypotheses=2, max_length=2, length_penalty=0.0)
    (found,) = beam_in_one_call(model, [Request([4])], options)
    assert [h.tokens for h in found] == [[], [6, 8]], "and [5, 9], which is one too many"
    assert [h.score for h in found] == pytest.approx([-0.1, -0.4])


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
    options: dict[str, Any], one_call: bool, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def spy(*args: Any) -> BeamRecord:
        calls.append(args)
        return Model.beam(model, *args)

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


def test_a_beam_that_cannot_be_fails_before_memory_is_taken_for_it(model: Model) -> None:
    with pytest.raises(BundleError):
        model.beam([[4, 5]], 2**31, 1, 5)
