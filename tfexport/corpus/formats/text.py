"""Lines of text: a translation a line, and an empty line where there is none."""

from collections.abc import Iterable, Sequence
from typing import Any

from tfexport.corpus.columns import Columns
from tfexport.corpus.formats.lines import LongLine, join_bytes, read_piece, scan_lines
from tfexport.corpus.pieces import Piece, Scanned, Source
from tfexport.corpus.row_decoder import Decoded, Row
from tfexport.errors import InputError
from tfexport.runtime.files.input_lines import read_line
from tfexport.runtime.files.line_stream import one_line


class Text:
    """Text in UTF-8; a row is a line."""

    name = "text"
    suffixes = (".txt", "")
    has_scores = False

    def scan(self, source: Source, batch_rows: int, columns: Columns) -> Scanned:
        """See ``Format``."""
        return scan_lines(source, batch_rows)

    def read(self, source: Source, piece: Piece, columns: Columns) -> tuple[Any, list[Row]]:
        """See ``Format``."""
        lines = read_piece(source, piece)
        return None, [_row(line, piece.first + place) for place, line in enumerate(lines)]

    def write(self, given: Any, decoded: Sequence[Decoded], columns: Columns) -> bytes:
        """See ``Format``."""
        return "".join(f"{one_line(row.translation or '')}\n" for row in decoded).encode()

    def join(self, bodies: Iterable[bytes], source: Source, sink: Any, columns: Columns) -> None:
        """See ``Format``."""
        join_bytes(bodies, sink)


def _row(line: bytes | LongLine, number: int) -> Row:
    if isinstance(line, LongLine):
        return Row(None, number, problem=line.problem)
    try:
        return Row(read_line(line, first=number == 0), number)
    except InputError as error:
        return Row(None, number, problem=str(error))
