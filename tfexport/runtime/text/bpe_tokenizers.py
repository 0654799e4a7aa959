"""Byte pair encoding: merges of pieces, and the tokenizers of blenderbot-small and FSMT.

Source: Sennrich et al. 2016, "Neural machine translation of rare words with subword units".
"""

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from tfexport.json_checks import Check, every, integer, list_of, of_type, one_of, or_null, record
from tfexport.runtime.text.added_tokens import ADDED_TOKENS, AddedToken, CutTokenizer
from tfexport.runtime.text.libraries import missing_library
from tfexport.runtime.text.piece_tokenizer import read_json, require_none

_NOUN = "a vocabulary with merges"
_TEXT, _FLAG = of_type("a text", str), of_type("true or false", bool)
LOWER_CASE, MOSES = "lower case", "moses"  # ways to split text into words


def _pair(name: str, value: Any) -> Iterator[str]:
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(v, str) for v in value):
        yield f"{name}: not a list of two texts"


_SHAPE: Check = record(
    {
        "pieces": every(integer(0)),
        "merges": list_of(_pair),
        "unknown": _TEXT,
        "added": ADDED_TOKENS,
        "words": one_of(LOWER_CASE, MOSES),
        "language": or_null(_TEXT),
        "lower": _FLAG,
        "clean_up": _FLAG,
    }
)


@dataclass(frozen=True)
class MergedVocabulary:
    """A vocabulary, the merges that make its pieces, and how text is split into words.

    Attributes:
        pieces: piece to id.
        merges: pairs of pieces, the first to be merged first.
        unknown: the piece for unknown pieces and ids.
        added: tokens that are found before a text is split.
        words: LOWER_CASE, or MOSES, the tokenizer of Moses.
        language: for MOSES.
        lower: whether text is lower-cased first, for MOSES.
        clean_up: whether spaces before punctuation are removed from decoded text.
    """

    pieces: Mapping[str, int]
    merges: Sequence[Sequence[str]]
    unknown: str
    added: Sequence[AddedToken]
    words: str
    language: str | None = None
    lower: bool = False
    clean_up: bool = False

    @property
    def ranks(self) -> dict[tuple[str, str], int]:
        """The place of each pair in ``merges``."""
        return {(first, second): rank for rank, (first, second) in enumerate(self.merges)}

    def to_json(self) -> bytes:
        """The content of a file for ``read_merged``."""
        values = {**vars(self), "added": [token.to_dict() for token in self.added]}
        return f"{json.dumps(values, ensure_ascii=False, indent=0)}\n".encode()


def read_merged(path: Path, words: str) -> MergedVocabulary:
    """Read a file of ``MergedVocabulary.to_json``.

    Args:
        path: the path of the file.
        words: how text must be split into words.

    Raises:
        TokenizerError: the file is unreadable, or not of that form.
    """
    values = read_json(path, _NOUN)
    problems = [*_SHAPE("", values)]
    if not problems and values["unknown"] not in values["pieces"]:
        problems.append(f"unknown: {values['unknown'][:40]!r} is not a piece")
    if not problems and values["words"] != words:
        problems.append(f"words: {values['words']!r} instead of {words!r}")
    if not problems and words == MOSES and values["language"] is None:
        problems.append("language: null, and Moses needs one")
    require_none(path, _NOUN, problems)
    return MergedVocabulary(
        **{**values, "added": [AddedToken(**token) for token in values["added"]]}
    )


def _merge(pieces: Sequence[str], ranks: Mapping[tuple[str, str], int]) -> list[str]:
    """Merge neighbours, all equal pairs at once, until no merge applies."""
    word = list(pieces)
    while len(word) > 1:
        pairs = pairwise(word)
        best = min(pairs, key=lambda pair: ranks.get(pair, len(ranks)))
        if best not in ranks:
            break
        word = _merged(word, *best)
    return word


def _merged(word: Sequence[str], first: str, second: str) -> list[str]:
    found: list[str] = []
    i = 0
    while i < len(word):
        pair = word[i] == first and i + 1 < len(word) and word[i + 1] == second
        found.append(first + second if pair else word[i])
        i += 2 if pair else 1
    return found


_END, _GOES_ON = "</w>", "@@"
_CACHED = 2**14  # words
# White space of Unicode; Python's also has the separators U+001C to U+001F.
_SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_WORD = re.compile(f"[^{_SPACE}]+\n?")
_SPACES = re.compile(f"[{_SPACE}]{{2,}}")


