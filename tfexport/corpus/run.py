"""A run over a corpus: the driver of the stages.

Ray Data scans partitions, gives their pieces to workers, and does again what a worker or node
has taken with it. The driver counts pieces, and has a partition joined when it has them all.
"""

import os
import pickle
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import ray
import ray.data
from ray.exceptions import RayError, RayTaskError

from tfexport.corpus.assembly import Job
from tfexport.corpus.cluster import Bounds, WorkerPlan, connected, data_settings
from tfexport.corpus.columns import Columns
from tfexport.corpus.dataset import make_task
from tfexport.corpus.partitions import Partition, find_partitions
from tfexport.corpus.places import file_system, local_path
from tfexport.corpus.progress import Progress
from tfexport.corpus.report import CorpusReport, Tell
from tfexport.corpus.row_decoder import Task
from tfexport.corpus.shipping import ShippedBundle, ship
from tfexport.corpus.stages import Coordinator, PieceWorker, Step, scan
from tfexport.corpus.worker import open_decoder
from tfexport.errors import ClusterError, Option, TfexportError
from tfexport.locks import writing
from tfexport.runtime.options import DecodingKeywords, DecodingOptions, given_options
from tfexport.runtime.parallel.thread_layout import ThreadLayout
from tfexport.typing import Unpack

_FORMAT_OF_PIECES = 2  # a new number when outputs of the same input would differ
_WAVE, _SCANS, _JOINS = 1000, 4, 8
_SOON_READ = 64 << 20  # bytes of files that one process scans in a second


def translate_corpus(
    bundle: str | os.PathLike[str],
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    column: str = "text",
    *,
    file_format: str | None = None,
    address: str | None = None,
    workers: int | Bounds | None = None,
    threads_per_worker: int = 1,
    batch_rows: int = 2048,
    source_language: str | None = None,
    target_language: str | None = None,
    target_prefix: str | None = None,
    vocabulary_map: str | os.PathLike[str] | None = None,
    tell: Tell = lambda advance: None,
    spell: Callable[[Option], str] = str,
    options: DecodingOptions | None = None,
    **keywords: Unpack[DecodingKeywords],
) -> CorpusReport:
    """Translate the files of a folder, or one file, on a cluster.

    Long: the decoding options of every call, and the numbers that size a cluster.

    The same call again goes on: files and pieces that are there, made of the same input by the
    same bundle with the same options, are not done again. Several runs at a time need outputs of
    their own; on a local disk a lock sees to it.

    Args:
        bundle: its folder; nodes that do not see it are sent its files.
        source: a file or folder, as a path or as a URI that pyarrow knows, which all nodes see.
        output: likewise; each file is complete, or absent.
        column: with the texts, of JSON lines and Parquet; see ``translate_dataset``.
        file_format: "text", "jsonl" or "parquet"; by default what each file's suffix says.
        address: of a running cluster; None for this machine alone, or for the cluster that the
            program has connected to itself.
        workers: see ``translate_dataset``.
        threads_per_worker: see ``translate_dataset``.
        batch_rows: rows of a piece, which a worker sorts by length and decodes together, and
            which are lost with it.
        source_language: see ``translate_dataset``.
        target_language: see ``translate_dataset``.
        target_prefix: see ``translate_dataset``.
        vocabulary_map: see ``translate_dataset``.
        tell: called with the progress.
        spell: writes the options in the errors of rows.
        options: see ``translate_dataset``.
        **keywords: see ``translate_dataset``.

    Raises:
        BundleError: the bundle is missing or damaged.
        ClusterError: the cluster has failed.
        ConfigError: naming every option that is wrong.
        InputError: there is no input, or it holds files of unknown format.
        OutputExistsError: another run is writing the output.
    """
    plan = WorkerPlan(workers, threads_per_worker, batch_rows)
    task = make_task(
        given_options(options, keywords), source_language, target_language, target_prefix,
        vocabulary_map, spell,
    )  # fmt: skip
    place = os.fspath(output)
    partitions = find_partitions(os.fspath(source), place, file_format)
    # Opened here for what is wrong with it, too.
    decoder = open_decoder(Path(bundle), ThreadLayout(threads=1), task)
    columns = Columns(column, decoder.row_columns)
    with ExitStack() as stack:
        alone = stack.enter_context(connected(address))
        if local := local_path(*file_system(place)):
            local.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(writing(local))
        shipped = ship(bundle, shared=alone)
        made_of = {
            "bundle": shipped.digest, "column": column, "format": _FORMAT_OF_PIECES,
            **task.identity(),
        }  # fmt: skip
        job = Job(made_of, columns, batch_rows, uuid.uuid4().hex)
        run = _Run(partitions, plan, job, tell, alone)
        stack.enter_context(data_settings())
        stack.enter_context(warnings.catch_warnings())
        # Ray tells of every run that has fewer pieces than workers.
        warnings.filterwarnings("ignore", category=UserWarning, module="ray")
        try:
            return run.run(shipped, task)
        except RayTaskError as error:
            raise _named(error) from error
        except RayError as error:
            raise ClusterError(f"the cluster failed: {_first_line(error)}") from error


