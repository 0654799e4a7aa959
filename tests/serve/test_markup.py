"""Texts with markup, in every protocol that takes them."""

import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.serve.servers import Server, serving
from tests.support.combinations import few_of
from tests.support.paths import REPOSITORY
from tfexport.markup.document import Markup
from tfexport.markup.tokens import escape
from tfexport.runtime import Translator
from tfexport.runtime.results import Hypothesis
from tfexport.serve.failures import RequestError
from tfexport.serve.rows import TextRequest, TextTranslation, _documents
from tfexport.serve.texts import KEPT, cut_headers

DEMO = REPOSITORY / "examples" / "de-en.bundle"
TEXT = "<p>Tom liest ein <a href='x'>Buch</a>. <b>Maria schläft.</b></p>\n<pre>1 &lt; 2</pre>"


@pytest.fixture(scope="module", name="demo")
def _demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("markup")
    with serving(folder, DEMO, "--languages", "de-en=de-en") as running:
        yield running


def plain(*sentences: str) -> list[str]:
    translator = Translator(DEMO, threads=1)
    return [str(found.text) for found in translator.translate(sentences)]


def in_every_protocol(server: Server, text: str, kind: str = "html") -> list[str]:
    libre = server.post("/translate", {"q": text, "source": "de", "target": "en", "format": kind})
    deepl = server.post(
        "/v2/translate", {"text": [text], "target_lang": "EN", "tag_handling": kind}
    )
    own = server.post("/v1/translate", {"texts": [text], "format": kind})
    return [
        libre.json["translatedText"],
        deepl.json["translations"][0]["text"],
        own.json["translations"][0]["text"],
    ]


def test_html_is_translated_by_every_protocol(demo: Server) -> None:
    first, second = plain("Tom liest ein Buch.", "Maria schläft.")
    found = in_every_protocol(demo, TEXT)
    assert found[1:] == found[:1] * 2
    assert re.sub("</?[ab][^>]*>", "", found[0]) == f"<p>{first} {second}</p>\n<pre>1 &lt; 2</pre>"
    assert "<a href='x'>book</a>" in found[0]
    assert f"<b>{second}</b>" in found[0]


def test_placeholders_are_kept(demo: Server) -> None:
    text = "Hallo {name}, du hast %d Bücher. Schreibe an info@example.com!"
    for found in in_every_protocol(demo, text):
        for one in ("{name}", "%d", "info@example.com"):
            assert found.count(one) == 1
    body = {"texts": [text], "placeholders": ["printf"]}
    assert demo.post("/v1/translate", body).json["translations"][0]["text"].count("%d") == 1


def test_alternatives_have_the_markup_too(demo: Server) -> None:
    body = {"q": "Tom <b>schläft</b>.", "source": "de", "target": "en", "format": "html",
            "alternatives": 2}  # fmt: skip
    found = demo.post("/translate", body).json
    for text in (found["translatedText"], *found["alternatives"]):
        assert text.count("<b>") == text.count("</b>") == 1


def test_attention_is_given_only_if_it_is_asked_for(demo: Server) -> None:
    body: dict[str, Any] = {"texts": ["Tom <b>schläft</b>."], "format": "html"}
    assert "attention" not in demo.post("/v1/translate", body).json["translations"][0]
    body["options"] = {"return_attention": True}
    assert "attention" in demo.post("/v1/translate", body).json["translations"][0]


def test_deepl_tags_are_observed(demo: Server) -> None:
    def deepl(text: str, **fields: Any) -> str:
        body = {"text": [text], "target_lang": "EN", "tag_handling": "xml", **fields}
        return str(demo.post("/v2/translate", body).json["translations"][0]["text"])

    first, second = plain("Tom schläft.", "Maria liest.")
    assert deepl("<d><p>Tom schläft.</p><p>Maria liest.</p></d>") == (
        f"<d><p>{first}</p><p>{second}</p></d>"
    )
    assert deepl("Tom schläft.<x>Maria liest.</x>", ignore_tags=["x"]).endswith(
        "<x>Maria liest.</x>"
    )
    split = deepl("Tom <x>schläft.</x>", splitting_tags="x,y")
    assert split == f"{plain('Tom')[0]} <x>{plain('schläft.')[0]}</x>"
    joined = deepl(
        "<d><x>Tom</x> <x>schläft.</x></d>", non_splitting_tags=["x"], outline_detection=False
    )
    assert re.sub("<[^>]*>", "", joined) == first


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v2/translate", {"tag_handling": "xml", "text": ["a <b>"]}, "text 0: not well-formed"),
        ("/v2/translate", {"tag_handling": "yaml", "text": ["a"]}, "tag_handling"),
        ("/v2/translate", {"ignore_tags": ["x"], "text": ["a"]}, "need tag_handling"),
        ("/v1/translate", {"format": "html", "texts": ["a"], "stream": True}, "not streamed"),
        ("/v1/translate", {"format": "rtf", "texts": ["a"]}, "format"),
        ("/v1/translate", {"placeholders": ["x"], "texts": ["a"]}, "placeholders"),
        ("/v1/translate", {"format": "xml", "texts": ["a"], "options": {"target_prefix": "x"}},
         "target_prefix: not for texts"),
        ("/v2/translate", {"tag_handling": "xml", "text": [
            '<!DOCTYPE a [<!ENTITY l "lol"><!ENTITY m "&l;&l;">]><a>&m;</a>']}, "the entity 'l'"),
    ],
)  # fmt: skip
def test_wrong_calls_are_named(demo: Server, path: str, body: dict[str, Any], said: str) -> None:
    if path == "/v2/translate":
        body = {"target_lang": "EN", **body}
    answer = demo.post(path, body)
    assert answer.status in (400, 422)
    assert said in json.dumps(answer.json)


