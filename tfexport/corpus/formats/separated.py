"""CSV and TSV with a header; the fields of the translation are added at the end of each record."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tfexport.corpus.columns import Columns, row_of
from tfexport.corpus.formats.lines import (
    Line,
    digest_of,
    join_bytes,
    lines_of,
    read_piece,
)
from tfexport.corpus.pieces import (
    MAX_PIECE_BYTES,
    PartitionContent,
    PartitionError,
    Piece,
    SourceFile,
)
from tfexport.corpus.row_decoder import CorpusRow, RowResult
from tfexport.errors import InputError, join_some
from tfexport.json_checks import is_unicode
from tfexport.runtime.files.line_stream import one_line

Record = tuple[bytes, list[str] | str]  # its lines, and its fields or problem


class Separated:
    """Records of fields, with a header.

    Attributes:
        name: the name of the format.
        suffixes: the suffixes of its files.
    """

    has_scores = True

    def __init__(self, name: str, delimiter: str, quoted: bool) -> None:
        """Name the format.

        Args:
            name: the name of the format, which is also its suffix.
            delimiter: between fields.
            quoted: whether a field in double quotes may hold delimiters and line breaks, as in RFC
                4180.
        """
        self.name, self.suffixes = name, (f".{name}",)
        self._delimiter, self._quoted = delimiter, quoted

    def scan(self, source: SourceFile, batch_rows: int, columns: Columns) -> PartitionContent:
        """See ``Format``."""
        pieces = list[Piece]()
        try:
            records = self._records(lines_of(source))
            (raw, header) = next(records, (b"", "it is empty: a header is missing"))
            self._check_header(header, columns)
            start, first, rows, lines, size = len(raw), 0, 0, 0, 0
            for raw, fields in records:
                size += len(raw)
                lines += raw.count(b"\n") + (not raw.endswith(b"\n"))
                rows += not self._is_blank(fields, header)
                if rows >= batch_rows or size >= MAX_PIECE_BYTES:
                    pieces.append(Piece(len(pieces), first, rows, start, lines=lines))
                    start, first, rows, lines, size = start + size, first + rows, 0, 0, 0
            if rows:
                pieces.append(Piece(len(pieces), first, rows, start, lines=lines))
            return PartitionContent(digest_of(source), tuple(pieces))
        except (OSError, pa.ArrowException) as error:
            raise PartitionError(f"cannot be read: {error}") from None

    def read(
        self, source: SourceFile, piece: Piece, columns: Columns
    ) -> tuple[Any, list[CorpusRow]]:
        """See ``Format``; short records are returned with empty fields added."""
        names = self._header(source)
        lines = read_piece(source, replace(piece, rows=piece.lines))
        given, rows = list[tuple[bytes, int]](), list[CorpusRow]()
        for raw, fields in self._records(iter(lines)):
            if self._is_blank(fields, names):
                continue
            rows.append(self._row(names, fields, piece.first + len(rows), columns))
            have = len(names) + 1 if isinstance(fields, str) else len(fields or [""])
            if have > len(names):  # the complete line
                raw, have = self._line([raw.decode(errors="surrogateescape").rstrip("\r\n")]), 1
            given.append((raw, len(names) - have))
        if len(rows) != piece.rows:
            raise PartitionError("was changed while it was read")
        return given, rows

    def write(self, given: Any, decoded: Sequence[RowResult], columns: Columns) -> bytes:
        """See ``Format``."""
        return b"".join(
            self._with(raw, [""] * missing + self._fields(row))
            for (raw, missing), row in zip(given, decoded, strict=True)
        )

    def join(
        self, bodies: Iterable[bytes], source: SourceFile, sink: Any, columns: Columns
    ) -> None:
        """See ``Format``."""
        raw, _ = next(self._records(lines_of(source)), (b"", []))
        sink.write(self._with(raw, columns.added))
        join_bytes(bodies, sink)

    def _records(self, lines: Iterator[Line]) -> Iterator[Record]:
        """The records of lines, each with its own bytes."""
        taken = list[bytes]()

        def feed() -> Iterator[str]:
            for line in lines:
                if isinstance(line, InputError):
                    raise PartitionError(str(line))
                text = line.decode(errors="surrogateescape")
                taken.append(line)
                yield text

        reader = csv.reader(
            feed(), delimiter=self._delimiter, strict=True,
            quoting=csv.QUOTE_MINIMAL if self._quoted else csv.QUOTE_NONE,
        )  # fmt: skip
        fields: list[str] | str | None
        while True:
            try:
                if (fields := next(reader, None)) is None:
                    return
            except csv.Error as error:
                fields = f"not {self.name.upper()}: {error}"
            yield b"".join(taken), fields
            taken.clear()

    def _header(self, source: SourceFile) -> list[str]:
        _, fields = next(self._records(lines_of(source)), (b"", []))
        assert isinstance(fields, list), "it was checked when the file was scanned"
        return _names(fields)

    def _check_header(self, header: list[str] | str, columns: Columns) -> None:
        if isinstance(header, str):
            raise PartitionError(header)
        names, problems = _names(header), list[str]()
        if columns.text not in names:
            listed = join_some([repr(name) for name in names], 12)
            problems.append(f"has no column {columns.text!r} in its first line; it has {listed}")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            problems.append(f"has several columns named {', '.join(map(repr, twice))}")
        if taken := columns.taken(names):
            problems.append(taken)
        if problems:
            raise PartitionError("; ".join(problems))

    @staticmethod
    def _is_blank(fields: list[str] | str, header: list[str] | str) -> bool:
        """Whether a line is empty and no row; in a file of one column it is an empty text."""
        return not fields and len(header) != 1

    @staticmethod
    def _row(names: list[str], fields: list[str] | str, number: int, columns: Columns) -> CorpusRow:
        if isinstance(fields, str):
            return CorpusRow(None, number, problem=fields)
        fields = fields or [""]
        if len(fields) != len(names):
            text = f"has {len(fields)} fields, but the header has {len(names)}"
            return CorpusRow(None, number, problem=text)
        values = dict(zip(names, fields, strict=True))
        for name in (columns.text, *columns.of_rows):
            if not is_unicode(values.get(name, "")):
                return CorpusRow(None, number, problem=f"{name!r} is not UTF-8")
        return row_of(values, number, columns)

    @staticmethod
    def _fields(row: RowResult) -> list[str]:
        score = "" if row.score is None else repr(row.score)
        return [row.translation or "", score, row.error or ""]

    def _with(self, raw: bytes, fields: Sequence[str]) -> bytes:
        """A record with more fields; its own are unchanged."""
        own = raw.rstrip(b"\r\n")
        end = raw[len(own) :] or b"\n"
        return own + self._delimiter.encode() + self._line(fields) + end

    def _line(self, fields: Sequence[str]) -> bytes:
        """Format fields, without a line end."""
        if self._quoted:
            sink = io.StringIO()
            csv.writer(sink, delimiter=self._delimiter).writerow(fields)
            text = sink.getvalue().removesuffix("\r\n")
        else:  # the format cannot contain a tab or a line break
            text = self._delimiter.join(
                one_line(field).replace(self._delimiter, " ") for field in fields
            )
        return text.encode(errors="surrogateescape")


def _names(header: list[str]) -> list[str]:
    return [header[0].removeprefix("\ufeff"), *header[1:]] if header else []
