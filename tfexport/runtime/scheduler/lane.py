"""A lane: a thread that runs one batch, from rows that wait."""

import threading
import time
from collections import deque

from tfexport.errors import ClosedSchedulerError
from tfexport.runtime.scheduler.batch import RunningBatch
from tfexport.runtime.scheduler.observer import Observer
from tfexport.runtime.scheduler.submission import Submission
from tfexport.runtime.scheduler.waiting import WaitingRows

ENCODED_TOKENS = 1024  # of sources that enter between two steps: what running rows wait for
_SHARE = 8  # of the slots, which rows that enter a full batch wait for
_RECENT = 256  # rows by whose ends the rate is measured


class Lane:
    """See the module.

    Its thread alone touches the batch; what others touch is behind the lock.
    """

    def __init__(self, name: str, batch: RunningBatch, observer: Observer) -> None:
        self._batch, self._observer = batch, observer
        self._waiting = WaitingRows()
        self._changed = threading.Condition()
        self._closed = False
        self._running = 0
        self._ended: deque[float] = deque(maxlen=_RECENT)
        self._thread = threading.Thread(target=self._run, name=f"tfexport-{name}", daemon=True)
        self._thread.start()

    def submit(self, submission: Submission) -> None:
        """Put rows behind those that wait.

        Raises:
            ClosedSchedulerError: the lane is closed.
        """
        with self._changed:
            if self._closed:
                raise ClosedSchedulerError("the scheduler is closed")
            self._waiting.add(submission)
            self._changed.notify_all()

    @property
    def waiting(self) -> tuple[int, int]:
        """Submissions with rows to begin, and these rows."""
        with self._changed:
            return len(self._waiting), self._waiting.rows

    @property
    def running(self) -> int:
        """Rows that are being decoded."""
        return self._running

    @property
    def capacity(self) -> int:
        """Rows of the model's batch."""
        return self._batch.capacity

    def seconds_to_clear(self) -> float:
        """How long the rows that wait will take, by the rows that ended of late."""
        _, rows = self.waiting
        ended = list(self._ended)
        if len(ended) < 2 or ended[-1] <= ended[0]:
            return 1.0
        return rows * (ended[-1] - ended[0]) / (len(ended) - 1)

    def wait_idle(self, deadline: float) -> bool:
        """Wait until no row waits or runs; False if there still is one at the deadline."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._waiting and not self._running, deadline - time.monotonic()
            )

    def close(self) -> None:
        """Stop; what waits or runs fails."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while self._begin():
            try:
                self._observer.batch(len(self._batch.rows))
                for row, found in self._batch.step():
                    self._ended.append(time.monotonic())
                    self._observer.generated(len(found[0].tokens))
                    row.finish(found)
                self._batch.leave()
            except Exception as error:  # of onnxruntime or a callback: callers get it
                self._fail(error)
            with self._changed:
                self._running = len(self._batch.rows)
                if not self._running:
                    self._changed.notify_all()

    def _begin(self) -> bool:
        """Wait until there is something to do, and let rows enter; False when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._batch.rows or self._closed)
            if self._closed:
                error = ClosedSchedulerError("the scheduler was closed")
                for row in self._waiting.take(1 << 60, 1 << 60):
                    row.submission.fail(error)
                self._fail(error)
                return False
            rows = self._waiting.take(self._room(), ENCODED_TOKENS)
            self._running = len(self._batch.rows) + len(rows)
        now = time.monotonic()
        for row in rows:
            self._observer.queued(now - row.submission.submitted)
            self._observer.encoded(row.request.length)
        try:
            self._batch.enter(rows)
        except Exception as error:
            for row in rows:
                row.submission.fail(error)
            self._fail(error)
        return True

    def _room(self) -> int:
        """Rows that may enter now: while more wait than fit, some at a time, encoded together."""
        free = self._batch.free
        few = self._waiting.rows > free and free < self._batch.capacity // _SHARE
        return 0 if few and self._batch.rows else free

    def _fail(self, error: Exception) -> None:
        for row in self._batch.rows:
            row.submission.fail(error)
        self._batch.clear()
