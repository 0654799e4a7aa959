"""Text to ids and back, through the library that the tokenizer was made for."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

from tfexport.errors import (
    InputError,
    MissingDependencyError,
    TokenizerError,
    missing_dependency,
)


class Tokenizer(Protocol):
    """What the translator asks of a tokenizer; framing is the translator's own business."""

    def encode(self, text: str) -> list[int]:
        """Text to ids, without start or end token."""

    def decode(self, ids: Sequence[int]) -> str:
        """Ids to text."""

    @property
    def size(self) -> int:
        """One more than the largest id."""

    @property
    def unknown_is_word(self) -> bool:
        """Whether the unknown token stands for a whole word, with space on both sides."""

    def split(self, text: str) -> list[str]:
        """The part of the text that each id of ``encode`` stands for."""

    def piece(self, token: int) -> str:
        """An id as the vocabulary writes it, word boundary marks and all."""

    def find(self, piece: str) -> int | None:
        """The id of what the vocabulary writes so; None if it does not hold it."""


class JsonTokenizer:
    """A tokenizer.json of Hugging Face's ``tokenizers``."""

    def __init__(self, path: Path) -> None:
        try:
            import tokenizers
        except ImportError:
            raise _missing(path, "tokenizers") from None
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the Rust side raises Exception itself
            raise TokenizerError(f"{path}: not a tokenizer.json: {error}") from None
        # A file may carry its training set-up's cut-off, which would shorten inputs in silence.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.size = max(self._tokenizer.get_vocab().values(), default=-1) + 1
        self.unknown_is_word = type(self._tokenizer.model).__name__ in ("WordLevel", "WordPiece")

    def encode(self, text: str) -> list[int]:
        """See ``Tokenizer``."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """See ``Tokenizer``."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def split(self, text: str) -> list[str]:
        """See ``Tokenizer``."""
        found = self._tokenizer.encode(text, add_special_tokens=False)
        return [text[start:end].strip() for start, end in found.offsets]

    def piece(self, token: int) -> str:
        """See ``Tokenizer``."""
        return self._tokenizer.id_to_token(token) or f"<{token}>"

    def find(self, piece: str) -> int | None:
        """See ``Tokenizer``."""
        token: int | None = self._tokenizer.token_to_id(piece)
        return token


class SentencePieceTokenizer:
    """A SentencePiece .model."""

    def __init__(self, path: Path) -> None:
        try:
            import sentencepiece
        except ImportError:
            raise _missing(path, "sentencepiece") from None
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        except (RuntimeError, OSError) as error:
            raise TokenizerError(f"{path}: not a SentencePiece model: {error}") from None
        self.size = int(self._processor.get_piece_size())
        self.unknown_is_word = False

    def encode(self, text: str) -> list[int]:
        """See ``Tokenizer``."""
        ids: list[int] = self._processor.encode(text, out_type=int)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """See ``Tokenizer``."""
        text: str = self._processor.decode([i for i in ids if i < self.size])
        return text

    def split(self, text: str) -> list[str]:
        """See ``Tokenizer``."""
        # An unknown piece is written as it stands in the text.
        pieces: list[str] = self._processor.encode(text, out_type=str)
        return [piece.replace("▁", " ").strip() for piece in pieces]

    def piece(self, token: int) -> str:
        """See ``Tokenizer``."""
        return str(self._processor.id_to_piece(token)) if token < self.size else f"<{token}>"

    def find(self, piece: str) -> int | None:
        """See ``Tokenizer``."""
        token = int(self._processor.piece_to_id(piece))
        # What it does not know becomes the unknown token.
        return token if self.piece(token) == piece else None


class WordTokenizer:
    """A vocabulary of whole words, one a line, the line's number from 0 being the id."""

    def __init__(self, path: Path, unk_id: int | None, hidden: Collection[int] = ()) -> None:
        try:
            self._words = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise TokenizerError(f"{path}: not a vocabulary in UTF-8: {error}") from None
        self._ids = {word: i for i, word in enumerate(self._words)}
        if len(self._ids) < len(self._words):
            twice = next(w for i, w in enumerate(self._words) if self._ids[w] != i)
            raise TokenizerError(f"{path}: {twice!r} stands on more than one line.")
        self._unk_id, self._hidden = unk_id, frozenset(hidden)
        self.size = len(self._words)
        self.unknown_is_word = True

    def encode(self, text: str) -> list[int]:
        """See ``Tokenizer``."""
        words = text.split()
        unknown = [word for word in words if word not in self._ids]
        if unknown and self._unk_id is None:
            raise InputError(
                f"{unknown[0]!r} is not in the vocabulary, and the model has no unk_id for it"
            )
        return [self._ids.get(word, self._unk_id or 0) for word in words]

    def decode(self, ids: Sequence[int]) -> str:
        """See ``Tokenizer``."""
        return " ".join(self._words[i] for i in ids if i < self.size and i not in self._hidden)

    def split(self, text: str) -> list[str]:
        """See ``Tokenizer``."""
        return text.split()

    def piece(self, token: int) -> str:
        """See ``Tokenizer``."""
        return self._words[token] if token < self.size else f"<{token}>"

    def find(self, piece: str) -> int | None:
        """See ``Tokenizer``."""
        return self._ids.get(piece)


def _missing(path: Path, library: str) -> MissingDependencyError:
    return missing_dependency(f"{path.name} needs the {library} library", extra=library)


def load_tokenizer(
    path: Path, kind: str, vocab_size: int, unk_id: int | None, hidden: Collection[int] = ()
) -> Tokenizer:
    """Load a tokenizer and check that the model knows all of its ids.

    Args:
        path: the tokenizer's file.
        kind: "tokenizers", "sentencepiece" or "words".
        vocab_size: of the model's side that the tokenizer is for.
        unk_id: stands for unknown words; only "words" needs to be told.
        hidden: ids that are not shown in text; only "words" needs to be told.

    Raises:
        TokenizerError: unreadable, of an unknown kind, or with ids that the model lacks.
        MissingDependencyError: its library is not installed.
    """
    tokenizer: Tokenizer
    if kind == "tokenizers":
        tokenizer = JsonTokenizer(path)
    elif kind == "sentencepiece":
        tokenizer = SentencePieceTokenizer(path)
    elif kind == "words":
        tokenizer = WordTokenizer(path, unk_id, hidden)
    else:
        raise TokenizerError(
            f"{path}: {kind!r} is not a kind of tokenizer that this version knows."
        )
    if tokenizer.size > vocab_size:
        raise TokenizerError(
            f"{path}: its ids go up to {tokenizer.size - 1}, the model's vocabulary ends at "
            f"{vocab_size - 1}. Give the tokenizer that the model was trained with."
        )
    return tokenizer
