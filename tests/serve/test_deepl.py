"""The protocol of DeepL."""

from typing import Any

import pytest

from tests.serve.servers import FORM, Server
from tfexport.runtime import Translator


def texts_of(answer: Any) -> list[str]:
    assert answer.status == 200, answer.body
    return [one["text"] for one in answer.json["translations"]]


def test_texts_are_translated_and_billed(server: Server, translator: Translator) -> None:
    body = {"text": ["w4 w5", "w6"], "target_lang": "EN-US", "show_billed_characters": True}
    wanted = [result.text for result in translator.translate(["w4 w5", "w6"])]
    assert server.post("/v2/translate", body).json == {
        "translations": [
            {"detected_source_language": "DE", "text": wanted[0], "billed_characters": 5},
            {"detected_source_language": "DE", "text": wanted[1], "billed_characters": 2},
        ]
    }


def test_forms_may_repeat_texts(server: Server, translator: Translator) -> None:
    answer = server.ask("POST", "/v2/translate", "text=w4+w5&text=w6&target_lang=EN", FORM)
    assert texts_of(answer) == [one.text for one in translator.translate(["w4 w5", "w6"])]


def test_sentences_are_split_as_asked(server: Server, translator: Translator) -> None:
    text = "w4 w5\nw6"
    apart = "\n".join(str(one.text) for one in translator.translate(["w4 w5", "w6"]))
    whole = translator.translate([text])[0].text
    assert apart != whole
    for value, wanted in (("1", apart), ("0", whole), ("nonewlines", whole), (0, whole)):
        body = {"text": [text], "target_lang": "en", "split_sentences": value}
        assert texts_of(server.post("/v2/translate", body)) == [wanted]


@pytest.mark.parametrize(
    "options",
    [
        {"formality": "default"},
        {"formality": "prefer_less"},
        {"preserve_formatting": True},
        {"preserve_formatting": "1"},
        {"model_type": "latency_optimized"},
        {"context": ""},
        {"source_lang": "de"},
        {"source_lang": ""},
        {"ignore_tags": []},
    ],
)
def test_options_that_ask_for_nothing_are_taken(server: Server, options: dict[str, Any]) -> None:
    assert texts_of(server.post("/v2/translate", {"text": ["w4"], "target_lang": "EN", **options}))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"formality": "more", "style_id": "x"}, ["formality: not ", "style_id: not "]),
        ({"glossary_id": "x"}, ["glossary_id: needs source_lang"]),
        ({"glossary_id": "x", "source_lang": "DE"}, ["glossary_id: this server keeps no"]),
        ({"glossary_id": "x", "glossary_ids": ["y"]}, ["give glossary_id or glossary_ids"]),
        ({"glossary_ids": ["x"] * 6, "source_lang": "DE"}, ["glossary_ids: "]),
        ({"tag_handling": "yaml"}, ["tag_handling: "]),
        ({"context": "a letter"}, ["context: not supported by this server"]),
        ({"split_sentences": "2"}, ["split_sentences: '2' is not one of 0, 1, nonewlines"]),
        ({"target_lang": "XX"}, ["no model translates from any language to XX"]),
        ({"target_lang": "", "foo": 1, "style_id": "x"}, ["target_lang: ", "foo: ", "style_id: "]),
        ({"text": "w4"}, ["text: "]),
        ({"text": ["w4 " * 999], "split_sentences": "0"}, ["text 0: 1000 tokens exceed"]),
    ],
)
def test_wrong_calls_name_every_problem(
    server: Server, options: dict[str, Any], said: list[str]
) -> None:
    answer = server.post("/v2/translate", {"text": ["w4"], "target_lang": "EN", **options})
    assert answer.status == 400
    assert list(answer.json) == ["message"]
    for text in said:
        assert text in answer.json["message"]


def test_languages_are_listed(server: Server) -> None:
    assert server.ask("GET", "/v2/languages").json == [{"language": "DE", "name": "German"}]
    assert server.ask("GET", "/v2/languages?type=target").json == [
        {"language": "EN-GB", "name": "English (British)", "supports_formality": False},
        {"language": "EN-US", "name": "English (American)", "supports_formality": False},
    ]
    assert server.ask("GET", "/v2/languages?type=x").status == 400


def test_usage_counts_characters(server: Server) -> None:
    before = server.ask("GET", "/v2/usage").json["character_count"]
    server.post("/v2/translate", {"text": ["w4 w5", "w6"], "target_lang": "EN"})
    found = server.ask("GET", "/v2/usage").json
    assert found["character_count"] == before + 7
    assert found["character_limit"] > found["character_count"]


def test_paths_that_are_not_there_have_its_form(server: Server) -> None:
    answer = server.ask("GET", "/v2/document")
    assert answer.status == 404
    assert "/v2/document" in answer.json["message"]
