"""Partitions, pieces of them, and the protocol of a file format.

A partition is one file of the corpus. A piece is a run of its rows: the unit that a worker
translates, that is lost with a worker, and that is not done again.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyarrow import fs

from tfexport.corpus.columns import Columns
from tfexport.corpus.row_decoder import Decoded, Row

MAX_PIECE_BYTES = 64 << 20  # of a piece's rows as they are read


@dataclass(frozen=True)
class Source:
    """A file that rows are read from.

    Attributes:
        system: that it lies on.
        path: on that system.
        compression: of its bytes, by pyarrow's names.
    """

    system: fs.FileSystem
    path: str
    compression: str | None = None


@dataclass(frozen=True)
class Piece:
    """A run of rows.

    Attributes:
        index: of the piece in its partition, from 0.
        first: number of its first row in the partition, from 0.
        rows: that it has.
        start: bytes before it in the decompressed file, or rows before it in its group.
        group: row group of a Parquet file.
        lines: of a CSV file's piece, whose rows may have several.
    """

    index: int
    first: int
    rows: int
    start: int
    group: int = 0
    lines: int = 0


@dataclass(frozen=True)
class Scanned:
    """A partition's content.

    Attributes:
        digest: sha256 of it.
        pieces: of its rows, in order.
    """

    digest: str
    pieces: tuple[Piece, ...]


class PartitionError(Exception):
    """A partition that cannot be read; the others can."""


class Format(Protocol):
    """One format of files of rows."""

    @property
    def name(self) -> str:
        """As options specify it."""
        ...

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Of its files; "" for none."""
        ...

    @property
    def has_scores(self) -> bool:
        """Whether there is a place for them in its rows."""
        ...

    def scan(self, source: Source, batch_rows: int, columns: Columns) -> Scanned:
        """Read a file once, and cut it into pieces.

        Raises:
            PartitionError: it cannot be read.
        """
        ...

    def read(self, source: Source, piece: Piece, columns: Columns) -> tuple[Any, list[Row]]:
        """The rows of a piece: as ``write`` wants them back, and to be decoded."""
        ...

    def write(self, given: Any, decoded: Sequence[Decoded], columns: Columns) -> bytes:
        """A piece of the output."""
        ...

    def join(self, bodies: Iterable[bytes], source: Source, sink: Any, columns: Columns) -> None:
        """Write the pieces of a complete partition to a stream of bytes."""
        ...


def cut(rows: int, batch_rows: int) -> Iterator[tuple[int, int]]:
    """First row and number of rows of each piece of ``rows`` rows."""
    for first in range(0, rows, batch_rows):
        yield first, min(batch_rows, rows - first)


# Readers that stay open between pieces.
#
# A worker is given pieces of a file in their order. Where one can be reached only by reading all
# that lies before it, a reader that was opened again for each would take the square of the time.


Key = tuple[Any, ...]


class Cursor(Protocol):
    """A reader that only goes forward.

    Attributes:
        position: that it has come to.
    """

    position: int

    def close(self) -> None:
        """Close the file."""
        ...


class Cursors:
    """Holds the reader of the last piece that was read."""

    def __init__(self) -> None:
        self._held: dict[Key, Any] = {}

    def take(self, key: Key, start: int) -> Any:
        """The reader, which the caller then owns; None if it is of another file, or beyond."""
        found = self._held.pop(key, None)
        if found is not None and found.position > start:
            found.close()
            return None
        return found

    def keep(self, key: Key, cursor: Cursor) -> None:
        """Hold a reader for the next piece, instead of any other."""
        while self._held:
            self._held.popitem()[1].close()
        self._held[key] = cursor


def key_of(source: Source, *more: int) -> Key:
    """Names a file by its content's size and time: a file that was changed is read again."""
    info = source.system.get_file_info(source.path)
    return source.system.type_name, source.path, source.compression, info.size, info.mtime_ns, *more
