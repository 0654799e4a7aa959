"""Splitting of texts into sentences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfexport.serve.sentences import split_text

GERMAN = "Dr. Müller kam um 3.5 Uhr an. Er sagte: „Gut.“ Wirklich?  Ja!\n\nEine Zeile\nNoch eine. "


def test_sentences_end_with_lines_and_punctuation() -> None:
    layout = split_text(GERMAN, "de", "lines")
    assert layout.sentences == [
        "Dr. Müller kam um 3.5 Uhr an.", "Er sagte: „Gut.“", "Wirklich?", "Ja!", "Eine Zeile",
        "Noch eine.",
    ]  # fmt: skip
    assert layout.gaps == ["", " ", " ", "  ", "\n\n", "\n", " "]


def test_lines_may_be_kept_together() -> None:
    layout = split_text("Erste Zeile\nzweite Zeile. Ende.", "de", "punctuation")
    assert layout.sentences == ["Erste Zeile\nzweite Zeile.", "Ende."]


def test_a_text_may_be_kept_whole() -> None:
    assert split_text("  Eins. Zwei.\nDrei. ", "de", "none").sentences == ["Eins. Zwei.\nDrei."]


def test_other_sentences_take_the_places() -> None:
    layout = split_text(" Ja! Nein!\n", "de", "lines")
    assert layout.join(["Yes!", "No!"]) == " Yes! No!\n"


_TEXT = st.text(
    st.sampled_from("aA.!?…。।\"'„“()[] \t\n\r\v\x85\u2028\u3000\u200b\0éß中1,") | st.characters(
        exclude_categories=["Cs"]
    ),
    max_size=40,
)  # fmt: skip


@given(_TEXT, st.sampled_from(["de", "en", "zh", "und", "", "x" * 50]))
def test_joined_again_they_are_the_text(text: str, language: str) -> None:
    for split in ("lines", "punctuation", "none"):
        layout = split_text(text, language, split)
        assert layout.join(layout.sentences) == text
        assert all(sentence.strip() == sentence != "" for sentence in layout.sentences)
        assert not any(gap.strip() for gap in layout.gaps)


@pytest.mark.parametrize("text", ["a" * 100_000, "." * 100_000, "( " * 50_000, "„" * 99_999])
def test_odd_texts_are_split_quickly(text: str) -> None:
    layout = split_text(text, "de", "lines")
    assert layout.join(layout.sentences) == text
