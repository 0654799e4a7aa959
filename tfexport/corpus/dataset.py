"""Translation of a Ray dataset."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from tfexport.corpus.cluster import Bounds, WorkerPlan
from tfexport.corpus.columns import (
    Added,
    Columns,
    added_columns,
    rows_of,
    schema_problems,
    with_results,
)
from tfexport.corpus.decoders import open_decoder
from tfexport.corpus.row_decoder import CorpusRow, Task, make_task
from tfexport.corpus.shipping import ShippedBundle, ship
from tfexport.errors import ConfigError, join_problems
from tfexport.runtime.options import DecodingKeywords, DecodingOptions, given_options
from tfexport.runtime.parallel.cpu import ThreadLayout
from tfexport.typing import Unpack

if TYPE_CHECKING:
    import ray.data


def translate_dataset(  # noqa: PLR0913 - one keyword for each option of the command
    dataset: "ray.data.Dataset",
    bundle: str | os.PathLike[str],
    column: str = "text",
    *,
    output_column: str | None = None,
    workers: int | Bounds | None = None,
    threads_per_worker: int = 1,
    batch_rows: int = 2048,
    source_language: str | None = None,
    target_language: str | None = None,
    target_prefix: str | None = None,
    vocabulary_map: str | os.PathLike[str] | None = None,
    options: DecodingOptions | None = None,
    **keywords: Unpack[DecodingKeywords],
) -> "ray.data.Dataset":
    """Translate a column of a dataset, on actors with a translator each.

    Args:
        dataset: a dataset with a column of texts. Its columns ``source_language``,
            ``target_language`` and ``target_prefix``, if it has them, apply to each row; null means
            the argument of that name. Languages are used by models with language tokens.
        bundle: its folder; its files are sent to nodes that cannot read it.
        column: the column with the texts.
        output_column: for the translations; score and error then go into NAME_score and
            NAME_error. By default ``translation``, ``score`` and ``error``.
        workers: actors, or the fewest and the most of them, which Ray starts as there is work; the
            fewest have to leave a CPU to the dataset's other steps. By default as many as the
            cluster has cores for; the last one waits until reading and writing release its CPU.
        threads_per_worker: batches that an actor decodes at a time, over one set of weights; Ray
            counts as many CPUs for it, or one fewer if it has all CPUs of the cluster.
        batch_rows: rows that an actor sorts by length and decodes together.
        source_language: see ``Translator.translate``.
        target_language: see ``Translator.translate``.
        target_prefix: the start of every translation.
        vocabulary_map: a file; see ``Translator``.
        options: decoding options; ``keywords`` are put over them.
        **keywords: see ``DecodingOptions``. ``seed`` is 0 unless it is given.

    Returns:
        The dataset with the columns ``translation`` (text), ``score`` (float64) and ``error``
        (text). A row that cannot be decoded has the reason in ``error``, and null in the others; an
        empty text has an empty translation. Rows keep their other columns. Nothing runs before the
        dataset is used, as usual in Ray Data.

    Raises:
        BundleError: the bundle is missing or damaged.
        ConfigError: options are invalid; all are listed.
    """
    plan = WorkerPlan(workers, threads_per_worker, batch_rows)
    task = make_task(
        given_options(options, keywords), source_language, target_language, target_prefix,
        vocabulary_map,
    )  # fmt: skip
    plan.check_room_for_others()
    open_decoder(Path(bundle), ThreadLayout(threads=1), task)  # raises errors early
    return dataset.map_batches(
        TableWorker,
        fn_constructor_kwargs={
            "bundle": ship(bundle, shared=False),
            "layout": plan.layout,
            "task": task,
            "column": column,
            "added": added_columns(output_column),
        },
        batch_size=plan.batch_rows,
        batch_format="pyarrow",
        num_cpus=plan.cpus_with_others(),
        compute=plan.strategy(spare=1),
        udf_modifying_row_count=False,
    )


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


def _numbered(row: CorpusRow) -> CorpusRow:
    """Number a row by a hash of its text: rows of a dataset have no fixed order."""
    text = row.source if isinstance(row.source, str) else ""
    digest = hashlib.blake2b(text.encode(errors="replace"), digest_size=7).digest()
    return replace(row, number=int.from_bytes(digest, "big"))
