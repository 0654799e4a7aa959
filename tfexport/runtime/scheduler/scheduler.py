"""The scheduler of one model: callers submit rows and get a future of the results."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tfexport.errors import BundleError, QueueFullError
from tfexport.runtime.engine import Engine
from tfexport.runtime.options import Step
from tfexport.runtime.scheduler.batch_workers import BatchWorkers
from tfexport.runtime.scheduler.continuous import ContinuousBatch, fits_slots
from tfexport.runtime.scheduler.dynamic import DynamicBatch
from tfexport.runtime.scheduler.submission import Observer, Submission
from tfexport.runtime.search import Request, ResolvedOptions

_LEAST_SLOTS = 8  # slots of a batch, if there are several: room for a beam


@dataclass(frozen=True)
class SchedulerLimits:
    """Limits of a scheduler.

    Attributes:
        max_queue: maximum number of waiting submissions, each of any number of rows.
        slots: rows that all workers together decode at a time; each worker has at least 8.
    """

    max_queue: int = 256
    slots: int = 32


@dataclass(frozen=True)
class SchedulerStats:
    """The current work of a scheduler.

    Attributes:
        waiting_requests: submissions with rows that are not started.
        waiting_rows: the number of these rows.
        running_rows: rows that are being decoded.
        slots: rows that can be decoded at a time.
    """

    waiting_requests: int
    waiting_rows: int
    running_rows: int
    slots: int


class Scheduler:
    """Decodes rows of many callers with one model; safe to call from several threads.

    Attributes:
        continuous: whether rows enter and leave the running batch at any step.
        reason: why not; empty if ``continuous`` is true.
    """

    def __init__(
        self,
        engine: Engine,
        limits: SchedulerLimits | None = None,
        observer: Observer | None = None,
    ) -> None:
        """Start the scheduler's threads.

        Args:
            engine: an open bundle; each of its workers runs its own batch, with its share of
                the slots.
            limits: see ``SchedulerLimits``.
            observer: receives events for metrics.
        """
        self._limits = limits or SchedulerLimits()
        observer = observer or Observer()
        self.reason = _why_not(engine)
        self.continuous = not self.reason
        self._workers = engine.layout.workers
        workers = range(self._workers)
        self._slots = max(_LEAST_SLOTS, self._limits.slots // len(workers))
        if len(workers) == 1:
            self._slots = self._limits.slots
        dynamic = [DynamicBatch(engine, self._slots, observer) for _ in workers]
        self._batch_workers = [BatchWorkers("dynamic", dynamic, observer)]
        if self.continuous:
            running = [ContinuousBatch(engine, self._slots, observer) for _ in workers]
            self._batch_workers.append(BatchWorkers("continuous", running, observer))
        self._entering = threading.Lock()
        self._draining = False

    def submit(
        self,
        requests: Sequence[Request | None],
        options: ResolvedOptions,
        *,
        deadline: float | None = None,
        on_step: Callable[[Step], object] | None = None,
    ) -> Submission:
        """Submit rows; never blocks.

        Args:
            requests: the requests of ``Engine.request``; None for a blank row.
            options: how to decode them.
            deadline: by ``time.monotonic``; rows that have not ended by then leave.
            on_step: called by the scheduler's thread for every token of rows without a beam.

        Raises:
            QueueFullError: the queue is full, or the scheduler is draining.
        """
        submission = Submission(requests, options, deadline, on_step)
        if submission.future.done():
            return submission
        rows = [row for row in requests if row is not None]
        fits = self.continuous and fits_slots(rows, options, self._slots)
        workers = self._batch_workers[fits]
        with self._entering:
            if self._draining:
                raise QueueFullError("the scheduler accepts no more work", 1.0)
            most = self._limits.max_queue
            if self._waiting() >= most:
                for each in self._batch_workers:
                    each.purge()
                if self._waiting() >= most:
                    raise QueueFullError(f"{most} requests are waiting", self.seconds_to_clear())
            workers.submit(submission)
        return submission

    def stats(self) -> SchedulerStats:
        """The current work."""
        waiting = [worker.waiting for worker in self._batch_workers]
        return SchedulerStats(
            sum(requests for requests, _ in waiting),
            sum(rows for _, rows in waiting),
            sum(worker.running for worker in self._batch_workers),
            self._slots * self._workers,
        )

    def _waiting(self) -> int:
        return sum(workers.waiting[0] for workers in self._batch_workers)

    def seconds_to_clear(self) -> float:
        """An estimate of how long the waiting rows will take."""
        return max(workers.seconds_to_clear() for workers in self._batch_workers)

    def drain(self, timeout: float) -> bool:
        """Accept no more work, and wait until all accepted work is done.

        Returns:
            Whether all work was done within the given seconds.
        """
        with self._entering:
            self._draining = True
        deadline = time.monotonic() + timeout
        return all(worker.wait_idle(deadline) for worker in self._batch_workers)

    def close(self) -> None:
        """Stop; unfinished work fails."""
        with self._entering:
            self._draining = True
        for worker in self._batch_workers:
            worker.close()


def _why_not(engine: Engine) -> str:
    """Why a model cannot run in slots; empty if it can."""
    if not engine.model.has_slots:
        return "the bundle has no graph for single steps (step.onnx)"
    try:
        engine.model.running_rows(1).try_out()
    except BundleError as error:
        return str(error)
    return ""
