"""Bytes of UTF-8 as tokens: byT5, which has no vocabulary.

Its file holds the tokens around the bytes: ``{"first": 3, "own_end": 1, "added": […], "clean_up":
false}``; the id of a byte is the byte and ``first``.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfexport.json_checks import integer, of_type, record
from tfexport.runtime.text.added_tokens import ADDED_TOKENS, AddedToken, CutTokenizer
from tfexport.runtime.text.piece_tokenizer import read_json, require_none

_SHAPE = record(
    {
        "first": integer(0),
        "own_end": integer(0),
        "added": ADDED_TOKENS,
        "clean_up": of_type("true or false", bool),
    }
)
_NOUN = "a tokenizer of bytes"


@dataclass(frozen=True)
class ByteTable:
    """The ids of bytes and of the tokens around them.

    Attributes:
        first: the id of byte 0.
        own_end: the end token; it is not added again to a text that ends with it, as in
            ByT5Tokenizer of transformers.
        added: tokens that are found before a text is split.
        clean_up: whether spaces before punctuation are removed from decoded text.
    """

    first: int
    own_end: int
    added: Sequence[AddedToken]
    clean_up: bool = False

    def to_json(self) -> bytes:
        """The content of a file for ``ByteTokenizer``."""
        values = {**vars(self), "added": [token.to_dict() for token in self.added]}
        return f"{json.dumps(values, ensure_ascii=False, indent=0)}\n".encode()


def _read(path: Path) -> ByteTable:
    values = read_json(path, _NOUN)
    require_none(path, _NOUN, [*_SHAPE("", values)])
    return ByteTable(**{**values, "added": [AddedToken(**token) for token in values["added"]]})


class ByteTokenizer(CutTokenizer):
    """Tokens are bytes. The piece of a byte is the character with the same number."""

    def __init__(self, path: Path) -> None:
        """Read a file of ``ByteTable``."""
        table = _read(path)
        pieces = {chr(byte): byte + table.first for byte in range(256)}
        super().__init__(path, pieces, "\0", table.added, table.clean_up)
        self.own_end = table.own_end

    def _cut(self, text: str) -> list[str]:
        return [chr(byte) for byte in text.encode()]

    def decode(self, ids: Sequence[int]) -> str:
        """See ``Tokenizer``; bytes that are not UTF-8 are omitted."""
        return super().decode([i for i in ids if i in self._pieces])

    def _join(self, pieces: Sequence[str]) -> str:
        written = [
            piece.encode() if piece in self._added.by_content else bytes([ord(piece)])
            for piece in pieces
        ]
        return b"".join(written).decode(errors="ignore")

    def split(self, text: str) -> list[str]:
        """See ``Tokenizer``; a character belongs to its first byte."""
        found = []
        for part, number in self._added.cut(text):
            if number is not None:
                found.append(part)
                continue
            for character in part:
                found += [character, *[""] * (len(character.encode()) - 1)]
        return found
