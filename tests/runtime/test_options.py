"""Options are checked all together, before any work."""

from typing import Any

import numpy as np
import pytest

from tfexport.errors import ConfigError, shown
from tfexport.runtime import DecodingOptions, Translator, options, resolve
from tfexport.runtime.options import check_options


@pytest.fixture(scope="module")
def translator(request: pytest.FixtureRequest) -> Translator:
    return Translator(request.getfixturevalue("tiny_bundle"), threads=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_p": 0.5}, "top_p needs sampling"),
        ({"top_k": 5}, "top_k needs sampling"),
        ({"temperature": 0.5}, "temperature needs sampling"),
        ({"seed": 5}, "seed needs sampling"),
        ({"num_hypotheses": 5, "beam_size": 4}, "num_hypotheses 5 exceeds beam_size 4"),
        ({"sampling": True, "beam_size": 4}, "beam_size 4 excludes sampling"),
        ({"patience": 2.0}, "patience needs beam_size above 1"),
        ({"early_stopping": False}, "early_stopping needs beam_size above 1"),
        ({"coverage_penalty": 0.1}, "coverage_penalty needs beam_size above 1"),
        (
            {"beam_size": 4, "patience": 2.0, "early_stopping": False},
            "patience needs early_stopping",
        ),
        ({"beam_size": 4, "beam_groups": 3}, "beam_groups 3 does not divide beam_size 4"),
        ({"beam_size": 4, "diversity_penalty": 0.1}, "diversity_penalty needs beam_groups above 1"),
        ({"min_length": 5, "max_length": 4}, "min_length 5 exceeds max_length 4"),
        ({"beam_size": 2, "callback": print}, "callback excludes beam_size 2"),
        ({"min_alternative_probability": 0.1}, "needs return_alternatives"),
        ({"attention_layer": 0}, "attention_layer needs return_attention"),
        ({"temperature": 0.0, "sampling": True}, "temperature: 0.0 is not above 0"),
        ({"top_p": 1.5, "sampling": True}, "top_p: 1.5 is not between 0 and 1"),
        ({"length_penalty": float("nan")}, "length_penalty: nan is not a number"),
        ({"length_penalty": "1"}, "length_penalty: '1' is not a number"),
        ({"max_length": True}, "max_length: True is not an integer"),
        ({"sampling": 1}, "sampling: 1 is not true or false"),
        ({"batch_type": "bytes"}, "'bytes' is not 'rows' or 'tokens'"),
        ({"callback": 5}, "callback: 5 cannot be called"),
        ({"suppress_tokens": "w5"}, "'w5' is not a list of tokens"),
        ({"suppress_tokens": [1.5]}, "1.5 is neither an id nor a token"),
        ({"suppress_sequences": [[]]}, "an empty sequence would ban every token"),
        ({"suppress_sequences": "w5"}, "'w5' is not a list of sequences"),
        ({"beam_size": 10**7}, "beam_size: 10000000 is more than 1024"),
        ({"sampling": True, "num_hypotheses": 10**9}, "num_hypotheses: 1000000000 is more than"),
        ({"batch_size": 10**30}, "is more than 1048576"),
        ({"max_length": 10**5000}, "max_length: a number of more than 60 digits is more than"),
        ({"length_penalty": -300}, "length_penalty: -300 is not between -10 and 10"),
        ({"length_penalty": 1000.0}, "length_penalty: 1000.0 is not between -10 and 10"),
        ({"length_penalty": 10**400}, "is not between -10 and 10"),
        ({"patience": float("inf"), "beam_size": 2}, "patience: inf is not at most 1e+06"),
        ({"repetition_penalty": 1e-300}, "repetition_penalty: 1e-300 is not between 0.001"),
        ({"batch_type": np.array(["rows", "tokens"])}, "is not 'rows' or 'tokens'"),
    ],
    ids=shown,
)
def test_what_cannot_be_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DecodingOptions(**options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"suppress_tokens": [99]}, "suppress_tokens: id 99 is not in the vocabulary (0 to 18)"),
        ({"suppress_tokens": ["nope"]}, "suppress_tokens: 'nope' is not a token of the vocabulary"),
        ({"end_tokens": ["nope", 5]}, "end_tokens: 'nope' is not a token"),
        ({"suppress_sequences": [[5, -1]]}, "suppress_sequences: id -1 is not in the vocabulary"),
        ({"suppress_sequences": ["  "]}, "suppress_sequences: '  ' holds no token"),
        ({"return_attention": True, "attention_layer": 1}, "attention_layer 1 is not in a decoder"),
        ({"return_attention": True, "attention_head": 2}, "attention_head 2 is not one of 2 heads"),
        (
            {"target_prefix": [[5, 6]], "max_length": 1},
            "row 0: 2 tokens exceed max_length 1",
        ),
        ({"target_prefix": [[2]]}, "target_prefix of row 0: holds the end token 2"),
        ({"target_prefix": [[77]]}, "target_prefix of row 0: id 77 is not in the vocabulary"),
        ({"target_prefix": [None, None]}, "target_prefix holds 2 prefixes for 1 rows"),
        ({"target_prefix": "w5"}, "target_prefix: expected a list of prefixes"),
        ({"replace_unknowns": True}, "replace_unknowns acts on text"),
    ],
    ids=str,
)
def test_what_this_model_cannot_do_is_named(
    translator: Translator, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        translator.generate([[5]], **options)
    assert message in str(caught.value)


def test_options_are_checked_once_a_call_and_none_not_at_all(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[dict[str, Any]] = []

    def counted(given: dict[str, Any]) -> Any:
        checked.append(given)
        return check_options(given)

    monkeypatch.setattr(resolve, "check_options", counted)
    monkeypatch.setattr(options, "check_options", counted)
    translator.generate([[5, 6]])
    checked.clear()
    translator.generate([[5, 6]])
    assert checked == []
    translator.generate([[5, 6]], beam_size=2)
    assert checked == [{"beam_size": 2}]


def test_the_last_options_stay_checked_after_many_different_ones(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver = Translator(translator.path).engine.resolver
    for length in range(1, 2 * resolve._MOST_CHECKED):
        resolver.resolve({"max_length": length})
        resolver.resolve({"beam_size": 2})  # again and again
    monkeypatch.setattr(resolve, "check_options", pytest.fail)
    assert resolver.resolve({"beam_size": 2})[0].beam_size == 2
    last = 2 * resolve._MOST_CHECKED - 1
    assert resolver.resolve({"max_length": last})[0].given == {"max_length": last}
    assert len(resolver._checked) == resolve._MOST_CHECKED


def test_no_end_tokens_are_the_models_own(translator: Translator) -> None:
    own = translator.manifest.special_ids.eos
    assert translator.engine.resolver.resolve({"end_tokens": []})[0].end_tokens == (own,)


def test_all_problems_stand_in_one_message(translator: Translator) -> None:
    with pytest.raises(ConfigError) as caught:
        translator.translate(  # type: ignore[call-overload]
            ["w5"],
            target_prefix=["w5 w6 w7"],
            top_p=0.5,
            num_hypotheses=5,
            beam_size=4,
            max_length=2,
            suppress_tokens=["nope"],
            lenght_penalty=1.0,
            batch_size="many",
        )
    text = str(caught.value)
    assert "6 problems" in text
    for part in (
        "unknown option 'lenght_penalty'; did you mean 'length_penalty'?",
        "batch_size: 'many' is not an integer",
        "top_p needs sampling",
        "num_hypotheses 5 exceeds beam_size 4",
        "suppress_tokens: 'nope' is not a token",
        "target_prefix of row 0: 3 tokens exceed max_length 2",
    ):
        assert part in text


@pytest.mark.parametrize("value", [np.array([]), np.array([1, 2]), "much", None])
def test_scoring_refuses_coverage_penalties_that_are_no_numbers(
    translator: Translator, value: Any
) -> None:
    with pytest.raises(ConfigError, match="coverage_penalty"):
        translator.score([[4]], [[5]], coverage_penalty=value)


@pytest.mark.parametrize("option", ["beam_size", "sampling", "callback", "max_length", "nonsense"])
def test_scoring_takes_no_option_that_chooses_tokens(translator: Translator, option: str) -> None:
    with pytest.raises(ConfigError, match=option):
        translator.score([[5]], [[6]], **{option: 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": 2}, "beam_size 2 cannot be streamed"),
        ({"return_alternatives": True}, "return_alternatives cannot be streamed"),
        ({"replace_unknowns": True}, "replace_unknowns cannot be streamed"),
        ({"sampling": True, "num_hypotheses": 2}, "num_hypotheses 2 cannot be streamed"),
    ],
    ids=str,
)
def test_what_cannot_be_streamed_is_refused_at_once(
    translator: Translator, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        translator.stream("w5", **options)


def test_options_that_are_kept_are_not_taken_for_others(translator: Translator) -> None:
    resolver = translator.engine.resolver
    once, _ = resolver.resolve({"max_length": 1})
    again, _ = resolver.resolve({"max_length": 1})
    assert again is once
    other, _ = resolver.resolve({"max_length": 2})
    assert (once.max_length, other.max_length) == (1, 2)
    for wrong in (True, 1.0):  # equal to 1, which is right
        with pytest.raises(ConfigError, match="max_length"):
            resolver.resolve({"max_length": wrong})
    seeds = {resolver.resolve({"sampling": True})[0].seed for _ in range(3)}
    assert len(seeds) == 3