class LowerBpeTokenizer(CutTokenizer):
    """Pieces of lower-case words; those that do not end a word end in ``@@``."""

    def __init__(self, path: Path) -> None:
        """Read a file of ``MergedVocabulary``."""
        found = read_merged(path, LOWER_CASE)
        super().__init__(path, found.pieces, found.unknown, found.added, found.clean_up)
        self.whole_words = True  # a continued piece keeps its mark until the next one comes
        self._ranks = found.ranks
        self._word = lru_cache(_CACHED)(self._split_word)

    def _cut(self, text: str) -> list[str]:
        return [piece for word in _WORD.findall(text) for piece in self._word(word)]

    def _split_word(self, word: str) -> list[str]:
        """The pieces of a word between spaces, and of a line break after it."""
        word = re.sub("([.,!?()])", r" \1", word)
        word = _SPACES.sub(" ", word.replace("'", " ' "))
        word = word.replace("\n", " __newln__")
        pieces = []
        for part in word.split(" "):
            lower = part.lower()
            if len(lower) < 2:
                pieces += [lower] if lower else []
                continue
            merged = _merge([*lower[:-1], lower[-1] + _END], self._ranks)
            joined = f"{_GOES_ON} ".join(merged)[: -len(_END)]
            pieces += joined.split(" ")
        return pieces or [""]

    def _id(self, piece: str) -> int:
        return super()._id(piece.lower())

    def _join(self, pieces: Sequence[str]) -> str:
        return " ".join(pieces).replace(f"{_GOES_ON} ", "").strip()

    def split(self, text: str) -> list[str]:
        """See ``Tokenizer``."""
        return [piece.removesuffix(_GOES_ON) for piece in super().split(text)]


_WORD_END = "</w>"
# Source: Moses, scripts/tokenizer/replace-unicode-punctuation.perl, as transformers has it.
_PUNCTUATION = str.maketrans(
    "，、”“∶：？《》）！（；１」「０３２５６９７８４～’━〈〉【】％",
    ',,""::?"")!(;1""032569784~\'-<>[]%',
)


class MosesBpeTokenizer(CutTokenizer):
    """Pieces of words; those that end a word end in ``</w>``."""

    def __init__(self, path: Path) -> None:
        """Read a file of ``MergedVocabulary``.

        Raises:
            MissingDependencyError: sacremoses is not installed.
        """
        try:
            import sacremoses
        except ImportError:
            raise missing_library(path, "sacremoses") from None
        found = read_merged(path, MOSES)
        super().__init__(path, found.pieces, found.unknown, found.added, found.clean_up)
        self.whole_words = True
        self._lower, self._ranks = found.lower, found.ranks
        self._normalizer: Any = sacremoses.MosesPunctNormalizer(lang=found.language)
        self._splitter: Any = sacremoses.MosesTokenizer(lang=found.language)
        self._joiner: Any = sacremoses.MosesDetokenizer(lang=found.language)
        self._word = lru_cache(_CACHED)(self._split_word)

    def _cut(self, text: str) -> list[str]:
        text = text.lower() if self._lower else text
        text = self._normalizer.normalize(_replace_punctuation(text))
        text = "".join(c for c in text if not unicodedata.category(c).startswith("C"))
        words = self._splitter.tokenize(
            text, aggressive_dash_splits=True, return_str=False, escape=True
        )
        return [piece for word in words if word for piece in self._word(word)]

    def _split_word(self, word: str) -> list[str]:
        merged = _merge([*word[:-1], word[-1] + _WORD_END], self._ranks)
        return " ".join(merged).split(" ")

    def _join(self, pieces: Sequence[str]) -> str:
        words = "".join(piece.replace(" ", "").replace(_WORD_END, " ") for piece in pieces).split()
        text: str = self._joiner.detokenize(words)
        return text

    def split(self, text: str) -> list[str]:
        """See ``Tokenizer``."""
        return [piece.removesuffix(_WORD_END) for piece in super().split(text)]


def _replace_punctuation(text: str) -> str:
    text = re.sub(r"。\s*", ". ", text)
    text = re.sub(r"．\s*", ". ", text.translate(_PUNCTUATION))
    return text.replace("…", "...")
