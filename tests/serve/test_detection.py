"""The languages of texts whose callers name none."""

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.serve.servers import Server, serving
from tests.serve.test_texts import changed
from tfexport.languages import Languages
from tfexport.serve import detection, texts
from tfexport.serve.detection import LOOKED_AT, detect
from tfexport.serve.failures import RequestError
from tfexport.serve.rows import TextRequest

GERMAN = "Das ist ein gutes Haus, und w4 w5 ist auch gut."
ENGLISH = "This is a good house, and w4 w5 is good as well."
FRENCH = "Ceci est une bonne maison, et w4 w5 est bonne aussi."
TOLD = Languages(
    {"eng_Latn": 10, "deu_Latn": 11, "fra_Latn": 12}, "before", "first", "eng_Latn", None
)


@pytest.fixture(scope="module", name="told")
def _told(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model of several languages, with a default source."""
    folder = tmp_path_factory.mktemp("told")
    bundle = changed(tiny_bundle, folder / "many.bundle", languages=asdict(TOLD))
    with serving(folder, bundle) as running:
        yield running


def libre(server: Server, text: str | list[str], **more: str) -> Any:
    return server.post("/translate", {"q": text, "source": "auto", "target": "fr", **more})


def test_a_language_is_found_not_assumed(told: Server) -> None:
    for text, code in ((GERMAN, "de"), (ENGLISH, "en")):
        found = libre(told, text).json
        assert found["detectedLanguage"]["language"] == code
        assert found["detectedLanguage"]["confidence"] > 60
        said = libre(told, text, source=code).json["translatedText"]
        assert found["translatedText"] == said


def test_each_text_of_a_request_has_a_language_of_its_own(told: Server) -> None:
    found = libre(told, [GERMAN, ENGLISH, "w4", GERMAN]).json
    languages = [one["language"] for one in found["detectedLanguage"]]
    assert languages[:2] == ["de", "en"]
    assert languages[3] == "de"
    alone = [libre(told, text).json["translatedText"] for text in (GERMAN, ENGLISH)]
    assert found["translatedText"][:2] == alone
    deepl = told.post("/v2/translate", {"text": [ENGLISH, GERMAN], "target_lang": "FR"}).json
    found = [(one["detected_source_language"], one["text"]) for one in deepl["translations"]]
    assert found == [("EN", alone[1]), ("DE", alone[0])]


@pytest.mark.parametrize("text", ["w4 w5", "12345", "OK"])
def test_a_language_that_cannot_be_told_is_asked_for(told: Server, text: str) -> None:
    answer = libre(told, text)
    assert answer.status == 400
    assert "text 0: its language was not detected" in answer.json["error"]
    answer = told.post("/v2/translate", {"text": [GERMAN + GERMAN, text], "target_lang": "FR"})
    assert answer.status == 200  # what is with it tells


def test_a_text_of_no_language_of_the_model_is_not_taken_for_one(told: Server) -> None:
    answer = libre(told, "Это хороший дом, и он мне очень нравится.")
    assert answer.status == 400


def test_the_only_language_is_taken_with_the_confidence_that_there_is(server: Server) -> None:
    def confidence(text: str) -> float:
        body = {"q": text, "source": "auto", "target": "en"}
        found = server.post("/translate", body).json["detectedLanguage"]
        assert found["language"] == "de"
        return float(found["confidence"])

    assert confidence(FRENCH) < 10
    assert confidence(GERMAN) > 60
    assert confidence("w4 w5") == 0


def test_detect_lists_languages(told: Server) -> None:
    found = told.post("/detect", {"q": GERMAN}).json
    assert found[0]["language"] == "de"
    assert found[0]["confidence"] > 60
    assert told.post("/detect", {"q": "123"}).json == []


def test_mistakes_are_of_the_text_in_the_request(told: Server) -> None:
    texts = [GERMAN, ENGLISH, "w4 " * 999 + GERMAN]
    body = {"text": texts, "target_lang": "FR", "split_sentences": "0"}
    answer = told.post("/v2/translate", body)
    assert answer.status == 400
    assert "text 2: " in answer.json["message"]


def test_without_the_library_languages_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "py3langid", None)
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    detection._load.cache_clear()
    detection._ranks.cache_clear()
    try:
        assert not detection.can_detect()
        assert detect(GERMAN, ["de", "en"]) == {}
        monkeypatch.setattr(texts, "choose_only", lambda *_: None)
        monkeypatch.setattr(texts, "sources_of", lambda *_: ["de", "en"])
        service: Any = SimpleNamespace(models=[])
        with pytest.raises(RequestError, match=r"one of de, en; .* not installed"):
            texts._choices(service, TextRequest([GERMAN]), None, "fr")
    finally:
        monkeypatch.undo()
        detection._load.cache_clear()
        detection._ranks.cache_clear()


def test_long_texts_are_looked_at_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[int]()

    def rank(text: str) -> list[tuple[str, float]]:
        seen.append(len(text))
        return [("de", 0.9), ("en", 0.1), ("fr", 0.0)]

    monkeypatch.setattr(detection, "_identifier", lambda: SimpleNamespace(rank=rank))
    detection._ranks.cache_clear()
    try:
        (best, *_) = detect("x" * 100_000, ["de", "en", "fr"])
    finally:
        detection._ranks.cache_clear()
    assert (best, seen) == ("de", [LOOKED_AT])