class _Run:
    """Counts of a run that is under way."""

    def __init__(
        self, partitions: list[Partition], plan: WorkerPlan, job: Job, tell: Tell, alone: bool
    ) -> None:
        self._alone = alone  # on this machine, whose files the driver may read as well
        self._partitions = {found.name: found for found in partitions}
        self._plan, self._job, self._tell = plan, job, tell
        self._progress = Progress(partitions)
        self._joining: dict[ray.ObjectRef[Any], Step] = {}
        # Calls of one actor run side by side; another begins where its node was lost.
        self._coordinator: Any = ray.remote(Coordinator).options(
            num_cpus=0, max_restarts=-1, max_task_retries=-1, max_concurrency=2 * _JOINS
        ).remote(job)  # fmt: skip

    def run(self, bundle: ShippedBundle, task: Task) -> CorpusReport:
        """Translate all partitions."""
        report = self._progress.report
        report.cores = self._plan.used_cores()
        for step in self._steps(bundle, task):
            self._take(step)
            self._collect(wait=len(self._joining) > _JOINS)
            self._tell(self._progress.advance())
            if report.stopped is not None:
                break
        while self._joining and report.stopped is None:
            self._collect(wait=True)
            self._tell(self._progress.advance())
        return self._progress.end()

    def _steps(self, bundle: ShippedBundle, task: Task) -> Iterator[Step]:
        """Every piece, once it is translated; and partitions that have none.

        In waves, so that what waits to be translated is never more than one wave's.
        """
        given = {
            "bundle": bundle, "layout": self._plan.layout, "task": task, "job": self._job,
            "coordinator": self._coordinator,
        }  # fmt: skip
        partitions = list(self._partitions.values())
        for first in range(0, len(partitions), _WAVE):
            yield from self._wave(partitions[first : first + _WAVE], given)

    def _wave(self, partitions: list[Partition], given: dict[str, Any]) -> Iterator[Step]:
        items = [{"step": pickle.dumps(found)} for found in partitions]
        dataset: ray.data.Dataset
        if self._alone and sum(found.size for found in partitions) <= _SOON_READ:
            # Here: a process that does it would take longer to begin.
            scanned = [step for item in items for step in self._scan(item)]
            yield from (step for step in scanned if step.piece is None)
            items = [{"step": pickle.dumps(step)} for step in scanned if step.piece is not None]
            if not items:
                return
            dataset = ray.data.from_items(items, override_num_blocks=len(items))
        else:
            dataset = ray.data.from_items(items, override_num_blocks=len(items)).flat_map(
                partial(scan, job=self._job), num_cpus=0,
                compute=ray.data.TaskPoolStrategy(size=min(len(items), _SCANS)),
            )  # fmt: skip
        translated = dataset.map_batches(
            PieceWorker, fn_constructor_kwargs=given, batch_size=1, batch_format="numpy",
            num_cpus=self._plan.threads, compute=self._plan.strategy(),
        )  # fmt: skip
        for row in translated.iter_rows():
            yield pickle.loads(row["step"])

    def _scan(self, item: dict[str, Any]) -> list[Step]:
        return [pickle.loads(row["step"]) for row in scan(item, self._job)]

    def _take(self, step: Step) -> None:
        """Count what came of a piece, and have its partition joined if it was the last."""
        if self._progress.take(step):
            partition = self._partitions[step.name]
            done = self._coordinator.join.remote(partition, step.digest, step.pieces)
            self._joining[done] = step

    def _collect(self, wait: bool) -> None:
        """Count partitions that are joined."""
        if not self._joining:
            return
        ready, _ = ray.wait([*self._joining], timeout=None if wait else 0)
        for reference in ready:
            self._progress.take_joined(ray.get(reference), self._joining.pop(reference).outdated)


def _named(error: RayTaskError) -> TfexportError:
    """The error that a worker raised on purpose; else that the cluster has failed."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, TfexportError):
            return cause
        cause = getattr(cause, "cause", None) or cause.__cause__
    return ClusterError(f"a worker failed: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
