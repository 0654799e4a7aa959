"""Partitions, pieces of them, and the protocol of a file format.

A partition is one file of the corpus. A piece is a range of its rows: the unit that a worker
translates. A lost worker loses only its piece.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyarrow import fs

from tfexport.corpus.columns import Columns
from tfexport.corpus.row_decoder import CorpusRow, RowResult

MAX_PIECE_BYTES = 64 << 20  # size of a piece as it is read


@dataclass(frozen=True)
class SourceFile:
    """A file that rows are read from.

    Attributes:
        system: the file system.
        path: on that system.
        compression: the compression of its bytes, by pyarrow's names.
    """

    system: fs.FileSystem
    path: str
    compression: str | None = None


@dataclass(frozen=True)
class Piece:
    """A range of rows of a partition.

    Attributes:
        index: the index of the piece in its partition, from 0.
        first: number of its first row in the partition, from 0.
        rows: the number of rows.
        start: bytes before it in the decompressed file, or rows before it in its group.
        group: row group of a Parquet file.
        lines: the number of lines, for CSV, whose rows may have several.
    """

    index: int
    first: int
    rows: int
    start: int
    group: int = 0
    lines: int = 0


@dataclass(frozen=True)
class PartitionContent:
    """The content of a partition.

    Attributes:
        digest: sha256 of it.
        pieces: all pieces, in order.
    """

    digest: str
    pieces: tuple[Piece, ...]


class PartitionError(Exception):
    """One partition, or a piece of its output, cannot be read."""


class Format(Protocol):
    """One format of files of rows."""

    @property
    def name(self) -> str:
        """The name in options."""
        ...

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Suffixes of its files; "" for none."""
        ...

    @property
    def has_scores(self) -> bool:
        """Whether its rows can hold scores."""
        ...

    def scan(self, source: SourceFile, batch_rows: int, columns: Columns) -> PartitionContent:
        """Read a file once, and cut it into pieces.

        Raises:
            PartitionError: it cannot be read.
        """
        ...

    def read(
        self, source: SourceFile, piece: Piece, columns: Columns
    ) -> tuple[Any, list[CorpusRow]]:
        """Read the rows of a piece: in the form that ``write`` takes, and as rows to decode."""
        ...

    def write(self, given: Any, decoded: Sequence[RowResult], columns: Columns) -> bytes:
        """A piece of the output."""
        ...

    def join(
        self, bodies: Iterable[bytes], source: SourceFile, sink: Any, columns: Columns
    ) -> None:
        """Write the complete output of a partition to a stream of bytes."""
        ...


def cut(rows: int, batch_rows: int) -> Iterator[tuple[int, int]]:
    """First row and number of rows of each piece of ``rows`` rows."""
    for first in range(0, rows, batch_rows):
        yield first, min(batch_rows, rows - first)


# A worker gets pieces of a file in order. In compressed files a piece can be reached only by
# reading everything before it, so a reader stays open between pieces: otherwise time would be
# quadratic.


Key = tuple[Any, ...]


class Cursor(Protocol):
    """A reader that only goes forward.

    Attributes:
        position: the current position.
    """

    position: int

    def close(self) -> None:
        """Close the file."""
        ...


class Cursors:
    """Keeps the reader of the last piece."""

    def __init__(self) -> None:
        self._held: dict[Key, Any] = {}

    def take(self, key: Key, start: int) -> Any:
        """Return the reader; None if it reads another file, or is past the position."""
        found = self._held.pop(key, None)
        if found is not None and found.position > start:
            found.close()
            return None
        return found

    def keep(self, key: Key, cursor: Cursor) -> None:
        """Keep a reader for the next piece, and close the one before."""
        while self._held:
            self._held.popitem()[1].close()
        self._held[key] = cursor


def key_of(source: SourceFile, *more: int) -> Key:
    """A key of a file with its size and time: a changed file is opened again."""
    info = source.system.get_file_info(source.path)
    return source.system.type_name, source.path, source.compression, info.size, info.mtime_ns, *more
