"""Splitting of texts into sentences, and joining them."""

import sys
import unicodedata

import pytest
import sentencex
from hypothesis import given
from hypothesis import strategies as st

from tfexport.runtime.text import sentences
from tfexport.runtime.text.sentences import WINDOW, SplitText, divide, join_of, split_text

pytestmark = pytest.mark.no_model

GERMAN = "Dr. Müller kam um 3.5 Uhr an. Er sagte: „Gut.“ Wirklich?  Ja!\n\nEine Zeile\nNoch eine. "


def test_sentences_end_with_lines_and_punctuation() -> None:
    parts = split_text(GERMAN, "de", "lines")
    assert parts.sentences == [
        "Dr. Müller kam um 3.5 Uhr an.", "Er sagte: „Gut.“", "Wirklich?", "Ja!", "Eine Zeile",
        "Noch eine.",
    ]  # fmt: skip
    assert parts.gaps == ["", " ", " ", "  ", "\n\n", "\n", " "]


def test_lines_may_be_kept_together() -> None:
    parts = split_text("Erste Zeile\nzweite Zeile. Ende.", "de", "punctuation")
    assert parts.sentences == ["Erste Zeile\nzweite Zeile.", "Ende."]


def test_a_text_may_be_kept_whole() -> None:
    assert split_text("  Eins. Zwei.\nDrei. ", "de", "none").sentences == ["Eins. Zwei.\nDrei."]


def test_other_sentences_take_the_places() -> None:
    parts = split_text(" Ja! Nein!\n", "de", "lines")
    assert parts.joined(["Yes!", "No!"]) == " Yes! No!\n"


@pytest.mark.parametrize("code", ["de", "DE", "deu", "deu_Latn", "de_DE", "de-AT", ">>deu<<"])
def test_rules_of_a_language_are_found_by_any_of_its_codes(code: str) -> None:
    parts = split_text("Er kommt am 3. Oktober. Gut.", code, "lines")
    assert parts.sentences == ["Er kommt am 3. Oktober.", "Gut."]


CHINESE = "今天天气很好。你好！走吧。"


@pytest.mark.parametrize(
    ("text", "target", "made", "joined"),
    [
        (CHINESE, "en", ["Fine.", "Hello!", "Go."], "Fine. Hello! Go."),
        (CHINESE, "eng_Latn", ["Fine.", "Hello!", "Go."], "Fine. Hello! Go."),
        (CHINESE, "ja", ["良い。", "やあ!", "行く。"], "良い。やあ!行く。"),
        (CHINESE, "und", ["Fine.", "Hello!", "Go."], "Fine. Hello! Go."),
        (CHINESE, "und", ["良い。", "やあ!", "行く。"], "良い。やあ! 行く。"),
        ("天気。　はい！\n行く。", "de", ["Gut.", "Ja!", "Los."], "Gut. Ja!\nLos."),
        ("Gut. Ja!\nNein.", "zho_Hans", ["好。", "是！", "不。"], "好。是！\n不。"),
        ("Gut.  Ja!\tNein.", "fr", ["Bon.", "Oui!", "Non."], "Bon.  Oui!\tNon."),
    ],
)
def test_joining_follows_the_language_of_the_translation(
    text: str, target: str, made: list[str], joined: str
) -> None:
    assert split_text(text, "zh", "lines", join_of(target)).joined(made) == joined


def test_what_is_no_sentence_by_itself_keeps_its_place() -> None:
    assert SplitText(["Siehe a.", "B."], ["", "", ""], "spaces").joined(["Voir a.", "B."]) == (
        "Voir a.B."
    )
    parts = SplitText(["走。", "？", "走。"], ["", "", "", ""], "spaces")
    assert parts.joined(["Go.", "？", "Go."], [False, True, False]) == "Go.？Go."


_TEXT = st.text(
    st.sampled_from("aA.!?…。।\"'„“()[] \t\n\r\v\x85\xa0\u2003\u2028\u3000\u200b\0éß中1,")
    | st.characters(exclude_categories=["Cs"]),
    max_size=40,
)  # fmt: skip
_CODES = st.sampled_from(["de", "en", "zh", "ja", "my", "und", "", "x" * 50])


