"""SentencePiece models whose pieces have the ids of a table: Marian, M2M100, PLBart."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfexport.errors import TokenizerError, join_problems
from tfexport.json_checks import every, integer, matching, of_type, one_of, record
from tfexport.runtime.text.added_tokens import ADDED_TOKENS, AddedToken, CutTokenizer
from tfexport.runtime.text.libraries import failures_as, missing_library, read_file
from tfexport.runtime.text.vocabulary import describe_foreign

# A file of piece ids names the .model files next to it::
#
#     {"encode": "source.model", "decode": "source.model", "pieces": {"▁a": 5, …},
#      "unknown": "<unk>", "added": [{"content": "</s>", "id": 0, …}], "prefix": true,
#      "joined": "model", "behind_special": " ", "clean_up": false}


_FILE = matching(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", "the name of a file")
_FLAG, _TEXT = of_type("true or false", bool), of_type("a text", str)
_SHAPE = record(
    {
        "encode": _FILE,
        "decode": _FILE,
        "pieces": every(integer(0)),
        "unknown": _TEXT,
        "added": ADDED_TOKENS,
        "prefix": _FLAG,
        "joined": one_of("model", "text"),
        "behind_special": one_of("", " "),
        "clean_up": _FLAG,
    }
)
_SHOWN = 5  # problems of a file that are listed


@dataclass(frozen=True)
class PieceTable:
    """Ids of the pieces of a SentencePiece model.

    Attributes:
        encode: the model that splits text; the name of a file next to the table's.
        decode: the model that joins pieces, in the same way.
        pieces: piece to id.
        unknown: the piece for unknown pieces and ids.
        added: tokens that are found before a text is split.
        prefix: whether ``>>xxx<<`` at the start of a text is one piece (Marian).
        joined: "model" if the model's own rules join pieces to text; "text" if they are
            concatenated, with spaces for their marks.
        behind_special: what follows a special token in decoded text.
        clean_up: whether spaces before punctuation are removed from decoded text.
    """

    encode: str
    decode: str
    pieces: Mapping[str, int]
    unknown: str
    added: Sequence[AddedToken]
    prefix: bool = False
    joined: str = "model"
    behind_special: str = ""
    clean_up: bool = False

    def to_json(self) -> bytes:
        """The content of a file for ``read_piece_table``."""
        values = {**vars(self), "added": [token.to_dict() for token in self.added]}
        return f"{json.dumps(values, ensure_ascii=False, indent=0)}\n".encode()


def read_piece_table(path: Path) -> PieceTable:
    """Read a file of ``PieceTable.to_json``.

    Raises:
        TokenizerError: the file is unreadable, or not of that form.
    """
    values = read_json(path, "a table of pieces")
    problems = [*_SHAPE("", values)] or [*_contradictions(values)]
    require_none(path, "a table of pieces", problems)
    return PieceTable(**{**values, "added": [AddedToken(**token) for token in values["added"]]})


def _contradictions(values: Mapping[str, Any]) -> Iterator[str]:
    seen: dict[int, str] = {}
    for piece, place in values["pieces"].items():
        if place in seen:
            yield f"{seen[place][:40]!r} and {piece[:40]!r} both have the id {place}"
        seen[place] = piece
    if values["unknown"] not in values["pieces"]:
        yield f"unknown: {values['unknown'][:40]!r} is not a piece"


def read_json(path: Path, noun: str) -> Any:
    """The value of a JSON file.

    Args:
        path: the path of the file.
        noun: for messages.

    Raises:
        TokenizerError: it is unreadable, or no JSON with valid Unicode.
    """
    content = read_file(path)
    try:
        values = json.loads(content.decode())
        json.dumps(values, ensure_ascii=False).encode()  # no half of a surrogate pair
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path}: not {noun}: {error}") from None
    return values


def require_none(path: Path, noun: str, problems: Sequence[str]) -> None:
    """Raise a TokenizerError with the first problems of a file, if any."""
    if problems:
        more = len(problems) - _SHOWN
        named = [*problems[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]
        raise TokenizerError(join_problems(f"{path}: not {noun}", named))


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
        """Join pieces by the model's rules; special tokens are written as their names."""
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
