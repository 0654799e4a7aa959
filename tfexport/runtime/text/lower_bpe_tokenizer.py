"""Byte pair encoding of lower-case words: blenderbot-small, after ParlAI."""

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from tfexport.runtime.text.cut_tokenizer import CutTokenizer
from tfexport.runtime.text.merges import LOWER_CASE, Merges, read_merged

_END, _GOES_ON = "</w>", "@@"
_CACHED = 2**14  # words
# White space of Unicode, which is less than that of Python: not the separators U+001C to U+001F.
_SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_WORD = re.compile(f"[^{_SPACE}]+\n?")
_SPACES = re.compile(f"[{_SPACE}]{{2,}}")


class LowerBpeTokenizer(CutTokenizer):
    """Pieces of lower-case words; those that do not end a word end in ``@@``."""

    def __init__(self, path: Path) -> None:
        """Read a file of ``MergedVocabulary``."""
        found = read_merged(path, LOWER_CASE)
        super().__init__(path, found.pieces, found.unknown, found.added, found.clean_up)
        self.whole_words = True  # a piece that goes on has its mark until the next one comes
        self._merges = Merges(found.merges)
        self._word = lru_cache(_CACHED)(self._split_word)

    def _cut(self, text: str) -> list[str]:
        return [piece for word in _WORD.findall(text) for piece in self._word(word)]

    def _split_word(self, word: str) -> list[str]:
        """The pieces of what stands between spaces, and a line break behind it."""
        word = re.sub("([.,!?()])", r" \1", word)
        word = _SPACES.sub(" ", word.replace("'", " ' "))
        word = word.replace("\n", " __newln__")
        pieces = []
        for part in word.split(" "):
            lower = part.lower()
            if len(lower) < 2:
                pieces += [lower] if lower else []
                continue
            merged = self._merges.apply([*lower[:-1], lower[-1] + _END])
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
