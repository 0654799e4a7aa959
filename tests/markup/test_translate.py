"""Texts with markup, by an open bundle."""

from typing import Any

import pytest

from tests.support.documents import read_blocks
from tests.support.paths import REPOSITORY
from tfexport.errors import ConfigError, InputError, TfexportWarning, TooLongError
from tfexport.markup import Markup, Placeholders, translate_markup
from tfexport.markup.placeholders import stand_ins
from tfexport.runtime import Translator

DEMO = REPOSITORY / "examples" / "de-en.bundle"


@pytest.fixture(scope="module", name="demo")
def _demo() -> Translator:
    return Translator(DEMO, threads=1)


def test_the_code_of_the_documentation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = (one for one in read_blocks(REPOSITORY / "docs" / "markup.md")
                if one.language == "python")  # fmt: skip
    monkeypatch.chdir(REPOSITORY)
    exec(block.text, {})
    printed = capsys.readouterr().out
    assert printed.count("@name@") == printed.count("<b>book</b>") == 1


def test_each_text_has_a_translation(demo: Translator) -> None:
    plain = [str(found.text) for found in demo.translate(["Guten Morgen!", "Tom schläft."])]
    texts = ["<p>Guten Morgen!<p>Tom schläft.", "", "<hr>", "<i>Guten Morgen! Tom schläft.</i>"]
    assert translate_markup(demo, texts, Markup("html")) == [
        f"<p>{plain[0]}<p>{plain[1]}", "", "<hr>", f"<i>{plain[0]} {plain[1]}</i>",
    ]  # fmt: skip
    assert translate_markup(demo, ["Guten Morgen!\nTom schläft.\n"], Markup("text")) == [
        f"{plain[0]}\n{plain[1]}\n"
    ]


def test_terms_go_across_tags(demo: Translator) -> None:
    text, terms = "<p>Ich mag <b>diesen</b> Film.</p>", [("diesen Film", ["this film"])]
    (made,) = translate_markup(demo, [text], Markup("html"), terms=terms)
    assert made == "<p>I like <b>this</b> film.</p>"
    with pytest.warns(TfexportWarning, match="1 sentence does not meet terms: 'diesen Film'"):
        translate_markup(demo, [text], Markup("html"), terms=terms, max_length=1)


def test_long_sentences_are_divided(demo: Translator) -> None:
    text = "<b>" + "Tom schläft, " * 600 + "</b>ja."
    (made,) = translate_markup(demo, [text], Markup("html"), max_length=5)
    assert made.count("<b>") == made.count("</b>") == 1


def test_sentences_of_the_longest_words_keep_placeholders_whole(demo: Translator) -> None:
    text = "Tom {name}" * 400
    (made,) = translate_markup(demo, [text], Markup("text", Placeholders()), max_length=5)
    assert made.count("{name}") == 400


@pytest.mark.parametrize(
    ("texts", "kind", "options", "error", "said"),
    [
        ("a", "html", {}, InputError, "texts: expected a list"),
        (["a", "<b>"], "xml", {}, InputError, "text 2: not well-formed XML"),
        (["a", "\ud800"], "html", {}, InputError, "text 2: not valid Unicode text"),
        (["a"], "html", {"beam_size": 0}, ConfigError, "beam_size"),
        (["a"], "html", {"colour": 1}, ConfigError, "colour"),
    ],
)
def test_wrong_calls_are_named(
    demo: Translator, texts: Any, kind: Any, options: dict[str, Any], error: Any, said: str
) -> None:
    with pytest.raises(error, match=said):
        translate_markup(demo, texts, Markup(kind), **options)


def test_names_that_make_a_sentence_too_long_are_left_out(demo: Translator) -> None:
    def text_of(count: int, *kept: str) -> str:
        return ("Ja " * count + " ".join(kept)).strip()

    def fits(text: str) -> bool:
        try:
            demo.texts.encode(text)
        except TooLongError:
            return False
        return True

    kept = ["@"] * 10
    count = max(count for count in range(512) if fits(text_of(count, *kept)))
    names = stand_ins("Ja", len(kept))
    assert names is not None
    assert not fits(text_of(count, *names))
    markup = Markup("text", Placeholders((), ["@"]))
    (made,) = translate_markup(demo, [text_of(count, *kept)], markup, max_length=5)
    assert made.count("@") == len(kept)


def test_a_text_takes_no_more_room_in_a_chunk_than_its_sentences(
    demo: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = list[int]()
    submit = demo.engine.submit

    def counting(requests: list[Any], *others: Any) -> Any:
        sizes.append(len(requests))
        return submit(requests, *others)

    monkeypatch.setattr(demo.engine, "submit", counting)
    translate_markup(demo, ["Tom schläft.", "Hallo!", "<br>"], Markup("html"), batch_size=1)
    assert sum(sizes) == 3  # the last one has no sentence
