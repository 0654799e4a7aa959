"""Tokenizers: Hugging Face tokenizers, SentencePiece and words, with one interface."""

from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol

from tfexport.errors import InputError, TokenizerError
from tfexport.runtime.text.libraries import (
    failures_as,
    library_error,
    missing_library,
    read_file,
)
from tfexport.runtime.text.vocabulary import (
    CHARACTERS,
    WHITESPACE,
    Vocabulary,
    describe_foreign,
    find_splitter,
    read_vocabulary,
    read_words,
)


class Tokenizer(Protocol):
    """A tokenizer without special tokens, which ``TextCodec`` adds."""

    def encode(self, text: str) -> list[int]:
        """Text to ids, without start or end token.

        Raises:
            InputError: the tokenizer has no ids for it.
        """

    def decode(self, ids: Sequence[int]) -> str:
        """Ids to text.

        Raises:
            TokenizerError: the library cannot.
        """

    @property
    def size(self) -> int:
        """One more than the largest id."""

    @property
    def unknown_is_word(self) -> bool:
        """Whether the unknown token is a complete word, not part of one."""

    @property
    def whole_words(self) -> bool:
        """Whether later tokens may change the last word of a text."""

    @property
    def own_end(self) -> int | None:
        """The end token if it is not added again to a text that ends with it; else None."""

    def split(self, text: str) -> list[str]:
        """The part of the text for each id of ``encode``."""

    def piece(self, token: int) -> str:
        """The piece of an id as it is in the vocabulary, with word boundary marks."""

    def find(self, piece: str) -> int | None:
        """The id of a piece of the vocabulary; None if it has no such piece."""


class JsonTokenizer:
    """A tokenizer.json of Hugging Face's ``tokenizers``."""

    own_end: int | None = None

    def __init__(self, path: Path) -> None:
        try:
            import tokenizers
        except ImportError:
            raise missing_library(path, "tokenizers") from None
        from tfexport.runtime.text.charsmap import find_charsmap  # noqa: PLC0415
        from tfexport.runtime.text.tokenizer_json import read_rules  # noqa: PLC0415

        self._path = path
        content = read_file(path)
        with failures_as(
            TokenizerError, lambda: f"{path}: {describe_foreign(path, 'a tokenizer.json')}"
        ):
            rules = read_rules(content)
            self._tokenizer = tokenizers.Tokenizer.from_buffer(content)
            self._charsmap = find_charsmap(rules)
        # A file may hold truncation settings from training, which would silently cut inputs.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        every = self._tokenizer.get_vocab().values()
        special = {i for i, it in self._tokenizer.get_added_tokens_decoder().items() if it.special}
        self.size = max(every, default=-1) + 1
        self.ordinary_size = max((i for i in every if i not in special), default=-1) + 1
        self.unknown_is_word = type(self._tokenizer.model).__name__ in ("WordLevel", "WordPiece")
        self.whole_words = self.unknown_is_word or "Fuse" in repr(self._tokenizer.decoder)

    def encode(self, text: str) -> list[int]:
        """See ``Tokenizer``."""
        if self._charsmap is not None:
            text = self._charsmap.compose(text)
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        except BaseException as error:
            raise library_error(error, InputError, f"{self._path.name} cannot encode it") from None
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """See ``Tokenizer``."""
        try:
            text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        except BaseException as error:
            raise library_error(
                error, TokenizerError, f"{self._path}: cannot decode these ids"
            ) from None
        return text

    def split(self, text: str) -> list[str]:
        """See ``Tokenizer``."""
        composed = text if self._charsmap is None else self._charsmap.compose(text)
        try:
            found = self._tokenizer.encode(composed, add_special_tokens=False)
        except BaseException as error:
            raise library_error(error, InputError, f"{self._path.name} cannot encode it") from None
        if self._charsmap is None or composed == text:
            return [text[start:end].strip() for start, end in found.offsets]
        places = self._charsmap.places(text)
        return [text[places[start] : places[end]].strip() for start, end in found.offsets]

    def piece(self, token: int) -> str:
        """See ``Tokenizer``."""
        return self._tokenizer.id_to_token(token) or f"<{token}>"

    def find(self, piece: str) -> int | None:
        """See ``Tokenizer``."""
        try:
            token: int | None = self._tokenizer.token_to_id(piece)
        except UnicodeEncodeError:  # no vocabulary holds half of a surrogate pair
            return None
        return token


