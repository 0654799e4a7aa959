"""JSON lines: an object a row, to which the translation is added; the rest stays as it is."""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from tfexport.corpus.columns import Columns, row_of
from tfexport.corpus.formats.lines import LongLine, join_bytes, read_piece, scan_lines
from tfexport.corpus.pieces import ADDED, Piece, Scanned, Source
from tfexport.corpus.row_decoder import Decoded, Row
from tfexport.errors import InputError, shown
from tfexport.runtime.files.input_lines import read_line


class JsonLines:
    """An object a line, in UTF-8."""

    name = "jsonl"
    suffixes = (".jsonl", ".ndjson")
    has_scores = True

    def scan(self, source: Source, batch_rows: int, columns: Columns) -> Scanned:
        """See ``Format``."""
        return scan_lines(source, batch_rows)

    def read(self, source: Source, piece: Piece, columns: Columns) -> tuple[Any, list[Row]]:
        """See ``Format``; what is given back are the lines, None where they are no objects."""
        given, rows = list[str | None](), list[Row]()
        for place, line in enumerate(read_piece(source, piece)):
            number, text = piece.first + place, None
            try:
                if isinstance(line, LongLine):
                    raise InputError(line.problem)
                text = read_line(line, first=number == 0).strip()
                values = _parse(text)
            except InputError as error:
                given.append(None)
                rows.append(Row(None, number, problem=str(error)))
                continue
            given.append(text)
            rows.append(row_of(values, number, columns))
        return given, rows

    def write(self, given: Any, decoded: Sequence[Decoded]) -> bytes:
        """See ``Format``."""
        pairs = zip(given, decoded, strict=True)
        return "".join(_written(text, row) for text, row in pairs).encode()

    def join(self, bodies: Iterable[bytes], source: Source, sink: Any) -> None:
        """See ``Format``."""
        join_bytes(bodies, sink)


def _parse(text: str) -> dict[str, Any]:
    """The object of a line.

    Raises:
        InputError: it is none, or has a key that is to be added.
    """
    try:
        values = json.loads(text, parse_constant=_not_json, parse_int=_whole)
    except RecursionError:
        raise InputError("not JSON that can be read: nested too deeply") from None
    except ValueError as error:
        raise InputError(f"not JSON: {error}") from None
    if not isinstance(values, dict):
        raise InputError(f"not a JSON object: {shown(values)}")
    if taken := [name for name in ADDED if name in values]:
        raise InputError(f"has {', '.join(taken)} already, where the result goes")
    return values


def _whole(digits: str) -> float:
    # Python refuses to parse thousands of digits, and only texts are asked for here.
    return int(digits) if len(digits) < 20 else math.inf


def _not_json(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON")


def _written(text: str | None, row: Decoded) -> str:
    score = row.score if row.score is None or math.isfinite(row.score) else None
    added = json.dumps(
        {"translation": row.translation, "score": score, "error": row.error}, ensure_ascii=False
    )
    # The object's own text, not what a parser made of it: numbers and keys stay as they were.
    kept = "" if text is None else text[1:-1].strip()
    return f"{{{kept}{', ' if kept else ''}{added[1:]}\n"
