"""SentencePiece models whose pieces have the ids of a table: Marian, M2M100, PLBart."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfexport.errors import TokenizerError
from tfexport.runtime.text.cut_tokenizer import CutTokenizer
from tfexport.runtime.text.libraries import failures_as, missing_library, read_file
from tfexport.runtime.text.piece_table import read_piece_table
from tfexport.runtime.text.vocabulary_files import describe_foreign


class PieceTokenizer(CutTokenizer):
    """A SentencePiece model with a table of ids."""

    def __init__(self, path: Path) -> None:
        """Read a file of ``PieceTable``, and the models that it names."""
        table = read_piece_table(path)
        super().__init__(path, table.pieces, table.unknown, table.added, table.clean_up)
        self._table, self._encoder = table, _open_model(path.parent / table.encode)
        same = table.decode == table.encode
        self._decoder = self._encoder if same else _open_model(path.parent / table.decode)

    def _cut(self, text: str) -> list[str]:
        end = text.find("<<") + 2 if self._table.prefix and text.startswith(">>") else 0
        begun = [text[:end]] if end > 1 else []
        pieces: list[str] = self._encoder.encode(text[end if begun else 0 :], out_type=str)
        return [*begun, *pieces]

    def _join(self, pieces: Sequence[str]) -> str:
        if self._table.joined == "text":
            return "".join(pieces).replace("▁", " ").strip()
        text = self._join_by_model(pieces)
        return (text.replace("▁", " ") if self._table.behind_special else text).strip()

    def _join_by_model(self, pieces: Sequence[str]) -> str:
        """Join pieces by the model's rules, special tokens among them by their names."""
        text, pending = "", list[str]()
        for piece in pieces:
            if piece in self._added.special:
                text += self._decoder.decode(pending) + piece + self._table.behind_special
                pending = []
            else:
                pending.append(piece)
        joined: str = text + self._decoder.decode(pending)
        return joined

    def split(self, text: str) -> list[str]:
        """See ``Tokenizer``."""
        return [piece.replace("▁", " ").strip() for piece in super().split(text)]


def _open_model(path: Path) -> Any:
    try:
        import sentencepiece
    except ImportError:
        raise missing_library(path, "sentencepiece") from None
    content = read_file(path)
    with failures_as(
        TokenizerError, lambda: f"{path}: {describe_foreign(path, 'a SentencePiece model')}"
    ):
        return sentencepiece.SentencePieceProcessor(model_proto=content)
