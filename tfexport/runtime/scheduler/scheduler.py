"""The scheduler of one model: callers submit rows and get a future of the results.

Worker threads run the rows; each owns a batch, and those of one kind share a queue.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tfexport.errors import BundleError, ClosedSchedulerError, QueueFullError
from tfexport.runtime.engine import Engine
from tfexport.runtime.options import Step
from tfexport.runtime.scheduler.continuous import ENTERING, ContinuousBatch, fits_slots
from tfexport.runtime.scheduler.dynamic import DynamicBatch
from tfexport.runtime.scheduler.sounds import ONE_WINDOW, SoundBatch, SoundRequest
from tfexport.runtime.scheduler.submission import (
    Ended,
    Observer,
    RunningBatch,
    Submission,
    SubmissionRow,
    WaitingRows,
)
from tfexport.runtime.search import Request, ResolvedOptions

_LEAST_SLOTS = 8  # slots of a batch, if there are several: room for a beam
ENCODED_TOKENS = 1024  # tokens of sources that enter between two steps, for which running rows wait
# This share suffices if rows last entered so many seconds ago: those that are left may be long.
_ENTERING_LATE, _LATE_SECONDS = 4, 0.03
_RECENT = 256  # finished rows by which the rate is measured
# While rows wait, results are handed over when they are a share of the slots, or at most so many
# seconds after the step that gave the first of them began: to hand them over wakes other threads,
# and they take the GIL from those that decode.
_TOGETHER, _HELD_SECONDS = 2, 0.04


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
            wake = np.zeros(1, np.int32)
            running = [ContinuousBatch(engine, self._slots, observer, wake) for _ in workers]
            self._batch_workers.append(BatchWorkers("continuous", running, observer, wake))
        self._sounds: BatchWorkers | None = None
        if engine.manifest.speech is not None:
            sounds = [SoundBatch(self._slots, observer) for _ in workers]
            self._sounds = BatchWorkers("sounds", sounds, observer)
            self._batch_workers.append(self._sounds)
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
        self._enter(submission, self._batch_workers[fits])
        return submission

    def submit_sound(self, request: SoundRequest, *, deadline: float | None = None) -> Submission:
        """Submit a sound to transcribe with a Whisper model; never blocks.

        Args:
            request: the sound and its transcriber, which is of the scheduler's engine.
            deadline: see ``submit``.

        Raises:
            QueueFullError: see ``submit``.
        """
        assert self._sounds is not None
        submission = Submission([request], ONE_WINDOW, deadline, None)
        self._enter(submission, self._sounds)
        return submission

    def _enter(self, submission: Submission, workers: "BatchWorkers") -> None:
        """Add rows to a queue, if there is room.

        Raises:
            QueueFullError: see ``submit``.
        """
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


class BatchWorkers:
    """The worker threads, and the queue that they share.

    Each thread owns its batch; a lock protects all shared state.
    """

    def __init__(
        self,
        name: str,
        batches: Sequence[RunningBatch],
        observer: Observer,
        wake: NDArray[np.int32] | None = None,
    ) -> None:
        """Start a thread for each batch; all have the same size.

        Args:
            name: of the threads.
            batches: one for each thread.
            observer: receives events.
            wake: (1,), set while rows wait, for batches that make several steps at a time; their
                results are handed over in groups meanwhile.
        """
        self._in_groups = wake is not None
        self._wake = np.zeros(1, np.int32) if wake is None else wake
        self._observer, self.capacity = observer, batches[0].capacity
        self._waiting = WaitingRows()
        self._changed = threading.Condition()
        self._closed = False
        self._running = [0] * len(batches)  # rows of each
        self._entered = [0.0] * len(batches)  # when rows entered each
        self._ended: deque[float] = deque(maxlen=_RECENT)
        self._threads = [
            threading.Thread(
                target=self._run,
                args=(worker, batch),
                name=f"tfexport-{name}-{worker}",
                daemon=True,
            )
            for worker, batch in enumerate(batches)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, submission: Submission) -> None:
        """Add rows to the end of the queue.

        Raises:
            ClosedSchedulerError: the workers are closed.
        """
        with self._changed:
            if self._closed:
                raise ClosedSchedulerError("the scheduler is closed")
            self._waiting.add(submission)
            self._wake[0] = 1
            self._changed.notify_all()

    @property
    def waiting(self) -> tuple[int, int]:
        """The number of submissions with waiting rows, and of these rows."""
        with self._changed:
            return len(self._waiting), self._waiting.rows

    @property
    def running(self) -> int:
        """The number of rows that are being decoded."""
        return sum(self._running)

    def purge(self) -> None:
        """Remove waiting rows whose submission has ended."""
        with self._changed:
            self._waiting.purge()
            self._changed.notify_all()

    def seconds_to_clear(self) -> float:
        """An estimate of how long the waiting rows will take, from the rows that ended last."""
        _, rows = self.waiting
        ended = list(self._ended)
        if not rows:
            return 0.0
        if len(ended) < 2 or ended[-1] <= ended[0]:
            return 1.0
        return rows * (ended[-1] - ended[0]) / (len(ended) - 1)

    def wait_idle(self, deadline: float) -> bool:
        """Wait until no row waits or runs; return False at the deadline."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._waiting and not self.running, deadline - time.monotonic()
            )

    def close(self) -> None:
        """Stop; waiting and running rows fail."""
        with self._changed:
            self._closed = True
            self._wake[0] = 1
            left = self._waiting.take_all()
            self._changed.notify_all()
        for row in left:
            row.submission.fail(_closed())
        for thread in self._threads:
            if threading.current_thread() is not thread:
                thread.join()

    def _run(self, worker: int, batch: RunningBatch) -> None:
        # Results that are not handed over yet, and when the step of the first of them began.
        ended, since = Ended(), 0.0
        before = time.monotonic()
        while self._begin(worker, batch):
            begun = time.monotonic()
            try:
                batch.leave()
                if batch.rows:
                    self._observer.batch(len(batch.rows))
                    found = batch.step()
                    since = since if ended else begun
                    ended += found
            except Exception as error:  # an error of onnxruntime, which callers get
                _fail(batch, error)
            now = time.monotonic()
            if not self._may_hold(batch, ended, now + (now - before) - since):
                self._hand_over(ended)
                ended = []
            before = now
            with self._changed:
                self._running[worker] = len(batch.rows)
                if not any(self._running):
                    self._changed.notify_all()
        self._hand_over(ended)

    def _may_hold(self, batch: RunningBatch, ended: Ended, seconds: float) -> bool:
        """Whether results may wait for more, while the batch goes on.

        Args:
            batch: the rows that go on.
            ended: the results.
            seconds: how long they will have been held after a step that takes as long as the last.
        """
        if not (self._in_groups and self._wake[0] and batch.rows):
            return False
        return len(ended) < self.capacity // _TOGETHER and seconds <= _HELD_SECONDS

    def _hand_over(self, ended: Ended) -> None:
        for row, found in ended:
            try:
                self._ended.append(time.monotonic())
                self._observer.generated(len(found[0].tokens))
                row.submission.finish(row.place, found)
            except Exception as error:  # only this row fails
                row.submission.fail(error)

    def _begin(self, worker: int, batch: RunningBatch) -> bool:
        """Wait for work, and add rows to the batch; return False when closed."""
        with self._changed:
            while not (self._waiting.rows or batch.rows or self._closed):
                self._changed.wait()
            if self._closed:
                _fail(batch, _closed())
                self._running[worker] = 0
                self._changed.notify_all()
                return False
            rows: list[SubmissionRow] = []
            if self._waiting.rows:
                room = self._room(batch, time.monotonic() - self._entered[worker])
                rows = self._waiting.take(
                    room, ENCODED_TOKENS, self._share(worker), alone=not batch.rows
                )
                self._wake[0] = self._waiting.rows > 0
            if not any(self._running):
                self._ended.clear()  # idle time does not count
            self._running[worker] = len(batch.rows) + len(rows)
            over, self._waiting.over = self._waiting.over, []
        for submission in over:  # outside the lock, because callbacks are called
            submission.end_if_late()
        now = time.monotonic()
        if rows:
            self._entered[worker] = now
        try:
            for row in rows:
                self._observer.queued(now - row.submission.submitted)
                self._observer.encoded(row.request.length)
        except Exception as error:
            for row in rows:
                row.submission.fail(error)
            rows = []
        if rows:
            _enter(batch, rows)
        return True

    def _room(self, batch: RunningBatch, seconds: float) -> int:
        """How many rows may enter now: if more wait than fit, several are encoded together.

        Args:
            batch: which they enter.
            seconds: since rows entered it.
        """
        enough = self.capacity // (ENTERING if seconds < _LATE_SECONDS else _ENTERING_LATE)
        few = self._waiting.rows > batch.free < enough
        return 0 if few and batch.rows else batch.free

    def _share(self, worker: int) -> int:
        """The number of rows for one worker, so that all have about equally many."""
        workers = len(self._running)
        return max(1, -(-(self._waiting.rows + self.running) // workers) - self._running[worker])


def _enter(batch: RunningBatch, rows: Sequence[SubmissionRow]) -> None:
    """Add rows; one that the model refuses fails alone."""
    try:
        batch.enter(rows)
    except Exception as error:
        for row in rows if len(rows) > 1 else ():
            _enter(batch, [row])
        if len(rows) == 1:
            rows[0].submission.fail(error)


def _fail(batch: RunningBatch, error: Exception) -> None:
    for row in batch.rows:
        row.submission.fail(error)
    batch.clear()


def _closed() -> ClosedSchedulerError:
    return ClosedSchedulerError("the scheduler was closed")
