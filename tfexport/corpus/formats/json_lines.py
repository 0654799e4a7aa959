"""JSON lines: an object a row, to which the translation is added; the rest stays as it is."""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from tfexport.corpus.columns import Added, Columns, row_of
from tfexport.corpus.formats.lines import LongLine, join_bytes, read_piece, scan_lines
from tfexport.corpus.pieces import PartitionError, Piece, Scanned, Source
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
        """See ``Format``; what is given back are the lines, as bytes where they are no objects."""
        given, rows = list[str | bytes](), list[Row]()
        for place, line in enumerate(read_piece(source, piece)):
            number = piece.first + place
            try:
                if isinstance(line, LongLine):
                    raise InputError(line.problem)
                text = read_line(line, first=number == 0).strip()
                values = _parse(text)
            except InputError as error:
                given.append(b"" if isinstance(line, LongLine) else line)
                rows.append(Row(None, number, problem=str(error)))
                continue
            if taken := columns.taken(values):
                raise PartitionError(f"row {number + 1} {taken}")
            given.append(text)
            rows.append(row_of(values, number, columns))
        return given, rows

    def write(self, given: Any, decoded: Sequence[Decoded], columns: Columns) -> bytes:
        """See ``Format``."""
        pairs = zip(given, decoded, strict=True)
        return "".join(_written(text, row, columns.added) for text, row in pairs).encode()

    def join(self, bodies: Iterable[bytes], source: Source, sink: Any, columns: Columns) -> None:
        """See ``Format``."""
        join_bytes(bodies, sink)


def _parse(text: str) -> dict[str, Any]:
    """The object of a line.

    Raises:
        InputError: it is none.
    """
    try:
        values = json.loads(text, parse_constant=_not_json, parse_int=_whole)
    except RecursionError:
        raise InputError("not JSON that can be read: nested too deeply") from None
    except ValueError as error:
        raise InputError(f"not JSON: {error}") from None
    if not isinstance(values, dict):
        raise InputError(f"not a JSON object: {shown(values)}")
    return values


def _whole(digits: str) -> float:
    # Python refuses to parse thousands of digits, and only texts are asked for here.
    return int(digits) if len(digits) < 20 else math.inf


def _not_json(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON")


def _written(text: str | bytes, row: Decoded, names: Added) -> str:
    score = row.score if row.score is None or math.isfinite(row.score) else None
    values = zip(names, (row.translation, score, row.error), strict=True)
    added = json.dumps(dict(values), ensure_ascii=False)
    if isinstance(text, bytes):  # a line that is no object
        whole = text.decode(errors="backslashreplace").rstrip("\r\n")
        text = json.dumps({"line" if "line" not in names else "input": whole}, ensure_ascii=False)
    # The object's own text, not what a parser made of it: numbers and keys stay as they were.
    kept = text[1:-1].strip()
    return f"{{{kept}{', ' if kept else ''}{added[1:]}\n"