class SentencePieceTokenizer:
    """A SentencePiece .model."""

    own_end: int | None = None

    def __init__(self, path: Path) -> None:
        try:
            import sentencepiece
        except ImportError:
            raise missing_library(path, "sentencepiece") from None
        self._path = path
        content = read_file(path)
        with failures_as(
            TokenizerError, lambda: f"{path}: {describe_foreign(path, 'a SentencePiece model')}"
        ):
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=content)
        self.size = int(self._processor.get_piece_size())
        self.unknown_is_word = self.whole_words = False

    def encode(self, text: str) -> list[int]:
        """See ``Tokenizer``."""
        try:
            ids: list[int] = self._processor.encode(text, out_type=int)
        except BaseException as error:
            raise library_error(error, InputError, f"{self._path.name} cannot encode it") from None
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """See ``Tokenizer``."""
        try:
            text: str = self._processor.decode([i for i in ids if i < self.size])
        except BaseException as error:
            raise library_error(
                error, TokenizerError, f"{self._path}: cannot decode these ids"
            ) from None
        return text

    def split(self, text: str) -> list[str]:
        """See ``Tokenizer``."""
        # As pieces, unknown parts keep the text's own characters.
        pieces: list[str] = self._processor.encode(text, out_type=str)
        return [piece.replace("▁", " ").strip() for piece in pieces]

    def piece(self, token: int) -> str:
        """See ``Tokenizer``."""
        return str(self._processor.id_to_piece(token)) if token < self.size else f"<{token}>"

    def find(self, piece: str) -> int | None:
        """See ``Tokenizer``."""
        try:
            piece.encode()
        except UnicodeEncodeError:  # no vocabulary holds half of a surrogate pair
            return None
        token = int(self._processor.piece_to_id(piece))
        # An unknown piece gives the id of the unknown token.
        return token if self.piece(token) == piece else None


class WordTokenizer:
    """A vocabulary of complete words, joined by spaces in decoded text, or of characters."""

    own_end: int | None = None

    def __init__(
        self, vocabulary: Vocabulary, unk_id: int | None, hidden: Collection[int] = ()
    ) -> None:
        self.words, self._split = vocabulary.words, find_splitter(vocabulary.split)
        self._ids = {word: i for i, word in enumerate(self.words)}
        self._unk_id, self._hidden = unk_id, frozenset(hidden)
        self.size = len(self.words)
        self.unknown_is_word = self.whole_words = vocabulary.split != CHARACTERS
        self._between = " " if self.whole_words else ""

    def encode(self, text: str) -> list[int]:
        """See ``Tokenizer``."""
        words = self.split(text)
        unknown = [word for word in words if word not in self._ids]
        if unknown and self._unk_id is None:
            raise InputError(
                f"{unknown[0]!r} is not in the vocabulary, and the model has no unk_id for it"
            )
        return [self._ids.get(word, self._unk_id or 0) for word in words]

    def decode(self, ids: Sequence[int]) -> str:
        """See ``Tokenizer``."""
        with failures_as(TokenizerError, lambda: "cannot decode these ids"):
            return self._between.join(
                self.words[i] for i in ids if 0 <= i < self.size and i not in self._hidden
            )

    def split(self, text: str) -> list[str]:
        """See ``Tokenizer``."""
        return self._split(text)

    def piece(self, token: int) -> str:
        """See ``Tokenizer``."""
        return self.words[token] if token < self.size else f"<{token}>"

    def find(self, piece: str) -> int | None:
        """See ``Tokenizer``."""
        return self._ids.get(piece)


# Kinds whose files are written at export: module and class. A bundle's own kind is imported alone.
OWN_KINDS: Mapping[str, tuple[str, str]] = {
    "pieces": ("piece_tokenizer", "PieceTokenizer"),
    "bytes": ("byte_tokenizer", "ByteTokenizer"),
    "lower_bpe": ("bpe_tokenizers", "LowerBpeTokenizer"),
    "moses_bpe": ("bpe_tokenizers", "MosesBpeTokenizer"),
}


def load_tokenizer(
    path: Path, kind: str, vocab_size: int, unk_id: int | None, hidden: Collection[int] = ()
) -> Tokenizer:
    """Load a tokenizer and check that the model knows all of its ids.

    Args:
        path: the tokenizer's file.
        kind: "tokenizers", "sentencepiece", "words", "vocabulary" or one of ``OWN_KINDS``.
        vocab_size: the vocabulary size of the model's source or target side.
        unk_id: the unknown token; used for "words" and "vocabulary" only.
        hidden: ids of special tokens, omitted from decoded text; used for these two only.

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
        tokenizer = WordTokenizer(Vocabulary(read_words(path), WHITESPACE), unk_id, hidden)
    elif kind == "vocabulary":
        tokenizer = WordTokenizer(read_vocabulary(path), unk_id, hidden)
    elif kind in OWN_KINDS:
        module, name = OWN_KINDS[kind]
        own: Callable[[Path], Tokenizer] = getattr(import_module(f"{__package__}.{module}"), name)
        tokenizer = own(path)
    else:
        raise TokenizerError(
            f"{path}: {kind!r} is not a kind of tokenizer that this version knows."
        )
    check_size(path, tokenizer, vocab_size)
    return tokenizer


def check_size(path: Path, tokenizer: Tokenizer, vocab_size: int) -> None:
    """Check that the model knows all ids of a tokenizer.

    Raises:
        TokenizerError: it has ids that the model lacks.
    """
    # Special tokens may be outside the model's table, such as <mask> of BART's summarisers. A text
    # that contains one is refused.
    used = tokenizer.ordinary_size if isinstance(tokenizer, JsonTokenizer) else tokenizer.size
    if used > vocab_size:
        raise TokenizerError(
            f"{path}: its ids go up to {tokenizer.size - 1}, the model's vocabulary ends at "
            f"{vocab_size - 1}. Give the tokenizer that the model was trained with."
        )
