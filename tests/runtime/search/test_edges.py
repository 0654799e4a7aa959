"""Options at their edges give results, of no tokens if need be."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from tfexport.runtime import Translator

ROWS = [[4, 5, 2], [12, 8, 4, 16, 2]]
EVERYTHING = list(range(19))


@pytest.fixture(name="translator", scope="module")
def _translator(tiny_bundle: Path) -> Translator:
    return Translator(tiny_bundle, threads=1)


@pytest.mark.parametrize("nothing", [{"max_length": 0}, {"suppress_tokens": EVERYTHING}], ids=str)
@pytest.mark.parametrize(
    "search",
    [
        {},
        {"sampling": True, "num_hypotheses": 2, "seed": 1},
        {"beam_size": 2},
        {"return_alternatives": True},
    ],
    ids=str,
)
def test_where_no_token_is_made_there_is_no_attention(
    translator: Translator, nothing: dict[str, Any], search: dict[str, Any]
) -> None:
    results = translator.generate(ROWS, return_attention=True, **nothing, **search)
    for row, result in zip(ROWS, results, strict=True):
        made = result.hypotheses[0]
        assert made.tokens == []
        assert made.attention is not None
        assert made.attention.shape == (0, len(row))
        assert result.alignment() == []


def test_a_text_of_no_tokens_has_no_unknowns_to_replace(translator: Translator) -> None:
    (result,) = translator.translate(["w4 w5"], max_length=0, replace_unknowns=True)
    assert result.text == ""


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-40, 1e-45, 1e-300])
@pytest.mark.parametrize("options", [{}, {"top_k": 4}, {"top_p": 0.9}], ids=str)
def test_a_temperature_near_zero_takes_the_best_token(
    translator: Translator, temperature: float, options: dict[str, Any]
) -> None:
    greedy = translator.generate(ROWS, max_length=6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = translator.generate(
            ROWS, max_length=6, sampling=True, temperature=temperature, **options
        )
    for one, other in zip(greedy, drawn, strict=True):
        assert one.hypotheses[0].tokens == other.hypotheses[0].tokens


@pytest.mark.parametrize("penalty", [-10, 10, 0])
@pytest.mark.parametrize("search", [{}, {"beam_size": 3}, {"beam_size": 2, "beam_groups": 2}])
def test_scores_are_numbers_at_either_end_of_the_length_penalty(
    translator: Translator, penalty: float, search: dict[str, Any]
) -> None:
    for result in translator.generate(ROWS, length_penalty=penalty, max_length=30, **search):
        assert -1e30 < result.hypotheses[0].score <= 0


@pytest.mark.parametrize("penalty", [1e-3, 1e3])
def test_probabilities_stay_below_one_whatever_the_repetition_penalty(
    translator: Translator, penalty: float
) -> None:
    options: dict[str, Any] = {
        "repetition_penalty": penalty,
        "return_token_scores": True,
        "max_length": 8,
    }
    searches: list[dict[str, Any]] = [{}, {"beam_size": 9}]
    for search in searches:
        for result in translator.generate(ROWS, **options, **search):
            scores = result.hypotheses[0].token_scores
            assert scores
            assert max(scores) <= 1e-6


def test_without_scores_there_are_none_on_any_path(translator: Translator) -> None:
    searches: list[dict[str, Any]] = [{}, {"beam_size": 3}, {"sampling": True, "seed": 1}]
    for search in searches:
        for result in translator.generate(ROWS, return_scores=False, **search):
            assert result.hypotheses[0].score != result.hypotheses[0].score
