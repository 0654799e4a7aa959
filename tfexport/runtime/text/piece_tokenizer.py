"""SentencePiece models whose pieces have the ids of a table: Marian, M2M100, PLBart."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfexport.errors import InputError, TokenizerError
from tfexport.runtime.text.added_tokens import AddedTokens, clean_up
from tfexport.runtime.text.libraries import failures_as, missing_library
from tfexport.runtime.text.piece_table import read_piece_table
from tfexport.runtime.text.vocabulary_files import describe_foreign


class PieceTokenizer:
    """A SentencePiece model with a table of ids."""

    def __init__(self, path: Path) -> None:
        self._path, self._table = path, read_piece_table(path)
        self._encoder = _open_model(path.parent / self._table.encode)
        self._decoder = (
            self._encoder
            if self._table.decode == self._table.encode
            else _open_model(path.parent / self._table.decode)
        )
        self._added = AddedTokens(self._table.added)
        self._unknown = self._table.pieces[self._table.unknown]
        self._pieces = {number: piece for piece, number in self._table.pieces.items()}
        self._pieces |= {token.id: token.content for token in self._table.added}
        self.size = max(self._added.size, *(number + 1 for number in self._pieces))
        self.unknown_is_word = False
        self.whole_words = self._table.clean_up

    def encode(self, text: str) -> list[int]:
        """See ``Tokenizer``."""
        return [number for _, number in self._split(text)]

    def _split(self, text: str) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        with failures_as(InputError, lambda: f"{self._path.name} cannot encode it"):
            for part, number in self._added.cut(text):
                if number is not None:
                    found.append((part, number))
                    continue
                for piece in self._pieces_of(part):
                    token = self._added.by_content.get(piece)
                    known = self._table.pieces.get(piece, self._unknown)
                    found.append((piece, known if token is None else token.id))
        return found

    def _pieces_of(self, text: str) -> list[str]:
        end = text.find("<<") + 2 if self._table.prefix and text.startswith(">>") else 0
        begun = [text[:end]] if end > 1 else []
        pieces: list[str] = self._encoder.encode(text[end if begun else 0 :], out_type=str)
        return [*begun, *pieces]

    def decode(self, ids: Sequence[int]) -> str:
        """See ``Tokenizer``."""
        with failures_as(TokenizerError, lambda: f"{self._path}: cannot decode these ids"):
            tokens = [
                self._pieces.get(i, self._table.unknown)
                for i in ids
                if i >= 0 and i not in self._added.hidden
            ]
            text = "".join(tokens) if self._table.joined == "text" else self._join(tokens)
        if self._table.joined == "text" or self._table.behind_special:
            text = text.replace("▁", " ")
        text = text.strip()
        return clean_up(text) if self._table.clean_up else text

    def _join(self, tokens: Sequence[str]) -> str:
        """Join pieces by the model's rules, special tokens among them by their names."""
        text, pieces = "", list[str]()
        for token in tokens:
            if token in self._added.special:
                text += self._decoder.decode(pieces) + token + self._table.behind_special
                pieces = []
            else:
                pieces.append(token)
        joined: str = text + self._decoder.decode(pieces)
        return joined

    def split(self, text: str) -> list[str]:
        """See ``Tokenizer``."""
        return [piece.replace("▁", " ").strip() for piece, _ in self._split(text)]

    def piece(self, token: int) -> str:
        """See ``Tokenizer``."""
        return self._pieces.get(token, f"<{token}>")

    def find(self, piece: str) -> int | None:
        """See ``Tokenizer``."""
        added = self._added.by_content.get(piece)
        return self._table.pieces.get(piece) if added is None else added.id


def _open_model(path: Path) -> Any:
    try:
        import sentencepiece
    except ImportError:
        raise missing_library(path, "sentencepiece") from None
    with failures_as(
        TokenizerError, lambda: f"{path}: {describe_foreign(path, 'a SentencePiece model')}"
    ):
        return sentencepiece.SentencePieceProcessor(model_file=str(path))
