"""Files of lines: text and JSON lines, cut into pieces and read line by line."""

import hashlib
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tfexport.corpus.columns import Added, Columns, row_of
from tfexport.corpus.filesystem import BLOCK, open_stream, opened
from tfexport.corpus.pieces import (
    MAX_PIECE_BYTES,
    Cursors,
    PartitionError,
    Piece,
    Scanned,
    Source,
    key_of,
)
from tfexport.corpus.row_decoder import MAX_ROW_BYTES, Decoded, Row
from tfexport.errors import InputError, shown
from tfexport.runtime.files.input_lines import read_line
from tfexport.runtime.files.line_stream import one_line

# A line of JSON may hold more than its text.
MAX_LINE_BYTES = 16 * MAX_ROW_BYTES
_NEWLINE = ord("\n")


class LongLine:
    """Replaces a line that is too long to be kept in memory.

    Attributes:
        size: the size of the line in bytes.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    @property
    def problem(self) -> str:
        """Why it is not decoded."""
        return f"a line of {self.size:,} bytes; the limit is {MAX_LINE_BYTES:,}"


def scan_lines(source: Source, batch_rows: int) -> Scanned:
    """Cut a file into pieces of complete lines.

    Raises:
        PartitionError: it cannot be read or decompressed.
    """
    digest, cutter = hashlib.sha256(), _Cutter(batch_rows)
    try:
        with opened(source.system, source.path, source.compression) as stream:
            while block := stream.read(BLOCK):
                digest.update(block)
                cutter.feed(block)
    except (OSError, pa.ArrowException) as error:
        raise PartitionError(f"cannot be read: {error}") from None
    return Scanned(digest.hexdigest(), tuple(cutter.end()))


def digest_of(source: Source) -> str:
    """The sha256 of a file's content, decompressed."""
    digest = hashlib.sha256()
    with opened(source.system, source.path, source.compression) as stream:
        while block := stream.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def lines_of(source: Source) -> Iterator[bytes | LongLine]:
    """All lines of a file, with their ends."""
    stream = _Stream(source)
    try:
        yield from _lines(stream, sys.maxsize)
    finally:
        stream.close()


class _Cutter:
    """Cuts a stream of bytes after a number of lines or bytes."""

    def __init__(self, batch_rows: int) -> None:
        self._batch_rows, self._pieces = batch_rows, list[Piece]()
        self._size = self._first = self._start = self._rows = 0
        self._ended = 0  # where the last complete line ended

    def feed(self, block: bytes) -> None:
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == _NEWLINE) + 1 + self._size
        self._size += len(block)
        while ends.size:
            room = self._batch_rows - self._rows
            full = int(np.searchsorted(ends, self._start + MAX_PIECE_BYTES))
            take = min(room, max(full, 1), ends.size)
            self._rows, self._ended = self._rows + take, int(ends[take - 1])
            if take == room or self._ended - self._start >= MAX_PIECE_BYTES or take < ends.size:
                self._cut()
            ends = ends[take:]

    def end(self) -> list[Piece]:
        if self._size > self._ended:  # a last line without its end
            self._rows += 1
            self._ended = self._size
        if self._rows:
            self._cut()
        return self._pieces

    def _cut(self) -> None:
        piece = Piece(len(self._pieces), self._first, self._rows, self._start)
        self._pieces.append(piece)
        self._first, self._start, self._rows = self._first + self._rows, self._ended, 0


def read_piece(source: Source, piece: Piece) -> list[bytes | LongLine]:
    """The lines of a piece, with their ends.

    Raises:
        PartitionError: the file cannot be read any more, or has fewer lines than before.
    """
    try:
        key = key_of(source)
        stream = _STREAMS.take(key, piece.start) or _Stream(source)
        try:
            stream.skip_to(piece.start)
            found = list(_lines(stream, piece.rows))
        except BaseException:
            stream.close()
            raise
        _STREAMS.keep(key, stream)
    except (OSError, pa.ArrowException) as error:
        raise PartitionError(f"cannot be read: {error}") from None
    if len(found) != piece.rows:
        raise PartitionError("was changed while it was read")
    return found


