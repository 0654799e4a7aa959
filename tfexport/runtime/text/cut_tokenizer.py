"""The common parts of tokenizers that find whole tokens in a text before they split the rest."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfexport.errors import InputError, TokenizerError
from tfexport.runtime.text.added_tokens import AddedToken, AddedTokens, clean_up
from tfexport.runtime.text.libraries import failures_as


class CutTokenizer(ABC):
    """A vocabulary of pieces, and tokens that are found first.

    Source of the rules: the tokenizers of transformers that are written in Python.
    """

    unknown_is_word = False
    own_end: int | None = None

    def __init__(
        self, path: Path, pieces: Mapping[str, int], unknown: str, added: Sequence[AddedToken],
        cleaned: bool,
    ) -> None:  # fmt: skip
        """Hold a vocabulary.

        Args:
            path: of its file, for messages.
            pieces: to their ids.
            unknown: the piece that stands for those without an id, and for ids without a piece.
            added: the tokens that are found first.
            cleaned: spaces before punctuation are removed from decoded text.
        """
        self._path, self._ids, self._unknown = path, pieces, unknown
        self._added, self._cleaned = AddedTokens(added), cleaned
        self._pieces = {number: piece for piece, number in pieces.items()}
        self._pieces |= {token.id: token.content for token in added}
        self.size = max(self._added.size, *(number + 1 for number in self._pieces))
        self.whole_words = cleaned

    @abstractmethod
    def _cut(self, text: str) -> list[str]:
        """The pieces of a text without added tokens."""

    @abstractmethod
    def _join(self, pieces: Sequence[str]) -> str:
        """The text of pieces."""

    def _id(self, piece: str) -> int:
        return self._ids.get(piece, self._ids[self._unknown])

    def _split(self, text: str) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        with failures_as(InputError, lambda: f"{self._path.name} cannot encode it"):
            for part, number in self._added.cut(text):
                if number is not None:
                    found.append((part, number))
                    continue
                for piece in self._cut(part):
                    token = self._added.by_content.get(piece)
                    found.append((piece, self._id(piece) if token is None else token.id))
        return found

    def encode(self, text: str) -> list[int]:
        """See ``Tokenizer``."""
        return [number for _, number in self._split(text)]

    def decode(self, ids: Sequence[int]) -> str:
        """See ``Tokenizer``."""
        with failures_as(TokenizerError, lambda: f"{self._path}: cannot decode these ids"):
            text = self._join(
                [
                    self._pieces.get(i, self._unknown)
                    for i in ids
                    if i >= 0 and i not in self._added.hidden
                ]
            )
        return clean_up(text) if self._cleaned else text

    def split(self, text: str) -> list[str]:
        """See ``Tokenizer``."""
        return [piece for piece, _ in self._split(text)]

    def piece(self, token: int) -> str:
        """See ``Tokenizer``."""
        return self._pieces.get(token, f"<{token}>")

    def find(self, piece: str) -> int | None:
        """See ``Tokenizer``."""
        added = self._added.by_content.get(piece)
        return self._ids.get(piece) if added is None else added.id
