"""The protocol of LibreTranslate."""

from typing import Any

import pytest

from tests.serve.servers import FORM, Server
from tfexport.runtime import Translator


def translated(translator: Translator, text: str, **options: Any) -> list[str]:
    found: list[str] = translator.translate([text], **options)[0].texts
    return found


def test_one_text_gives_one(server: Server, translator: Translator) -> None:
    answer = server.post("/translate", {"q": "w4 w5", "source": "de", "target": "en"})
    assert answer.status == 200
    assert answer.json == {"translatedText": translated(translator, "w4 w5")[0]}


def test_forms_are_read(server: Server, translator: Translator) -> None:
    answer = server.ask("POST", "/translate", "q=w4+w5&source=DE&target=en-US", FORM)
    assert answer.json == {"translatedText": translated(translator, "w4 w5")[0]}


def test_several_texts_give_several(server: Server, translator: Translator) -> None:
    given = ["w4 w5", "w6"]
    body = {"q": given, "source": "auto", "target": "en", "alternatives": 2}
    found = server.post("/translate", body).json
    texts = [translated(translator, text, beam_size=3, num_hypotheses=3) for text in given]
    assert found == {
        "translatedText": [text[0] for text in texts],
        "detectedLanguage": [{"confidence": 0.0, "language": "de"}] * 2,
        "alternatives": [
            [*dict.fromkeys(other for other in text if other != text[0])] for text in texts
        ],
    }


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"q": "w4", "source": "fr", "target": "en"}, "no model translates from fr to en"),
        ({"q": "w4", "source": "de", "target": "de"}, "no model translates from de to de"),
        ({"q": "w4", "source": "de", "target": "en", "format": "rtf"}, "format: "),
        ({"q": "w4", "source": "de"}, "target: is missing"),
        ({"q": 5, "source": "de", "target": "en"}, "q"),
        ({"q": "w4", "target": "en", "alternatives": -1, "style": 1}, "style: is not a know"),
        ({"q": "w4", "target": "en", "alternatives": 99}, "beam_size: 100 is more than the 32"),
    ],
)
def test_wrong_calls_are_named(server: Server, body: dict[str, Any], said: str) -> None:
    answer = server.post("/translate", body)
    assert answer.status == 400
    assert list(answer.json) == ["error"]
    assert said in answer.json["error"]


@pytest.mark.parametrize("form", ["q=w4&q=w5&target=en", "q", "q=%FF&target=en", "q=w4&x=1"])
def test_wrong_forms_are_refused(server: Server, form: str) -> None:
    answer = server.ask("POST", "/translate", form, FORM)
    assert answer.status == 400
    assert answer.json["error"]


def test_languages_are_listed(server: Server) -> None:
    assert server.ask("GET", "/languages").json == [
        {"code": "de", "name": "German", "targets": ["en"]},
        {"code": "en", "name": "English", "targets": []},
    ]


def test_settings_say_whether_a_key_is_needed(server: Server) -> None:
    found = server.ask("GET", "/frontend/settings").json
    assert found["keyRequired"] is False
    assert found["charLimit"] == 100_000


@pytest.mark.parametrize("path", ["/suggest", "/translate_file"])
def test_paths_that_are_not_there_are_named(server: Server, path: str) -> None:
    answer = server.ask("POST", path, "q=w4", FORM)
    assert answer.status == 404
    assert answer.json["error"].startswith(path)