class _Stream:
    """The bytes of a file, decompressed, from any position on."""

    def __init__(self, source: Source) -> None:
        self.position, self._ahead, self._seeks = 0, b"", source.compression is None
        if self._seeks:
            self._file = source.system.open_input_file(source.path)
        else:
            self._file = open_stream(source.system, source.path, source.compression)

    def close(self) -> None:
        self._file.close()

    def skip_to(self, position: int) -> None:
        if self._seeks and position - self.position > len(self._ahead):
            self._file.seek(position)
            self._ahead, self.position = b"", position
        while self.position < position and self.read(min(position - self.position, BLOCK)):
            pass

    def read(self, most: int) -> bytes:
        block = self._ahead[:most] or self._file.read(most)
        self._ahead = self._ahead[most:]
        self.position += len(block)
        return block

    def back(self, block: bytes) -> None:
        self._ahead = block + self._ahead
        self.position -= len(block)


_STREAMS = Cursors()


def _lines(stream: _Stream, count: int) -> Iterator[bytes | LongLine]:
    kept, size, found = list[bytes](), 0, 0
    while found < count:
        block = stream.read(BLOCK)
        if not block:
            if size:
                yield _line(kept, size)
            return
        begin = 0
        while found < count and (end := block.find(b"\n", begin) + 1):
            size += end - begin
            if size <= MAX_LINE_BYTES:
                kept.append(block[begin:end])
            yield _line(kept, size)
            kept, size, begin, found = [], 0, end, found + 1
        if found == count:
            stream.back(block[begin:])
            return
        size += len(block) - begin
        if size <= MAX_LINE_BYTES:
            kept.append(block[begin:])
        else:
            kept = []


def _line(kept: list[bytes], size: int) -> bytes | LongLine:
    return b"".join(kept) if size <= MAX_LINE_BYTES else LongLine(size)


def join_bytes(bodies: Iterable[bytes], sink: Any) -> None:
    """Write bodies in order."""
    for body in bodies:
        sink.write(body)


class Text:
    """Lines of UTF-8 text; a row without a translation is an empty line."""

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


class JsonLines:
    """JSON lines in UTF-8: translations are added, the rest is unchanged."""

    name = "jsonl"
    suffixes = (".jsonl", ".ndjson")
    has_scores = True

    def scan(self, source: Source, batch_rows: int, columns: Columns) -> Scanned:
        """See ``Format``."""
        return scan_lines(source, batch_rows)

    def read(self, source: Source, piece: Piece, columns: Columns) -> tuple[Any, list[Row]]:
        """See ``Format``; lines that are no objects are returned as bytes."""
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
    try:
        values = json.loads(text, parse_constant=_not_json, parse_int=_whole)
    except RecursionError:
        raise InputError("not readable as JSON: nested too deeply") from None
    except ValueError as error:
        raise InputError(f"not JSON: {error}") from None
    if not isinstance(values, dict):
        raise InputError(f"not a JSON object: {shown(values)}")
    return values


def _whole(digits: str) -> float:
    # Python refuses to parse thousands of digits; numbers are not needed here.
    return int(digits) if len(digits) < 20 else math.inf


def _not_json(word: str) -> Any:
    raise ValueError(f"{word} is not a valid JSON number")


def _written(text: str | bytes, row: Decoded, names: Added) -> str:
    score = row.score if row.score is None or math.isfinite(row.score) else None
    values = zip(names, (row.translation, score, row.error), strict=True)
    added = json.dumps(dict(values), ensure_ascii=False)
    if isinstance(text, bytes):  # a line that is no object
        whole = text.decode(errors="backslashreplace").rstrip("\r\n")
        text = json.dumps({"line" if "line" not in names else "input": whole}, ensure_ascii=False)
    # The original text of the object: numbers and keys are unchanged.
    kept = text[1:-1].strip()
    return f"{{{kept}{', ' if kept else ''}{added[1:]}\n"
