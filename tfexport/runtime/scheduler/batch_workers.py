"""The worker threads of a scheduler; each runs a batch of rows from one queue."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from tfexport.errors import ClosedSchedulerError
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.scheduler.submission import Observer, Row, Submission, WaitingRows

Ended = list[tuple[Row, list[Hypothesis]]]  # rows with their hypotheses


class RunningBatch(Protocol):
    """Rows that are decoded together, by one thread."""

    @property
    def rows(self) -> Sequence[Row]:
        """The number of rows in the batch."""

    @property
    def free(self) -> int:
        """Free rows of the model's batch."""

    @property
    def capacity(self) -> int:
        """Rows of the model's batch, free or not."""

    def enter(self, rows: Sequence[Row]) -> None:
        """Add rows, which together need no more than ``free``."""

    def step(self) -> Ended:
        """Continue all rows; remove and return those that have ended."""

    def leave(self) -> None:
        """Remove rows whose submission has ended; late submissions fail."""

    def clear(self) -> None:
        """Remove and return all rows."""


ENCODED_TOKENS = 1024  # tokens of sources that enter between two steps, for which running rows wait
_SHARE = 8  # share of the slots that has to be free before rows enter a full batch
_RECENT = 256  # finished rows by which the rate is measured


class BatchWorkers:
    """The worker threads, and the queue that they share.

    Each thread owns its batch; a lock protects all shared state.
    """

    def __init__(self, name: str, batches: Sequence[RunningBatch], observer: Observer) -> None:
        """Start a thread for each batch; all have the same size."""
        self._observer, self.capacity = observer, batches[0].capacity
        self._waiting = WaitingRows()
        self._changed = threading.Condition()
        self._closed = False
        self._running = [0] * len(batches)  # rows of each
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
            left = self._waiting.take_all()
            self._changed.notify_all()
        for row in left:
            row.submission.fail(_closed())
        for thread in self._threads:
            if threading.current_thread() is not thread:
                thread.join()

    def _run(self, worker: int, batch: RunningBatch) -> None:
        while self._begin(worker, batch):
            try:
                batch.leave()
                if batch.rows:
                    self._step(batch)
            except Exception as error:  # an error of onnxruntime, which callers get
                _fail(batch, error)
            with self._changed:
                self._running[worker] = len(batch.rows)
                if not any(self._running):
                    self._changed.notify_all()

    def _step(self, batch: RunningBatch) -> None:
        self._observer.batch(len(batch.rows))
        for row, found in batch.step():
            self._ended.append(time.monotonic())
            self._observer.generated(len(found[0].tokens))
            row.finish(found)

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
            rows: list[Row] = []
            if self._waiting.rows:
                rows = self._waiting.take(
                    self._room(batch), ENCODED_TOKENS, self._share(worker), alone=not batch.rows
                )
            if not any(self._running):
                self._ended.clear()  # idle time does not count
            self._running[worker] = len(batch.rows) + len(rows)
            over, self._waiting.over = self._waiting.over, []
        for submission in over:  # outside the lock, because callbacks are called
            submission.end_if_late()
        now = time.monotonic()
        try:
            for row in rows:
                self._observer.queued(now - row.submission.submitted)
                self._observer.encoded(row.request.length)
            if rows:
                batch.enter(rows)
        except Exception as error:
            for row in rows:
                row.submission.fail(error)
            _fail(batch, error)
        return True

    def _room(self, batch: RunningBatch) -> int:
        """How many rows may enter now: if more wait than fit, several are encoded together."""
        few = self._waiting.rows > batch.free < self.capacity // _SHARE
        return 0 if few and batch.rows else batch.free

    def _share(self, worker: int) -> int:
        """The number of rows for one worker, so that all have about equally many."""
        workers = len(self._running)
        return max(1, -(-(self._waiting.rows + self.running) // workers) - self._running[worker])


def _fail(batch: RunningBatch, error: Exception) -> None:
    for row in batch.rows:
        row.submission.fail(error)
    batch.clear()


def _closed() -> ClosedSchedulerError:
    return ClosedSchedulerError("the scheduler was closed")