@pytest.mark.parametrize("part", few_of(range(4), 0))
def test_tags_change_no_words(demo: Server, part: int) -> None:
    """The demo model's test set, with tags and without."""
    rng = random.Random(part)
    lines = (DEMO.with_suffix("") / "test.tsv").read_text(encoding="utf-8").splitlines()
    sources = [escape(line.split("\t")[0]) for line in lines[part::4]][: 60 if part == 0 else None]
    tagged = [tag(source, rng) for source in sources]
    found = [
        [one["text"] for one in demo.post("/v1/translate", body).json["translations"]]
        for body in ({"texts": texts, "format": "html"} for texts in (sources, tagged))
    ]
    same = 0
    for plain_text, text in zip(*found, strict=True):
        assert text.count("<b class='x'>") == text.count("</b>") == 1
        assert text.count("<i>") == text.count("</i>") == 1
        bare = " ".join(re.sub("<[^>]*>", "", text).split())
        same += bare == plain_text
    assert same >= 0.95 * len(sources)


def tag(sentence: str, rng: random.Random) -> str:
    """A sentence with an element around some of its words, and another in it."""
    words = sentence.split(" ")
    first, second, third, last = sorted(rng.choices(range(len(words)), k=4))
    words[second] = "<i>" + words[second]
    words[first] = "<b class='x'>" + words[first]
    words[third] += "</i>"
    words[last] += "</b>"
    return " ".join(words)


def test_text_without_words_comes_back(demo: Server) -> None:
    for text in ("🙂 🙂", "<b>...</b> <i>!</i>", "👍<br>—", "{name} <br> %s"):
        assert in_every_protocol(demo, text) == [text] * 3


def test_a_bundle_without_attention_refuses_tags_in_sentences() -> None:
    model: Any = SimpleNamespace(
        engine=SimpleNamespace(manifest=SimpleNamespace(attention_shape=None))
    )
    (document,) = _documents(model, TextRequest(["<p>w4 w5</p>"], markup=Markup("html")))
    assert not document.aligned
    with pytest.raises(RequestError, match=r"text 1: has tags .* gives none"):
        _documents(model, TextRequest(["w4", "<p>w4 <b>w5</b></p>"], markup=Markup("html")))


def test_what_stays_is_counted_in_a_header() -> None:
    whole = TextTranslation(["Hallo {x}"], [Hypothesis([], 0.0)], [])
    assert cut_headers([replace(whole, kept=2), whole]) == {KEPT: "2"}
    assert cut_headers([whole]) == {}


def test_placeholders_of_plain_texts_stay_in_protocols_of_clients(demo: Server) -> None:
    """Clients of LibreTranslate and DeepL cannot ask for it."""
    texts = ["Hallo {user_name}, das Buch ist gut.", "Das ist ein Buch.", "%(n)s und ${x}: %1$s."]
    kept = [["{user_name}"], [], ["%(n)s", "${x}", "%1$s"]]

    def translated(**given: Any) -> tuple[list[str], list[str]]:
        libre = {"q": texts, "source": "de", "target": "en", **given}
        deepl = {"text": texts, "target_lang": "EN", **given}
        return (
            demo.post("/translate", libre).json["translatedText"],
            [one["text"] for one in demo.post("/v2/translate", deepl).json["translations"]],
        )

    for found in translated():
        for text, literals in zip(found, kept, strict=True):
            assert all(text.count(literal) == 1 for literal in literals), text
        assert found[1] == plain(texts[1])[0]
    for found in translated(placeholders=False):
        assert found == plain(*texts)
