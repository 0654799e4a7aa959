"""Byte pair encoding with merges of pieces, and files of vocabularies with merges.

Source: Sennrich et al. 2016, "Neural machine translation of rare words with subword units".
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tfexport.json_checks import Check, every, list_of, of_type, one_of, or_null, record, whole
from tfexport.runtime.text.added_tokens import ADDED_TOKENS, AddedToken
from tfexport.runtime.text.piece_table import read_json, require_none

_NOUN = "a vocabulary with merges"
_TEXT, _FLAG = of_type("a text", str), of_type("true or false", bool)
LOWER_CASE, MOSES = "lower case", "moses"  # ways to split text into words


def _pair(name: str, value: Any) -> Iterator[str]:
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(v, str) for v in value):
        yield f"{name}: not a list of two texts"


_SHAPE: Check = record(
    {
        "pieces": every(whole(0)),
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
        unknown: the piece that stands for those without an id, and for ids without a piece.
        added: tokens that are found before a text is split.
        words: LOWER_CASE, or MOSES, the tokenizer of Moses.
        language: of MOSES.
        lower: text is put in lower case before; of MOSES.
        clean_up: spaces before punctuation are removed from decoded text.
    """

    pieces: Mapping[str, int]
    merges: Sequence[Sequence[str]]
    unknown: str
    added: Sequence[AddedToken]
    words: str
    language: str | None = None
    lower: bool = False
    clean_up: bool = False

    def to_json(self) -> bytes:
        """The content of a file for ``read_merged``."""
        values = {**vars(self), "added": [token.to_dict() for token in self.added]}
        return f"{json.dumps(values, ensure_ascii=False, indent=0)}\n".encode()


def read_merged(path: Path, words: str) -> MergedVocabulary:
    """Read a file of ``MergedVocabulary.to_json``.

    Args:
        path: of the file.
        words: how text must be split into words.

    Raises:
        TokenizerError: the file is unreadable, or not of that form.
    """
    values = read_json(path, _NOUN)
    problems = [*_SHAPE("", values)]
    if not problems and values["unknown"] not in values["pieces"]:
        problems.append(f"unknown: {values['unknown'][:40]!r} is no piece")
    if not problems and values["words"] != words:
        problems.append(f"words: {values['words']!r} instead of {words!r}")
    if not problems and words == MOSES and values["language"] is None:
        problems.append("language: null, and Moses needs one")
    require_none(path, _NOUN, problems)
    return MergedVocabulary(
        **{**values, "added": [AddedToken(**token) for token in values["added"]]}
    )


class Merges:
    """Merges characters to pieces."""

    def __init__(self, merges: Sequence[Sequence[str]]) -> None:
        self._ranks = {(first, second): rank for rank, (first, second) in enumerate(merges)}

    def apply(self, pieces: Sequence[str]) -> list[str]:
        """Merge neighbours, all equal pairs at once, as long as there is a merge for any."""
        word, ranks = list(pieces), self._ranks
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
