"""A beam search by rules in one call gives exactly what ``BeamSearch`` gives step by step.

Settings are drawn: rules, several of them at once, over models that end rows often and that have
tokens which tie.
"""

import dataclasses
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawn import draw_config, draw_model, draw_sources, engine_config, engine_tensors
from tfexport_native import Model, NativeError, instruction_sets

from tests.support.drawn_beams import ENDS, NO_RULES, draw_options
from tfexport.runtime.model.interface import BeamRules, NoTokenError
from tfexport.runtime.model.native_model import NativeModel
from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search import Request, ResolvedOptions, decode, dispatch, graph_search
from tfexport.runtime.search.beam import BeamSearch

MODELS = 8
SOME, MANY = 16, 512  # settings of each
TWINS = slice(5, 8)  # tokens that nothing tells apart
LARGE = 700  # tokens, from 512 on of which some sets rank by integers; see engine/vocabulary.h


class DrawnModel(NativeModel):
    """An engine's model that is in no bundle."""

    def __init__(self, number: int, vocab_size: int | None = None) -> None:
        config = dataclasses.replace(draw_config(300 + number), output_bias=True)
        if vocab_size:
            source = vocab_size if config.tie_embeddings else config.source_vocab_size
            config = dataclasses.replace(
                config, target_vocab_size=vocab_size, source_vocab_size=source
            )
        module = draw_model(config, number)
        with torch.no_grad():
            if number % 2:
                output, embedding = module.output_proj, module.target_embedding.tokens
                for parameter in (output.weight, output.bias, embedding.weight):
                    parameter[TWINS] = parameter[TWINS.start].clone()
                output.bias[TWINS] += 1
            module.output_proj.bias[list(ENDS[:2])] += 1.5
        sets = instruction_sets()
        self._opened = Model(
            engine_config(config), engine_tensors(module), 1 + number % 3, sets[number % len(sets)]
        )
        self._opening = threading.Lock()
        self.folder, self.vocab_size = Path("drawn"), self._opened.vocab_size
        self.config = config


_MODELS: dict[int, DrawnModel] = {}


def model_of(number: int) -> DrawnModel:
    if number not in _MODELS:
        _MODELS[number] = DrawnModel(number)
    return _MODELS[number]


def draw_setting(number: int, seed: int) -> tuple[DrawnModel, list[Request], ResolvedOptions]:
    draw, model = random.Random(1000 * number + seed), model_of(number)
    options = draw_options(draw, model.vocab_size)
    found = draw_sources(model.config, draw.randrange(1 << 30))
    found += draw_sources(model.config, draw.randrange(1 << 30))
    prefix = options.with_first_token(())
    requests = [
        Request(source, place, prefix) for place, source in enumerate(found[: draw.randint(1, 8)])
    ]
    return model, requests, options


def exactly(found: list[list[Hypothesis]]) -> list[Any]:
    """All of hypotheses, to the last bit."""
    return [
        [
            (made.tokens, made.finished, made.score.hex(), made.token_scores and
             [score.hex() for score in made.token_scores])
            for made in of_row
        ]
        for of_row in found
    ]  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [range(SOME), pytest.param(range(SOME, MANY), marks=pytest.mark.exhaustive)],
    ids=["some", "many"],
)
@pytest.mark.parametrize("number", range(MODELS))
def test_one_call_gives_exactly_what_steps_give(number: int, settings: range) -> None:
    in_one_call = 0
    for seed in settings:
        model, requests, options = draw_setting(number, seed)
        expected = exactly(BeamSearch(model, requests, options).run())
        assert options.fits_beam_rules
        if len(requests[0].prefix) >= options.max_length:
            continue
        try:
            found = graph_search.beam_in_one_call(model, requests, options)
        except NoTokenError:
            continue
        in_one_call += 1
        assert exactly(found) == expected, (number, seed, options.given)
    assert in_one_call > len(settings) / 2


