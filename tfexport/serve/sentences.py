"""Splitting of texts into sentences, each of which is a row of a model, and joining them again."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import sentencex

Split = Literal["lines", "punctuation", "none"]

_BREAKS = re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")


@dataclass(frozen=True)
class Layout:
    """The sentences of a text, and the white space around them.

    Attributes:
        sentences: none of them blank.
        gaps: white space before each sentence, and after the last.
    """

    sentences: list[str]
    gaps: list[str]

    def join(self, sentences: Sequence[str]) -> str:
        """The text with other sentences in their places."""
        inner = (gap + sentence for gap, sentence in zip(self.gaps, sentences, strict=False))
        return "".join(inner) + self.gaps[-1]


def split_text(text: str, language: str, split: Split) -> Layout:
    """Split a text.

    Args:
        text: without lone surrogates.
        language: code of its language, whose abbreviations end no sentence.
        split: "lines" at the ends of sentences and of lines, "punctuation" at the ends of
            sentences, "none" not at all.
    """
    sentences, gaps, end = list[str](), list[str](), 0
    for piece in _pieces(text, language, split):
        begin = text.index(piece, end)
        core = piece.strip()
        if core:
            begin += piece.index(core)
            gaps.append(text[end:begin])
            sentences.append(core)
            end = begin + len(core)
    return Layout(sentences, [*gaps, text[end:]])


def _pieces(text: str, language: str, split: Split) -> list[str]:
    if split == "none":
        return [text]
    lines = _BREAKS.split(text) if split == "lines" else [text]
    return [piece for line in lines for piece in sentencex.segment(language, line)]
