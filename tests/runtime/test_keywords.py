"""Options as keywords that an editor completes, and as one value."""

from dataclasses import fields
from inspect import signature
from pathlib import Path
from pydoc import render_doc
from typing import Any, get_type_hints

import pytest

from tfexport.errors import ConfigError, Message, Option
from tfexport.runtime import DecodingOptions, Translator
from tfexport.runtime.options import DecodingKeywords, ScoringKeywords, TranslationKeywords


@pytest.fixture(name="translator", scope="module")
def _translator(tiny_bundle: Path) -> Translator:
    return Translator(tiny_bundle, threads=1)


def test_keywords_are_the_options_and_their_types() -> None:
    options, keywords = get_type_hints(DecodingOptions), get_type_hints(DecodingKeywords)
    assert set(keywords) == {option.name for option in fields(DecodingOptions)}
    assert keywords == {name: options[name] for name in keywords}
    assert not DecodingKeywords.__required_keys__


def test_scoring_takes_options_of_decoding() -> None:
    assert get_type_hints(ScoringKeywords).items() <= get_type_hints(DecodingKeywords).items()


def test_options_as_one_value_are_the_same_options(translator: Translator, tmp_path: Path) -> None:
    options = DecodingOptions(beam_size=3, num_hypotheses=2, max_length=6, return_token_scores=True)
    keywords: dict[str, Any] = {
        "beam_size": 3,
        "num_hypotheses": 2,
        "max_length": 6,
        "return_token_scores": True,
    }
    texts = ["w5 w6", "w7"]
    assert translator.translate(texts, options=options) == translator.translate(texts, **keywords)
    assert translator.generate([[5, 6]], options=options) == translator.generate(
        [[5, 6]], **keywords
    )
    (tmp_path / "in.txt").write_text("w5 w6\n", encoding="utf-8")
    translator.translate_file(tmp_path / "in.txt", tmp_path / "out.txt", options=options)
    assert (tmp_path / "out.txt").read_text(encoding="utf-8").count("\n") == 2
    found = list(translator.translate_iterable(texts, options=options))
    assert found == translator.translate(texts, **keywords)
    greedy = DecodingOptions(max_length=6)
    assert list(translator.stream("w5", options=greedy)) == list(
        translator.stream("w5", max_length=6)
    )
    (scored,) = translator.score(["w5"], ["w6"], options=DecodingOptions(length_penalty=0.0))
    assert scored == translator.score(["w5"], ["w6"], length_penalty=0.0)[0]


def test_a_keyword_wins_over_a_value(translator: Translator) -> None:
    options = DecodingOptions(max_length=9, min_length=9)
    (made,) = translator.generate([[5, 6]], options=options, min_length=0, max_length=2)
    assert len(made.hypotheses[0].tokens) <= 2


def test_a_value_is_checked_as_keywords_are(translator: Translator) -> None:
    with pytest.raises(ConfigError, match="beam_size chooses tokens"):
        translator.score(["w5"], ["w6"], options=DecodingOptions(beam_size=2))
    with pytest.raises(ConfigError, match="beam_size 2 cannot be streamed"):
        translator.stream("w5", options=DecodingOptions(beam_size=2))
    with pytest.raises(ConfigError, match=r"options: \{'beam_size': 2\} is not a DecodingOptions"):
        translator.generate([[5]], options={"beam_size": 2})  # type: ignore[call-overload]


def test_problems_name_their_options_as_data(translator: Translator) -> None:
    with pytest.raises(ConfigError) as caught:
        translator.generate([[5, 6]], top_p=0.5, target_prefix=[[5, 6]], max_length=1)
    named = {part.name for part in caught.value.message.parts if isinstance(part, Option)}
    assert named == {"top_p", "sampling", "target_prefix", "max_length"}
    with pytest.raises(ConfigError) as caught:
        DecodingOptions(temperature="hot")  # type: ignore[arg-type]
    assert Option("temperature") in caught.value.message.parts
    assert isinstance(caught.value.message, Message)


@pytest.mark.parametrize(
    ("call", "keywords"),
    [("translate", DecodingKeywords), ("generate", DecodingKeywords),
     ("generate_from", DecodingKeywords), ("stream", DecodingKeywords),
     ("translate_iterable", DecodingKeywords), ("translate_file", TranslationKeywords),
     ("score", ScoringKeywords)],
)  # fmt: skip
def test_help_names_the_options_and_their_defaults(call: str, keywords: type) -> None:
    shown = signature(getattr(Translator, call)).parameters
    assert set(get_type_hints(keywords)) <= set(shown)
    assert "keywords" not in shown
    assert shown["length_penalty"].default == 1.0
    assert "length_penalty: float = 1.0" in render_doc(getattr(Translator, call))
