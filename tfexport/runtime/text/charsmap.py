"""SentencePiece's normalization of letters that are written with marks after them.

``tokenizers`` looks the rules up by whole graphemes, of up to five bytes, and else by characters. A
rule for the first character of such a grapheme replaces all of it: Vietnamese, Korean and Japanese
text that is decomposed loses its marks, or is unknown. SentencePiece takes the longest rule that
matches at each place, of any length.

Source: ``Normalizer::NormalizePrefix`` and ``DecodePrecompiledCharsMap`` of SentencePiece; the trie
is that of Darts-clone, ``darts.h``.
"""

import base64
import struct
import unicodedata
from collections.abc import Iterator
from typing import Any

import numpy as np

from tfexport.runtime.text.tokenizer_json import rules_of

# Letters that belong to the one before: vowels and finals of Korean, and half-width Japanese marks.
_FOLLOWING = frozenset(map(chr, [*range(0x1160, 0x1200), 0xFF9E, 0xFF9F]))
# Categories of Unicode that belong to it too: marks, and joiners and other signs without a width.
_FOLLOWING_CATEGORIES = ("Mn", "Mc", "Me", "Cf")


class Charsmap:
    """The rules of a ``precompiled_charsmap``.

    Raises:
        ValueError: they are damaged.
    """

    def __init__(self, blob: bytes) -> None:
        if len(blob) < 8:
            raise ValueError("the charsmap is empty")
        (size,) = struct.unpack_from("<I", blob)
        if size % 4 or size < 4 or 4 + size > len(blob):
            raise ValueError("the charsmap's trie has another size than it says")
        self._units = np.frombuffer(blob, "<u4", size // 4, 4)
        self._texts = blob[4 + size :]

    def compose(self, text: str) -> str:
        """A text in which letters with marks after them are written as the rules say.

        What has no marks stays as it is.
        """
        if text.isascii() or not any(map(_follows, text)):
            return text
        return "".join(composed for _, composed in self._pairs(text))

    def places(self, text: str) -> list[int]:
        """For each place of a composed text, and its end, the place in the text itself."""
        places, start = list[int](), 0
        for letters, composed in self._pairs(text):
            places += [start, *[start + len(letters)] * (len(composed) - 1)] if composed else []
            start += len(letters)
        return [*places, start]

    def _pairs(self, text: str) -> Iterator[tuple[str, str]]:
        """Each character with the marks that follow it, and as the rules write it."""
        for letters in _letters(text):
            yield letters, self._composed(letters) if len(letters) > 1 else letters

    def _composed(self, letters: str) -> str:
        composed, place = list[str](), 0
        while place < len(letters):
            length, replacement = self._longest(letters, place)
            composed.append(replacement if length else letters[place])
            place += max(1, length)
        return "".join(composed)

    def _longest(self, letters: str, start: int) -> tuple[int, str]:
        """The number of characters that the longest rule matches, and what it writes for them."""
        units, best = self._units, (0, "")
        place = _offset(int(units[0]))
        for end in range(start, len(letters)):
            for byte in letters[end].encode():
                place ^= byte
                if place >= len(units):
                    return best
                unit = int(units[place])
                if unit & 0x800000FF != byte:
                    return best
                place ^= _offset(unit)
            if unit >> 8 & 1 and place < len(units):
                best = end + 1 - start, self._text(int(units[place]) & 0x7FFFFFFF)
        return best

    def _text(self, start: int) -> str:
        end = self._texts.find(b"\0", start)
        return self._texts[start : end if end >= 0 else None].decode(errors="replace")


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 1 << 9) >> 6)


def _follows(character: str) -> bool:
    return unicodedata.category(character) in _FOLLOWING_CATEGORIES or character in _FOLLOWING


def _letters(text: str) -> Iterator[str]:
    """The characters of a text, each with the marks that follow it."""
    start = 0
    for place, character in enumerate(text):
        if place and not _follows(character):
            yield text[start:place]
            start = place
    if text:
        yield text[start:]


def find_charsmap(rules: dict[str, Any]) -> Charsmap | None:
    """The charsmap of a tokenizer.json; None if its text is not normalized by one.

    Args:
        rules: the file.

    Raises:
        ValueError: it is damaged.
    """
    for rule in rules_of(rules.get("normalizer")):
        if rule.get("type") == "Precompiled" and rule.get("precompiled_charsmap"):
            return Charsmap(base64.b64decode(rule["precompiled_charsmap"], validate=True))
    return None
