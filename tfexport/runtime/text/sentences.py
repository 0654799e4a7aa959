"""Splitting texts into sentences, each of which is a row of a model, and joining them again."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tfexport.runtime.text.language_codes import splitting_code

Split = Literal["lines", "punctuation", "none"]
Join = Literal["auto", "spaces", "nothing", "source"]
SPLITS: tuple[Split, ...] = ("lines", "punctuation", "none")
JOINS: tuple[Join, ...] = ("auto", "spaces", "nothing", "source")

# Characters that sentencex gets at a time: it takes quadratic time and holds the GIL. 1,000
# characters of any kind take 5 ms at most.
WINDOW = 1000
_BREAKS = re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")
_WIDE_SPACES = re.compile(r"[^\S\x00-\x7f]")
_PLAIN_ENDS = re.compile(r"[.!?…]+\s+|[。！？｡]+\s*")
# Languages without a space between sentences.
_WITHOUT_SPACES = frozenset({"zh", "yue", "ja", "my", "bo", "dz"})
# Thai to Tibetan, Burmese, Khmer; Chinese, Japanese and wide punctuation.
UNSPACED = re.compile(
    "[\u0e00-\u109f\u1780-\u17ff\u2e80-\u312f\u31a0-\u9fff\uf900-\ufaff\uff01-\uff60"
    "\U00020000-\U0003ffff]"
)
_SPACES = frozenset(" \xa0\u3000")


@dataclass(frozen=True)
class SplitText:
    """The sentences of a text, and the white space around them.

    Attributes:
        sentences: none of them blank.
        gaps: white space before each sentence, and after the last.
        join: what joins sentences of the target language; see ``join_of``.
    """

    sentences: list[str]
    gaps: list[str]
    join: Join = "source"

    def joined(self, sentences: Sequence[str], kept: Sequence[bool] = ()) -> str:
        """The text with its sentences replaced by others.

        Args:
            sentences: as many as there are.
            kept: for each sentence, whether it is the source's own; by default none is.
        """
        parts, before = list[str](), ""
        for place, sentence in enumerate(sentences):
            own = any(kept[max(place - 1, 0) : place + 1])
            parts += [self.gap(place, before, sentence, own), sentence]
            before = sentence
        return "".join(parts) + self.gaps[-1]

    def gap(self, place: int, before: str, after: str, kept: bool = False) -> str:
        """The white space before a sentence.

        Args:
            place: index of the sentence.
            before: the sentence before it.
            after: the sentence.
            kept: whether one of the two is the source's own, not a translation.
        """
        gap = self.gaps[place]
        if place == 0 or kept or self.join == "source" or not _SPACES.issuperset(gap):
            return gap
        if self.join == "nothing" or (self.join == "auto" and all(_unspaced(before, after))):
            return ""
        if not gap and not any(_unspaced(*self.sentences[place - 1 : place + 1])):
            return gap  # as inside of a name such as a.B
        return gap.replace("\u3000", " ") or " "

    def divided(self, fits: Callable[[str], bool]) -> "SplitText":
        """The same text with sentences that fit a model: longer ones are divided."""
        sentences, gaps = list[str](), list[str]()
        for gap, sentence in zip(self.gaps, self.sentences, strict=False):
            left = [sentence]
            while left:
                part = left.pop()
                core = part.strip()
                if len(core) > 1 and not fits(core):
                    left += reversed(divide(part))
                    continue
                if core:
                    begin = part.index(core)
                    gaps.append(gap + part[:begin])
                    sentences.append(core)
                    gap = part[begin + len(core) :]
                else:
                    gap += part
        return SplitText(sentences, [*gaps, self.gaps[-1]], self.join)


def join_of(target: str) -> Join:
    """The way to join sentences of a language; "auto", by their characters, if it is unknown."""
    language = splitting_code(target)
    if language in ("", "und"):
        return "auto"
    return "nothing" if language in _WITHOUT_SPACES else "spaces"


def split_text(text: str, language: str, split: Split, join: Join = "source") -> SplitText:
    """Split a text.

    Args:
        text: without lone surrogates.
        language: code of its language, whose abbreviations do not end a sentence.
        split: "lines" at the ends of sentences and of lines, "punctuation" at the ends of
            sentences, "none" not at all.
        join: see ``SplitText``.
    """
    sentences, gaps, end = list[str](), list[str](), 0
    for begin, stop in _spans(text, splitting_code(language), split):
        core = text[begin:stop].strip()
        if core:
            begin += text[begin:stop].index(core)
            gaps.append(text[end:begin])
            sentences.append(core)
            end = begin + len(core)
    return SplitText(sentences, [*gaps, text[end:]], join)


def divide(sentence: str) -> tuple[str, str]:
    """Divide a sentence that is too long; the first part ends with the space.

    It is divided after a punctuation mark near its middle, else at a space, else anywhere.
    """
    middle = len(sentence) // 2
    for pattern in (r"[,;:،、，；：—–]\s*", r"\s+"):
        ends = [found.end() for found in re.finditer(pattern, sentence)]
        near = [
            end for end in ends if len(sentence) // 4 < end < len(sentence) - len(sentence) // 4
        ]
        if near:
            middle = min(near, key=lambda end: abs(end - middle))
            break
    return sentence[:middle], sentence[middle:]


def _unspaced(before: str, after: str) -> tuple[bool, bool]:
    """Whether an end and a start are in a script without spaces."""
    return bool(UNSPACED.match(before[-1:])), bool(UNSPACED.match(after[:1]))


def _spans(text: str, language: str, split: Split) -> Iterator[tuple[int, int]]:
    """Start and end of every piece of a text."""
    if split == "none":
        yield 0, len(text)
        return
    # Every white space character becomes a space: wide ones make sentencex panic.
    plain = _WIDE_SPACES.sub(" ", text)
    begin = 0
    for line in _BREAKS.finditer(text) if split == "lines" else ():
        yield from _sentences(plain, language, begin, line.start())
        begin = line.end()
    yield from _sentences(plain, language, begin, len(text))


def _sentences(plain: str, language: str, begin: int, stop: int) -> Iterator[tuple[int, int]]:
    """Start and end of the sentences of a line, which is split in windows."""
    place = begin  # start of the window, after ``begin`` if a sentence is longer than a window
    while place < stop:
        end = min(place + WINDOW, stop)
        ends = _ends(language, plain[place:end])
        if end < stop:
            ends = ends[:-1]  # the rest may be half a sentence
        for size in ends:
            yield begin, place + size
            begin = place + size
        place = begin if ends else end
    if begin < stop:
        yield begin, stop


def _ends(language: str, text: str) -> list[int]:
    """The ends of the sentences of a text."""
    import sentencex  # noqa: PLC0415

    try:
        pieces = sentencex.segment(language, text)
    except BaseException as error:
        # pyo3's exception for a panic in Rust is a BaseException.
        if type(error).__name__ != "PanicException":
            raise
        pieces = None
    ends, end = list[int](), 0
    for piece in pieces or ():
        end = text.find(piece, end) + len(piece)
        ends.append(end)
    if pieces is None or ends != sorted(set(ends)):
        ends = [found.end() for found in _PLAIN_ENDS.finditer(text)]
    return [*(one for one in ends if 0 < one < len(text)), len(text)]
