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
    PartitionContent,
    PartitionError,
    Piece,
    SourceFile,
    key_of,
)
from tfexport.corpus.row_decoder import MAX_ROW_BYTES, CorpusRow, RowResult
from tfexport.errors import InputError, shown
from tfexport.runtime.files.input_lines import read_line
from tfexport.runtime.files.line_stream import one_line

# A line of JSON may hold more than its text.
MAX_LINE_BYTES = 16 * MAX_ROW_BYTES
_NEWLINE = ord("\n")


Line = bytes | InputError  # with its end; or why it is not kept in memory


def scan_lines(source: SourceFile, batch_rows: int) -> PartitionContent:
    """Cut a file into pieces of complete lines.

    Raises:
        PartitionError: it cannot be read or decompressed.
    """
    digest = hashlib.sha256()
    try:
        pieces = tuple(_cut(_blocks(source, digest), batch_rows))
    except (OSError, pa.ArrowException) as error:
        raise PartitionError(f"cannot be read: {error}") from None
    return PartitionContent(digest.hexdigest(), pieces)


def digest_of(source: SourceFile) -> str:
    """The sha256 of a file's content, decompressed."""
    digest = hashlib.sha256()
    for _ in _blocks(source, digest):
        pass
    return digest.hexdigest()


def _blocks(source: SourceFile, digest: "hashlib._Hash") -> Iterator[bytes]:
    """The bytes of a file, decompressed, of which the digest is computed meanwhile."""
    with opened(source.system, source.path, source.compression) as stream:
        while block := stream.read(BLOCK):
            digest.update(block)
            yield block


def lines_of(source: SourceFile) -> Iterator[Line]:
    """All lines of a file, with their ends."""
    stream = _Stream(source)
    try:
        yield from _lines(stream, sys.maxsize)
    finally:
        stream.close()


def _cut(blocks: Iterable[bytes], batch_rows: int) -> Iterator[Piece]:
    """Cut a stream of bytes after a number of lines or bytes."""
    index = first = start = rows = size = 0
    end = 0  # of the last complete line
    for block in blocks:
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == _NEWLINE) + 1 + size
        size += len(block)
        while ends.size:
            room = batch_rows - rows
            full = int(np.searchsorted(ends, start + MAX_PIECE_BYTES))
            count = min(room, max(full, 1), ends.size)
            rows, end = rows + count, int(ends[count - 1])
            if count == room or end - start >= MAX_PIECE_BYTES or count < ends.size:
                yield Piece(index, first, rows, start)
                index, first, start, rows = index + 1, first + rows, end, 0
            ends = ends[count:]
    rows += size > end  # a last line without its end
    if rows:
        yield Piece(index, first, rows, start)


def read_piece(source: SourceFile, piece: Piece) -> list[Line]:
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

    def __init__(self, source: SourceFile) -> None:
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


def _lines(stream: _Stream, count: int) -> Iterator[Line]:
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


def _line(kept: list[bytes], size: int) -> Line:
    if size <= MAX_LINE_BYTES:
        return b"".join(kept)
    return InputError(f"a line of {size:,} bytes; the limit is {MAX_LINE_BYTES:,}")


def join_bytes(bodies: Iterable[bytes], sink: Any) -> None:
    """Write bodies in order."""
    for body in bodies:
        sink.write(body)


class TextLines:
    """Lines of UTF-8 text; a row without a translation is an empty line."""

    name = "text"
    suffixes = (".txt", "")
    has_scores = False

    def scan(self, source: SourceFile, batch_rows: int, columns: Columns) -> PartitionContent:
        """See ``Format``."""
        return scan_lines(source, batch_rows)

    def read(
        self, source: SourceFile, piece: Piece, columns: Columns
    ) -> tuple[Any, list[CorpusRow]]:
        """See ``Format``."""
        lines = read_piece(source, piece)
        return None, [_row(line, piece.first + place) for place, line in enumerate(lines)]

    def write(self, given: Any, decoded: Sequence[RowResult], columns: Columns) -> bytes:
        """See ``Format``."""
        return "".join(f"{one_line(row.translation or '')}\n" for row in decoded).encode()

    def join(
        self, bodies: Iterable[bytes], source: SourceFile, sink: Any, columns: Columns
    ) -> None:
        """See ``Format``."""
        join_bytes(bodies, sink)


def _row(line: Line, number: int) -> CorpusRow:
    try:
        if isinstance(line, InputError):
            raise line
        return CorpusRow(read_line(line, first=number == 0), number)
    except InputError as error:
        return CorpusRow(None, number, problem=str(error))


class JsonLines:
    """JSON lines in UTF-8: translations are added, the rest is unchanged."""

    name = "jsonl"
    suffixes = (".jsonl", ".ndjson")
    has_scores = True

    def scan(self, source: SourceFile, batch_rows: int, columns: Columns) -> PartitionContent:
        """See ``Format``."""
        return scan_lines(source, batch_rows)

    def read(
        self, source: SourceFile, piece: Piece, columns: Columns
    ) -> tuple[Any, list[CorpusRow]]:
        """See ``Format``; lines that are no objects are returned as bytes."""
        given, rows = list[str | bytes](), list[CorpusRow]()
        for place, line in enumerate(read_piece(source, piece)):
            number = piece.first + place
            try:
                if isinstance(line, InputError):
                    raise line
                text = read_line(line, first=number == 0).strip()
                values = _parse(text)
            except InputError as error:
                given.append(b"" if isinstance(line, InputError) else line)
                rows.append(CorpusRow(None, number, problem=str(error)))
                continue
            if taken := columns.taken(values):
                raise PartitionError(f"row {number + 1} {taken}")
            given.append(text)
            rows.append(row_of(values, number, columns))
        return given, rows

    def write(self, given: Any, decoded: Sequence[RowResult], columns: Columns) -> bytes:
        """See ``Format``."""
        pairs = zip(given, decoded, strict=True)
        return "".join(_written(text, row, columns.added) for text, row in pairs).encode()

    def join(
        self, bodies: Iterable[bytes], source: SourceFile, sink: Any, columns: Columns
    ) -> None:
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


def _written(text: str | bytes, row: RowResult, names: Added) -> str:
    score = row.score if row.score is None or math.isfinite(row.score) else None
    values = zip(names, (row.translation, score, row.error), strict=True)
    added = json.dumps(dict(values), ensure_ascii=False)
    if isinstance(text, bytes):  # a line that is no object
        whole = text.decode(errors="backslashreplace").rstrip("\r\n")
        text = json.dumps({"line" if "line" not in names else "input": whole}, ensure_ascii=False)
    # The original text of the object: numbers and keys are unchanged.
    kept = text[1:-1].strip()
    return f"{{{kept}{', ' if kept else ''}{added[1:]}\n"
