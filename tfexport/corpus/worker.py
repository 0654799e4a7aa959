"""A worker of the cluster: a translator over tables, or over pieces of partitions."""

import hashlib
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from tfexport.corpus.columns import Added, Columns, rows_of, schema_problems, with_results
from tfexport.corpus.row_decoder import Row, RowDecoder, Task
from tfexport.corpus.shipping import ShippedBundle
from tfexport.errors import ConfigError, join_problems
from tfexport.runtime.engine import Engine
from tfexport.runtime.parallel.cpu import ThreadLayout


def open_decoder(folder: Path, layout: ThreadLayout, task: Task) -> RowDecoder:
    """Open a bundle for a task.

    Raises:
        BundleError: it is missing or damaged.
        ConfigError: the task does not fit it.
    """
    if task.vocabulary_map is None:
        return RowDecoder(Engine(folder, layout), task)
    with TemporaryDirectory() as place:
        path = Path(place, "vocabulary_map")
        path.write_bytes(task.vocabulary_map)
        return RowDecoder(Engine(folder, layout, path), task)


class TableWorker:
    """Translates a column of tables; an actor of Ray Data."""

    def __init__(
        self, bundle: ShippedBundle, layout: ThreadLayout, task: Task, column: str, added: Added
    ) -> None:
        self._decoder = open_decoder(bundle.folder(), layout, task)
        self._columns = Columns(column, self._decoder.row_columns, added)

    def __call__(self, table: pa.Table) -> pa.Table:
        """The table with three columns more.

        Raises:
            ConfigError: it has no such column of text, or has one of the three.
        """
        if problems := [*schema_problems(table.schema, self._columns)]:
            raise ConfigError(join_problems("dataset", problems))
        rows = [_numbered(row) for row in rows_of(table, self._columns)]
        return with_results(table, self._decoder.decode(rows), self._columns.added)


def _numbered(row: Row) -> Row:
    """The row with a number of its text: rows of a dataset have no place that is theirs."""
    text = row.source if isinstance(row.source, str) else ""
    digest = hashlib.blake2b(text.encode(errors="replace"), digest_size=7).digest()
    return replace(row, number=int.from_bytes(digest, "big"))
