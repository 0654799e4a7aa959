"""A worker of the cluster, which decodes tables or pieces of partitions."""

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
        """Return the table with three columns added.

        Raises:
            ConfigError: the column of texts is missing, or one of the three exists.
        """
        if problems := [*schema_problems(table.schema, self._columns)]:
            raise ConfigError(join_problems("dataset", problems))
        rows = [_numbered(row) for row in rows_of(table, self._columns)]
        return with_results(table, self._decoder.decode(rows), self._columns.added)


def _numbered(row: Row) -> Row:
    """Number a row by a hash of its text: rows of a dataset have no fixed order."""
    text = row.source if isinstance(row.source, str) else ""
    digest = hashlib.blake2b(text.encode(errors="replace"), digest_size=7).digest()
    return replace(row, number=int.from_bytes(digest, "big"))
