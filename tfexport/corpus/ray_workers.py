"""Workers on Ray: processes, on any number of machines.

Ray Data scans partitions, gives their pieces to workers, and does again what a worker or node
has taken with it.
"""

import pickle
from collections.abc import Iterator
from functools import partial
from typing import Any

import ray
import ray.data

from tfexport.corpus.assembly import Job
from tfexport.corpus.cluster import WorkerPlan
from tfexport.corpus.partitions import Partition
from tfexport.corpus.row_decoder import Task
from tfexport.corpus.shipping import ShippedBundle
from tfexport.corpus.stages import Coordinator, PieceWorker, Step, scan, scan_partition

_WAVE, _SCANS, _JOINS = 1000, 4, 16
_SOON_READ = 64 << 20  # bytes of files that one process scans in a second


class RayWorkers:
    """See ``run.Workers``."""

    def __init__(
        self, plan: WorkerPlan, job: Job, bundle: ShippedBundle, task: Task, alone: bool
    ) -> None:
        """Begin the actor that all workers tell of their pieces.

        Args:
            plan: of the workers.
            job: that they do.
            bundle: that they open.
            task: of the rows.
            alone: on this machine, whose files the driver may read as well.
        """
        self._plan, self._job, self._alone = plan, job, alone
        # Calls of one actor run side by side; another begins where its node was lost.
        self._coordinator: Any = ray.remote(Coordinator).options(
            num_cpus=0, max_restarts=-1, max_task_retries=-1, max_concurrency=_JOINS
        ).remote(job)  # fmt: skip
        self._given = {
            "bundle": bundle, "layout": plan.layout, "task": task, "job": job,
            "coordinator": self._coordinator,
        }  # fmt: skip
        self._joining = dict[Any, Step]()

    @property
    def cores(self) -> int:
        """See ``run.Workers``."""
        return self._plan.used_cores()

    def steps(self, partitions: list[Partition]) -> Iterator[Step]:
        """See ``run.Workers``. In waves: what waits to be translated is at most one wave's."""
        for first in range(0, len(partitions), _WAVE):
            yield from self._wave(partitions[first : first + _WAVE])

    def _wave(self, partitions: list[Partition]) -> Iterator[Step]:
        items = [{"step": pickle.dumps(found)} for found in partitions]
        dataset: ray.data.Dataset
        if self._alone and sum(found.size for found in partitions) <= _SOON_READ:
            # Here: a process that does it would take longer to begin.
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

    def join(self, partition: Partition, step: Step) -> None:
        """See ``run.Workers``."""
        done = self._coordinator.join.remote(partition, step.digest, step.pieces)
        self._joining[done] = step

    @property
    def joining(self) -> int:
        """See ``run.Workers``."""
        return len(self._joining)

    def joined(self, wait: bool) -> list[tuple[Step, Step]]:
        """See ``run.Workers``."""
        if not self._joining:
            return []
        ready, _ = ray.wait([*self._joining], timeout=None if wait else 0)
        return [(ray.get(reference), self._joining.pop(reference)) for reference in ready]