def test_a_large_vocabulary_gives_what_steps_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores to about 1e-5 where words are ranked by integers; rows alone to the last bit."""
    monkeypatch.setitem(_MODELS, 0, DrawnModel(0, LARGE))  # of the fastest set
    in_one_call = 0
    for seed in range(SOME):
        model, requests, options = draw_setting(0, seed)
        if len(requests[0].prefix) >= options.max_length:
            continue
        try:
            together = graph_search.beam_in_one_call(model, requests, options)
        except NoTokenError:
            continue
        in_one_call += 1
        expected = BeamSearch(model, requests, options).run()
        for of_row, same in zip(together, expected, strict=True):
            assert [made.tokens for made in of_row] == [made.tokens for made in same], seed
            scores = [made.score for made in same]
            assert [made.score for made in of_row] == pytest.approx(scores, rel=1e-5, abs=1e-5)
        for request, of_row in zip(requests, together, strict=True):
            alone = graph_search.beam_in_one_call(model, [request], options)
            assert exactly(alone) == exactly([of_row]), seed
    assert in_one_call > SOME / 2


def test_every_rule_is_walked_over() -> None:
    assert set(NO_RULES) == {*BeamRules._fields}


@pytest.mark.parametrize("rule", NO_RULES)
def test_no_rule_can_be_left_out(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_rules = graph_search.make_rules

    def without(*given: Any) -> BeamRules:
        return make_rules(*given)._replace(**{rule: NO_RULES[rule]})

    for seed in range(MODELS * MANY):
        model, requests, options = draw_setting(seed % MODELS, seed)
        if getattr(make_rules(options, requests[0].prefix), rule) == NO_RULES[rule]:
            continue
        expected = exactly(decode(model, requests, options))
        with monkeypatch.context() as patch:
            patch.setattr(graph_search, "make_rules", without)
            if exactly(decode(model, requests, options)) != expected:
                return
    pytest.fail("no setting notices")


def test_a_row_without_an_allowed_token_goes_step_by_step() -> None:
    model = model_of(0)
    for rules in ("tfexport", "transformers"):
        given = DecodingOptions(beam_size=2, max_length=5, min_length=5, search_rules=rules)
        options = ResolvedOptions.of(given, 1, (2,), 5, tuple(range(model.vocab_size)))
        requests = [Request([4, 5]), Request([4])]
        with pytest.raises(NoTokenError):
            graph_search.beam_in_one_call(model, requests, options)
        found = decode(model, requests, options)
        assert exactly(found) == exactly(BeamSearch(model, requests, options).run())


def test_ngrams_of_sources_need_their_ids() -> None:
    model = model_of(0)
    given = DecodingOptions(beam_size=2, max_length=5, encoder_no_repeat_ngram_size=2)
    options = ResolvedOptions.of(given, 1, (2,), 5)
    requests = [Request([], inputs={"frames": np.zeros((3, 2), np.float32)})]
    assert dispatch._beam_in_one_call(model, requests, options) is None
    states = model._model.encode([[4, 5, 6]])
    with pytest.raises(NativeError, match="n-grams of sources that are states"):
        model._model.beam(states, 2, 2, 5, rules={"source_ngram": 2})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"stop": "late"}, "stop is 'late'; expected one of early, present, next, longest"),
        ({"ends": (999,)}, "end tokens: 999; expected 0 to"),
        ({"ends": tuple(range(9)) * 8}, "expected 1 to 64 end tokens"),
        ({"first_token": 999}, "forced tokens: 999; expected -1 to"),
        ({"suppressed": (-1,)}, "suppressed tokens: -1; expected 0 to"),
        ({"sequences": ((),)}, "lengths of suppressed sequences: 0; expected 1 to"),
        ({"ngram": -1}, "a length below 0"),
        ({"length_penalty": float("nan")}, "length_penalty is no number from -10 to 10"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is no positive number"),
        ({"renormalize": True}, "logits are not renormalized"),
        ({"bans": ()}, "unknown rules: bans; known are ends, start"),
    ],
    ids=str,
)
def test_rules_that_make_no_sense_are_refused(wrong: dict[str, Any], message: str) -> None:
    engine = model_of(0)._model
    with pytest.raises(NativeError, match=message):
        engine.beam([[4]], 2, 2, 5, rules=wrong)
