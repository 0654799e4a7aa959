"""Parquet: the columns are kept, and those of the translation are added."""

import hashlib
import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyarrow import parquet as pq

from tfexport.corpus.columns import Columns, rows_of, schema_problems, with_results
from tfexport.corpus.filesystem import BLOCK, opened
from tfexport.corpus.pieces import (
    MAX_PIECE_BYTES,
    Cursors,
    PartitionContent,
    PartitionError,
    Piece,
    SourceFile,
    cut,
    key_of,
)
from tfexport.corpus.row_decoder import CorpusRow, RowResult
from tfexport.errors import join_some

_ROWS_AHEAD = 1024  # rows that are read at a time
_INT96 = "us"  # Spark's times: in nanoseconds, those before 1678 or after 2262 would wrap
_ROWS_OF_A_GROUP = 1 << 17  # rows of a group that are written, unless they are large


class Parquet:
    """Rows of a Parquet file."""

    name = "parquet"
    suffixes = (".parquet", ".pq")
    has_scores = True

    def scan(self, source: SourceFile, batch_rows: int, columns: Columns) -> PartitionContent:
        """See ``Format``."""
        digest, pieces, first = hashlib.sha256(), list[Piece](), 0
        with _reading(source) as file:
            problems = [*schema_problems(file.schema_arrow, columns)]
            if problems:
                raise PartitionError(join_some(problems))
            for group in range(file.num_row_groups):
                found = file.metadata.row_group(group)
                size = max(1, found.total_byte_size // max(found.num_rows, 1))
                for start, rows in cut(found.num_rows, _rows(batch_rows, size)):
                    pieces.append(Piece(len(pieces), first + start, rows, start, group))
                first += found.num_rows
        with opened(source.system, source.path) as stream:
            while block := stream.read(BLOCK):
                digest.update(block)
        return PartitionContent(digest.hexdigest(), tuple(pieces))

    def read(
        self, source: SourceFile, piece: Piece, columns: Columns
    ) -> tuple[Any, list[CorpusRow]]:
        """See ``Format``."""
        with _readable():
            key = key_of(source, piece.group)
            group = _GROUPS.take(key, piece.start) or _Group(source, piece.group)
            try:
                table = group.part(piece)
            except BaseException:
                group.close()
                raise
            _GROUPS.keep(key, group)
        if table.num_rows != piece.rows:
            raise PartitionError("was changed while it was read")
        return table, rows_of(table, columns, piece.first)

    def write(self, given: Any, decoded: Sequence[RowResult], columns: Columns) -> bytes:
        """See ``Format``."""
        sink = io.BytesIO()
        pq.write_table(with_results(given, decoded, columns.added), sink)
        return sink.getvalue()

    def join(
        self, bodies: Iterable[bytes], source: SourceFile, sink: Any, columns: Columns
    ) -> None:
        """See ``Format``."""
        with _reading(source) as file:
            schema = with_results(file.schema_arrow.empty_table(), (), columns.added).schema
            compression = _compression(file.metadata)
        with pq.ParquetWriter(sink, schema, compression=compression) as writer:
            waiting, rows, size = list[pa.Table](), 0, 0
            for body in bodies:
                waiting.append(pq.read_table(io.BytesIO(body)).cast(schema))
                rows, size = rows + waiting[-1].num_rows, size + waiting[-1].nbytes
                if rows >= _ROWS_OF_A_GROUP or size >= MAX_PIECE_BYTES:
                    writer.write_table(pa.concat_tables(waiting))
                    waiting, rows, size = [], 0, 0
            if waiting:
                writer.write_table(pa.concat_tables(waiting))


def _rows(batch_rows: int, row_size: int) -> int:
    return max(1, min(batch_rows, MAX_PIECE_BYTES // row_size))


def _compression(metadata: pq.FileMetaData) -> str:
    """The compression of a file's first column."""
    if not (metadata.num_row_groups and metadata.num_columns):
        return "snappy"
    found: str = metadata.row_group(0).column(0).compression
    return "none" if found == "UNCOMPRESSED" else found


@contextmanager
def _reading(source: SourceFile) -> Iterator[pq.ParquetFile]:
    with (
        _readable(),
        source.system.open_input_file(source.path) as stream,
        pq.ParquetFile(stream, coerce_int96_timestamp_unit=_INT96) as file,
    ):
        yield file


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:  # the last of names
        raise PartitionError(f"cannot be read as Parquet: {error}") from None


class _Group:
    """A reader of the rows of one row group, which keeps no earlier rows."""

    def __init__(self, source: SourceFile, group: int) -> None:
        self._stream = source.system.open_input_file(source.path)
        try:
            self._file = pq.ParquetFile(self._stream, coerce_int96_timestamp_unit=_INT96)
            self._schema = self._file.schema_arrow
            self._batches = self._file.iter_batches(batch_size=_ROWS_AHEAD, row_groups=[group])
        except BaseException:
            self._stream.close()
            raise
        self.position, self._ahead = 0, list[pa.RecordBatch]()

    def close(self) -> None:
        self._stream.close()

    def part(self, piece: Piece) -> pa.Table:
        """The rows of a piece that does not start before the position; fewer at the end."""
        for _ in self._next(piece.start - self.position):
            pass
        return pa.Table.from_batches(self._next(piece.rows), self._schema)

    def _next(self, rows: int) -> Iterator[pa.RecordBatch]:
        while rows:
            batch = self._ahead.pop() if self._ahead else next(self._batches, None)
            if batch is None:
                return
            if batch.num_rows > rows:
                self._ahead = [batch.slice(rows)]
                batch = batch.slice(0, rows)
            rows -= batch.num_rows
            self.position += batch.num_rows
            yield batch


_GROUPS = Cursors()
