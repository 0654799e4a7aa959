"""Files of a corpus, for tests: sources, compressions, and a decoder that only marks."""

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from tfexport.corpus.columns import Columns
from tfexport.corpus.filesystem import COMPRESSIONS
from tfexport.corpus.formats import FORMATS
from tfexport.corpus.pieces import SourceFile
from tfexport.corpus.row_decoder import CorpusRow, RowResult

LOCAL = fs.LocalFileSystem()
COUNTED = Columns("text", ("source_language", "target_language", "target_prefix"))
PACKED = sorted(COMPRESSIONS.values())


def source_of(path: Path, compression: str | None = None) -> SourceFile:
    return SourceFile(LOCAL, path.as_posix(), compression)


def packed(content: bytes, compression: str | None) -> bytes:
    if compression is None:
        return content
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, compression) as stream:
        stream.write(content)
    return bytes(sink.getvalue().to_pybytes())


def marked(rows: Iterable[CorpusRow]) -> list[RowResult]:
    """A translation that shows its row's text and number; errors for the rows that have any."""
    return [
        RowResult(f"{row.source}→{row.number}", 0.5, tokens=3)
        if isinstance(row.source, str) and not re.search("[\ud800-\udfff]", row.source)
        else RowResult(None, None, row.problem or f"{row.source!r} is not a string")
        for row in rows
    ]


def read_all(
    name: str, source: SourceFile, batch_rows: int, column: str = "text", columns: Columns = COUNTED
) -> tuple[list[CorpusRow], list[bytes]]:
    """All rows of a file through its format, and the pieces of its output."""
    form, columns = FORMATS[name], replace(columns, text=column)
    rows, bodies = list[CorpusRow](), list[bytes]()
    for place, piece in enumerate(form.scan(source, batch_rows, columns).pieces):
        given, found = form.read(source, piece, columns)
        assert (piece.index, piece.first, piece.rows) == (place, len(rows), len(found))
        assert [row.number for row in found] == [*range(len(rows), len(rows) + len(found))]
        assert 1 <= len(found) <= batch_rows
        rows += found
        bodies.append(form.write(given, marked(found), columns))
    return rows, bodies


def joined(
    name: str, source: SourceFile, bodies: Sequence[bytes], columns: Columns = COUNTED
) -> bytes:
    sink = pa.BufferOutputStream()
    FORMATS[name].join(bodies, source, sink, columns)
    return bytes(sink.getvalue().to_pybytes())


def damaged(whole: bytes, draw: random.Random) -> bytes:
    """Other bytes, fewer, some taken out, or none of them at all."""
    content, kind = bytearray(whole), draw.randrange(5)
    first, last = sorted(draw.randrange(len(whole)) for _ in range(2))
    if kind == 0:
        return draw.randbytes(draw.randrange(200))
    if kind == 1:
        return whole[:first]
    if kind == 2:
        return whole[:first] + whole[last:]
    for _ in range(draw.randint(1, 4)):
        content[draw.randrange(len(content))] = draw.randrange(256)
    return bytes(content)


def texts(rows: Iterable[CorpusRow]) -> list[Any]:
    return [row.source for row in rows]