@given(_TEXT, _CODES)
def test_joined_again_they_are_the_text(text: str, language: str) -> None:
    for split in ("lines", "punctuation", "none"):
        parts = split_text(text, language, split)
        assert parts.joined(parts.sentences) == text
        assert all(sentence.strip() == sentence != "" for sentence in parts.sentences)
        assert not any(gap.strip() for gap in parts.gaps)


def _characters() -> list[str]:
    """All spaces, punctuation, controls and marks, and some letters of every block."""
    found = []
    for number in range(sys.maxunicode + 1):
        kind = unicodedata.category(chr(number))
        if kind[0] in "ZPM" or kind in ("Cc", "Cf", "Nd") or (kind[0] in "LSN" and not number % 64):
            found.append(chr(number))
    return found


@pytest.mark.parametrize("language", ["de", "en", "zh", "am"])
def test_no_character_makes_the_splitter_fail(
    language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(sentences, "_PLAIN_ENDS")  # without which nothing catches a fault
    for one in _characters():
        for text in (f"Das ist Plan B{one}.", f"A{one}. B", f"{one}. B{one}! Ja", f"d{one}b. C"):
            parts = split_text(text, language, "lines")
            assert parts.joined(parts.sentences) == text


class PanicException(BaseException):
    """As pyo3 raises it."""


def test_a_fault_of_the_splitter_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    def panic(language: str, text: str) -> list[str]:
        raise PanicException("end byte index 15 is not a char boundary")

    monkeypatch.setattr(sentencex, "segment", panic)
    parts = split_text("Eins. Zwei! 三。四。 Ende", "de", "lines")
    assert parts.sentences == ["Eins.", "Zwei!", "三。", "四。", "Ende"]


def test_other_ends_of_the_process_pass_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(language: str, text: str) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(sentencex, "segment", end)
    with pytest.raises(KeyboardInterrupt):
        split_text("Eins.", "de", "lines")


_JAPANESE = "彼は「今日は天気がいい。」と言いました。"
_LONG = ["a", ".", "( ", "„", "“", _JAPANESE, "!?…", "Dr. A. ", "a\xa0"]


@pytest.mark.parametrize("unit", _LONG)
def test_the_splitter_sees_a_bounded_part_at_a_time(
    unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, seen = (unit * 100_000)[:99_000], list[int]()
    segment = sentencex.segment

    def counted(language: str, part: str) -> list[str]:
        seen.append(len(part))
        found: list[str] = segment(language, part)
        return found

    monkeypatch.setattr(sentencex, "segment", counted)
    parts = split_text(text, "de", "lines")
    assert parts.joined(parts.sentences) == text
    assert max(seen) <= WINDOW
    assert sum(seen) <= 4 * len(text)


def test_a_long_text_is_split_as_its_parts_are() -> None:
    text = "Dr. Müller kam am 3. Oktober an. Er blieb. Wirklich? Ja! Dann ging er wieder. " * 60
    parts = split_text(text, "de", "lines")
    assert parts.sentences == split_text(text[: len(text) // 60], "de", "lines").sentences * 60


def test_a_sentence_longer_than_a_window_stays_one() -> None:
    long = "Dann " + "und dann " * 500 + "Ende."
    assert split_text(f"Erst. {long} Gut.", "de", "lines").sentences == ["Erst.", long, "Gut."]


@pytest.mark.parametrize(
    ("sentence", "parts"),
    [
        ("eins zwei, drei vier", ("eins zwei, ", "drei vier")),
        ("eins zwei drei vier", ("eins zwei ", "drei vier")),
        ("xxxxxx", ("xxx", "xxx")),
    ],
)
def test_long_sentences_are_divided_where_it_hurts_least(
    sentence: str, parts: tuple[str, str]
) -> None:
    assert divide(sentence) == parts


@given(_TEXT, st.integers(1, 9))
def test_divided_sentences_fit_and_are_the_text(text: str, most: int) -> None:
    parts = split_text(text, "de", "lines").divided(lambda part: len(part) <= most)
    assert parts.joined(parts.sentences) == text
    assert all(len(sentence) <= most for sentence in parts.sentences)
    assert isinstance(parts, SplitText)
