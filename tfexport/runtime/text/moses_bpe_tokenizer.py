"""Byte pair encoding of words that Moses splits: FSMT. It needs the library sacremoses."""

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tfexport.runtime.text.cut_tokenizer import CutTokenizer
from tfexport.runtime.text.libraries import missing_library
from tfexport.runtime.text.merges import MOSES, Merges, read_merged

_END = "</w>"
_CACHED = 2**14  # words
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
        self._lower, self._merges = found.lower, Merges(found.merges)
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
        merged = self._merges.apply([*word[:-1], word[-1] + _END])
        return " ".join(merged).split(" ")

    def _join(self, pieces: Sequence[str]) -> str:
        words = "".join(piece.replace(" ", "").replace(_END, " ") for piece in pieces).split()
        text: str = self._joiner.detokenize(words)
        return text

    def split(self, text: str) -> list[str]:
        """See ``Tokenizer``."""
        return [piece.removesuffix(_END) for piece in super().split(text)]


def _replace_punctuation(text: str) -> str:
    text = re.sub(r"。\s*", ". ", text)
    text = re.sub(r"．\s*", ". ", text.translate(_PUNCTUATION))
    return text.replace("…", "...")
