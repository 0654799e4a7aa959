"""Workers on Ray: processes, on any number of machines.

Ray Data scans partitions, gives their pieces to workers, and repeats the work of lost workers and
nodes.
"""

import os
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from tfexport.corpus.assembly import RunSettings
from tfexport.corpus.cluster import WorkerPlan, data_settings
from tfexport.corpus.decoders import open_decoder
from tfexport.corpus.partitions import Partition
from tfexport.corpus.row_decoder import Task
from tfexport.corpus.shipping import ShippedBundle
from tfexport.corpus.stages import Coordinator, PieceStep, PieceTranslator, scan_partition
from tfexport.errors import ClusterError, TfexportError
from tfexport.runtime.parallel.cpu import ThreadLayout

MOST_ATTEMPTS = 5  # how often a piece may kill its worker
_WAVE, _SCANS, _JOINS = 1000, 4, 16
_SOON_READ = 64 << 20  # bytes that one process scans in a second

# Values are pickled into bytes, because rows of Ray Data have Arrow's types.
Rows = dict[str, Any]


def scan(row: Rows, job: RunSettings) -> list[Rows]:
    """Cut a partition into pieces, unless its output exists already."""
    partition: Partition = pickle.loads(row["step"])
    return [{"step": pickle.dumps(step)} for step in scan_partition(partition, job)]


class PieceWorker:
    """Translates pieces; an actor of Ray Data."""

    def __init__(
        self,
        bundle: ShippedBundle,
        layout: ThreadLayout,
        task: Task,
        job: RunSettings,
        coordinator: Any,
    ) -> None:
        self._translator = PieceTranslator(open_decoder(bundle.folder(), layout, task), job)
        self._coordinator = coordinator

    def __call__(self, rows: Rows) -> Rows:
        """Translate the piece of each row."""
        return {"step": [pickle.dumps(self._done(pickle.loads(step))) for step in rows["step"]]}

    def _done(self, step: PieceStep) -> PieceStep:
        if step.piece is None:
            return step
        key = f"{step.name}\0{step.piece.index}"
        if ray.get(self._coordinator.begin.remote(key)) > MOST_ATTEMPTS:
            text = f"{MOST_ATTEMPTS} workers died on its rows from {step.piece.first + 1} on"
            return replace(step.done(), failed=f"{text}, or lacked memory for them")
        try:
            return self._translator.translate(step)
        except MemoryError:
            # Ray repeats it in a new worker with free memory.
            os._exit(1)
        finally:
            self._coordinator.end.remote(key)


class RayWorkers:
    """See ``run.CorpusWorkers``."""

    def __init__(
        self, plan: WorkerPlan, job: RunSettings, bundle: ShippedBundle, task: Task, alone: bool
    ) -> None:
        """Start the coordinator, to which all workers report their pieces.

        Args:
            plan: number and threads of the workers.
            job: the settings of the run.
            bundle: the bundle.
            task: how rows are decoded.
            alone: whether the cluster is this machine only, so that the driver may scan files
                itself.
        """
        self._plan, self._job, self._alone = plan, job, alone
        # Calls of the actor run in parallel; Ray restarts it if its node is lost.
        self._coordinator: Any = ray.remote(Coordinator).options(
            num_cpus=0, max_restarts=-1, max_task_retries=-1, max_concurrency=_JOINS
        ).remote(job)  # fmt: skip
        self._given = {
            "bundle": bundle, "layout": plan.layout, "task": task, "job": job,
            "coordinator": self._coordinator,
        }  # fmt: skip
        self._joining = dict[Any, PieceStep]()

    @property
    def cores(self) -> int:
        """See ``run.CorpusWorkers``."""
        return self._plan.used_cores()

    def steps(self, partitions: list[Partition]) -> Iterator[PieceStep]:
        """See ``run.CorpusWorkers``. Partitions are scanned in groups, so that few pieces wait."""
        for first in range(0, len(partitions), _WAVE):
            yield from self._wave(partitions[first : first + _WAVE])

    def _wave(self, partitions: list[Partition]) -> Iterator[PieceStep]:
        import ray.data  # noqa: PLC0415 - processes of Ray need only some of it

        items = [{"step": pickle.dumps(found)} for found in partitions]
        dataset: ray.data.Dataset
        if self._alone and sum(found.size for found in partitions) <= _SOON_READ:
            # Scanned here: starting a process would take longer.
            scanned = [step for found in partitions for step in scan_partition(found, self._job)]
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
            PieceWorker, fn_constructor_kwargs=self._given, batch_size=1, batch_format="numpy",
            num_cpus=self._plan.threads, compute=self._plan.strategy(),
        )  # fmt: skip
        for row in translated.iter_rows():
            yield pickle.loads(row["step"])

    def join(self, partition: Partition, step: PieceStep) -> None:
        """See ``run.CorpusWorkers``."""
        done = self._coordinator.join.remote(partition, step.digest, step.pieces)
        self._joining[done] = step

    @property
    def joining(self) -> int:
        """See ``run.CorpusWorkers``."""
        return len(self._joining)

    def joined(self, wait: bool) -> list[tuple[PieceStep, PieceStep]]:
        """See ``run.CorpusWorkers``."""
        if not self._joining:
            return []
        ready, _ = ray.wait([*self._joining], timeout=None if wait else 0)
        return [(ray.get(reference), self._joining.pop(reference)) for reference in ready]


@contextmanager
def running() -> Iterator[None]:
    """Set Ray up for a run, and name its errors.

    Raises:
        ClusterError: the cluster has failed.
    """
    with data_settings(), warnings.catch_warnings():
        # Ray warns of every run with fewer pieces than workers.
        warnings.filterwarnings("ignore", category=UserWarning, module="ray")
        try:
            yield
        except RayTaskError as error:
            raise _named(error) from error
        except RayError as error:
            raise ClusterError(f"the cluster failed: {_first_line(error)}") from error


def _named(error: RayTaskError) -> TfexportError:
    """The TfexportError of a worker; else a ClusterError."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, TfexportError):
            return cause
        cause = getattr(cause, "cause", None) or cause.__cause__
    return ClusterError(f"a worker failed: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
