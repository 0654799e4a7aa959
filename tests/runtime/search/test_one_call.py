"""Greedy and beam search in one call of a graph give what the searches step by step give."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.drawn_beams import NO_RULES, draw_options
from tfexport.bundle import read_manifest
from tfexport.errors import BundleError
from tfexport.graph_io import BEAM_RULES, RULES
from tfexport.runtime import Translator
from tfexport.runtime.model.interface import BeamRecord, BeamRules, NoTokenError
from tfexport.runtime.model.onnxruntime_model import OnnxModel
from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search import Request, ResolvedOptions, decode, graph_search
from tfexport.runtime.search.beam import BeamSearch
from tfexport.runtime.search.graph_search import beam_in_one_call, make_rules, truncate_at_eos

BOS, EOS = 1, 2
SOME, MANY = 150, 4000  # drawn settings


def resolved(**options: Any) -> ResolvedOptions:
    chosen = DecodingOptions(**options)
    return ResolvedOptions.of(chosen, BOS, (EOS,), chosen.max_length)


@pytest.fixture(name="model", scope="module")
def _model(tiny_bundle: Path) -> OnnxModel:
    return OnnxModel(tiny_bundle, read_manifest(tiny_bundle), 1)


def draw_setting(model: OnnxModel, seed: int) -> tuple[list[Request], ResolvedOptions]:
    draw = random.Random(seed)
    options = draw_options(draw, model.vocab_size)
    prefix = options.with_first_token(())
    rows = [[draw.randrange(3, 17) for _ in range(draw.randint(1, 9))] for _ in range(6)]
    count = draw.randint(1, len(rows))
    return [Request(row, i, prefix) for i, row in enumerate(rows[:count])], options


def rounded(found: list[list[Hypothesis]]) -> list[Any]:
    """Tokens exactly, scores with a margin for float32."""
    return [
        [
            (made.tokens, made.finished, pytest.approx(made.score, rel=1e-5, abs=1e-5),
             made.token_scores and pytest.approx(made.token_scores, rel=1e-5, abs=1e-5))
            for made in of_row
        ]
        for of_row in found
    ]  # fmt: skip


def exactly(found: list[list[Hypothesis]]) -> list[Any]:
    return [
        [(made.tokens, made.finished, made.score, made.token_scores) for made in of_row]
        for of_row in found
    ]


@pytest.mark.parametrize(
    "seeds",
    [range(SOME), pytest.param(range(SOME, MANY), marks=pytest.mark.exhaustive)],
    ids=["some", "many"],
)
def test_one_call_gives_what_steps_give(model: OnnxModel, seeds: range) -> None:
    in_one_call = 0
    for seed in seeds:
        requests, options = draw_setting(model, seed)
        assert options.fits_beam_rules
        if len(requests[0].prefix) >= options.max_length:
            continue
        expected = rounded(BeamSearch(model, requests, options).run())
        try:
            found = beam_in_one_call(model, requests, options)
        except NoTokenError:
            continue
        in_one_call += 1
        assert exactly(found) == expected, (seed, options.given)
    assert in_one_call > 0.9 * len(seeds)


def test_every_rule_is_walked_over() -> None:
    assert set(NO_RULES) == {*BeamRules._fields}
    named = {tensor.name.removeprefix(RULES) for tensor in BEAM_RULES}
    assert named == {*NO_RULES, "source_tokens"}


@pytest.mark.parametrize("rule", NO_RULES)
def test_no_rule_can_be_left_out(
    model: OnnxModel, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(*given: Any) -> BeamRules:
        return make_rules(*given)._replace(**{rule: NO_RULES[rule]})

    for seed in range(MANY):
        requests, options = draw_setting(model, seed)
        if getattr(make_rules(options, requests[0].prefix), rule) == NO_RULES[rule]:
            continue
        expected = rounded(decode(model, requests, options))
        with monkeypatch.context() as patch:
            patch.setattr(graph_search, "make_rules", without)
            if exactly(decode(model, requests, options)) != expected:
                return
    pytest.fail("no setting notices")


@pytest.mark.parametrize("rules", ["tfexport", "transformers"])
def test_a_row_without_an_allowed_token_goes_step_by_step(model: OnnxModel, rules: str) -> None:
    options = ResolvedOptions.of(
        DecodingOptions(beam_size=2, max_length=5, min_length=5, search_rules=rules),
        BOS, (EOS,), 5, tuple(range(model.vocab_size)),
    )  # fmt: skip
    requests = [Request([4, 5]), Request([4])]
    with pytest.raises(NoTokenError):
        beam_in_one_call(model, requests, options)
    found = exactly(decode(model, requests, options))
    assert found == exactly(BeamSearch(model, requests, options).run())


def test_sentences_that_are_done_leave_the_others_as_they_are(model: OnnxModel) -> None:
    draw, lengths = random.Random(3), set()
    rows = [[draw.randrange(3, 17) for _ in range(draw.randint(1, 9))] for _ in range(16)]
    for given in ({}, {"search_rules": "transformers", "early_stopping": False}):
        options = resolved(beam_size=3, num_hypotheses=3, max_length=40, **given)
        together = beam_in_one_call(model, [Request(row) for row in rows], options)
        for row, found in zip(rows, together, strict=True):
            lengths.add(len(found[0].tokens))
            assert exactly(beam_in_one_call(model, [Request(row)], options)) == rounded([found])
    assert len(lengths) > 5, "they are done at different steps"


@pytest.mark.parametrize(
    ("options", "one_call"),
    [
        ({}, True),
        ({"patience": 2.0, "length_penalty": 0.3, "num_hypotheses": 3}, True),
        ({"early_stopping": False}, True),
        ({"beam_groups": 2, "beam_size": 4}, False),
        ({"min_length": 2}, True),
        ({"return_attention": True}, False),
        ({"coverage_penalty": 0.1}, False),
        ({"no_repeat_ngram_size": 2, "search_rules": "transformers"}, True),
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
