"""Resolved options hold what decoding goes by, and what was given is told apart."""

import dataclasses

import numpy as np
import pytest

from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.search import ResolvedOptions

pytestmark = pytest.mark.no_model

BOS, EOS = 1, 2


def test_every_option_has_its_resolved_value_under_its_own_name() -> None:
    given = DecodingOptions(
        beam_size=3, max_length=100, end_tokens=["</s>"], suppress_tokens=["x"],
        suppress_sequences=[["x", 7]], length_penalty=0.5,
    )  # fmt: skip
    options = ResolvedOptions.of(given, BOS, (EOS,), 20, (5,), ((5, 7),), eos_id=4, seed=9)
    expected = {
        **vars(given), "max_length": 20, "end_tokens": (EOS,), "suppress_tokens": (5,),
        "suppress_sequences": ((5, 7),), "seed": 9,
    }  # fmt: skip
    assert {name: getattr(options, name) for name in expected} == expected
    assert (options.bos_id, options.eos_id) == (BOS, 4)
    assert options.given == {
        "beam_size": 3, "max_length": 100, "end_tokens": ["</s>"], "suppress_tokens": ["x"],
        "suppress_sequences": [["x", 7]], "length_penalty": 0.5,
    }  # fmt: skip


def test_a_drawn_seed_was_not_given() -> None:
    drawn = ResolvedOptions.of(DecodingOptions(sampling=True), BOS, (EOS,), 5, seed=9)
    assert drawn.seed == 9
    assert "seed" not in drawn.given


def test_a_models_limit_may_be_below_the_least_length() -> None:
    given = DecodingOptions(min_length=50)
    options = ResolvedOptions.of(given, BOS, (EOS,), 20)
    assert (options.min_length, options.max_length) == (50, 20)


def test_an_option_that_no_graph_knows_keeps_a_search_out_of_it() -> None:
    cases = ((1, "fits_greedy_graph"), (4, "fits_beam_rules"))
    for size, fits in cases:
        options = ResolvedOptions.of(DecodingOptions(beam_size=size), BOS, (EOS,), 5)
        assert getattr(options, fits)
        unheard = dataclasses.replace(options, given={**options.given, "an_option_of_tomorrow": 1})
        assert not getattr(unheard, fits)


@pytest.mark.parametrize(
    ("ends", "fits"), [((EOS,), True), ((4,) * 99, True), (range(64), True), (range(65), False)]
)
def test_rules_of_beams_take_some_end_tokens(ends: tuple[int, ...], fits: bool) -> None:
    made = ResolvedOptions.of(DecodingOptions(beam_size=2), BOS, tuple(ends), 5)
    assert made.fits_beam_rules is fits


@pytest.mark.parametrize("ends", [(EOS,), (EOS, 5)])
def test_end_tokens_end_rows(ends: tuple[int, ...]) -> None:
    options = ResolvedOptions.of(DecodingOptions(), BOS, ends, 5)
    assert options.ends(np.array([4, EOS, 5])).tolist() == [False, True, 5 in ends]
