"""Worker threads, and the batches of rows of similar length that they decode."""

import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search.request import Request

if TYPE_CHECKING:  # slow to import, and seldom needed
    from concurrent.futures import Future

Result = TypeVar("Result")
Part = TypeVar("Part")


_here = threading.local()  # ``inside``: this thread is a worker


class ClosedError(Exception):
    """The workers have been closed; others may exist now."""


class StartError(RuntimeError):
    """A job could not be started, for example because the process is ending."""


class Workers:
    """Worker threads over one model; onnxruntime releases the GIL, so they run in parallel.

    While ``queue_size`` jobs are queued or running, ``submit`` blocks and ``try_submit`` refuses.
    """

    def __init__(self, workers: int, queue_size: int) -> None:
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

        self._pool = ThreadPoolExecutor(
            workers, thread_name_prefix="tfexport", initializer=lambda: setattr(_here, "inside", 1)
        )
        self._room = threading.BoundedSemaphore(queue_size)
        self._closed = False
        self._asking = threading.Lock()  # to submit several jobs together, or to close
        self._process = os.getpid()

    def submit(self, work: Callable[..., Result], *arguments: Any) -> "Future[Result]":
        """Run ``work`` in a worker.

        If a worker calls it, in a callback, it runs at once: waiting could be a deadlock.

        Raises:
            ClosedError: another thread has closed the workers.
            StartError: no thread runs it.
        """
        if hasattr(_here, "inside"):
            return _do(work, *arguments)
        self._room.acquire()
        return self._start(work, *arguments)

    def try_submit(
        self, work: Callable[..., Result], jobs: Sequence[tuple[Any, ...]]
    ) -> "list[Future[Result]] | None":
        """Run ``work`` with the arguments of every job, if the queue has room for all of them.

        Returns:
            A future for each job; None, and nothing is run, if there is no room.

        Raises:
            ClosedError: another thread has closed the workers; nothing is run.
        """
        if hasattr(_here, "inside"):
            return [_do(work, *arguments) for arguments in jobs]
        with self._asking:
            if self._closed:
                raise ClosedError
            taken = 0
            started: list[Future[Result]] = []
            try:
                while taken < len(jobs) and self._room.acquire(blocking=False):
                    taken += 1
                if taken < len(jobs):
                    return None
                for arguments in jobs:
                    taken -= 1  # the job owns it now
                    started.append(self._start(work, *arguments))
                return started
            except BaseException:
                for job in started:
                    job.cancel()
                raise
            finally:
                for _ in range(taken):
                    self._room.release()

    def _start(self, work: Callable[..., Result], *arguments: Any) -> "Future[Result]":
        try:
            job = self._pool.submit(work, *arguments)
        except BaseException as error:
            self._room.release()
            if self._closed:
                raise ClosedError from error
            if isinstance(error, RuntimeError):
                raise StartError(str(error)) from error
            raise
        job.add_done_callback(lambda _: self._room.release())
        return job

    @property
    def are_here(self) -> bool:
        """Whether this process started the threads, and is not a fork."""
        return os.getpid() == self._process

    def close(self) -> None:
        """Wait for submitted jobs and stop; called by a worker itself, it does not wait."""
        with self._asking:
            self._closed = True
        if self.are_here:
            self._pool.shutdown(wait=not hasattr(_here, "inside"))


def _do(work: Callable[..., Result], *arguments: Any) -> "Future[Result]":
    from concurrent.futures import Future  # noqa: PLC0415

    job: Future[Result] = Future()
    try:
        job.set_result(work(*arguments))
    except BaseException as error:
        job.set_exception(error)
    return job


def gather(
    parts: "Sequence[Future[Part]]", assemble: Callable[[list[Part]], Result]
) -> "Future[Result]":
    """Combine futures into one; it has the exception of the first that failed."""
    from concurrent.futures import Future  # noqa: PLC0415

    whole: Future[Result] = Future()
    left, parts = len(parts), list(parts)
    lock = threading.Lock()

    def complete() -> None:
        try:
            whole.set_result(assemble([part.result() for part in parts]))
        except BaseException as error:
            whole.set_exception(error)
        parts.clear()  # its callbacks keep the futures, and so the model, alive

    def one_done(_: object) -> None:
        nonlocal left
        with lock:
            left -= 1
            last = not left
        if last:
            complete()

    whole.set_running_or_notify_cancel()
    if not parts:
        complete()
    for part in tuple(parts):
        part.add_done_callback(one_done)
    return whole


BATCHES_AHEAD = 16  # batches that are read ahead and sorted by length
USUAL_LENGTH = 32  # tokens of a row, as an estimate for batches counted in tokens


def rows_ahead(options: DecodingOptions) -> int:
    """The number of rows to read ahead from a long input."""
    rows = options.batch_size
    if options.batch_type == "tokens":
        rows = max(1, rows // USUAL_LENGTH)
    return BATCHES_AHEAD * rows


def make_batches(requests: Sequence[Request | None], options: DecodingOptions) -> list[list[int]]:
    """Group rows into batches with prefixes of equal length and sources of similar length.

    Rows of different groups are not batched together.

    Args:
        requests: None for a row that needs no decoding; it is in no batch.
        options: ``batch_size`` and ``batch_type``.

    Returns:
        Indices of the rows of each batch.
    """
    sizes = {i: ((len(row.prefix), row.group), row.length) for i, row in enumerate(requests) if row}
    # Sorted by length, so that little is padded.
    order = sorted(sizes, key=sizes.__getitem__)
    batches: list[list[int]] = []
    for i in order:
        shared, length = sizes[i]
        batch = batches[-1] if batches else []
        # Lengths ascend: the newest row is the longest.
        size = (len(batch) + 1) * (length if options.batch_type == "tokens" else 1)
        if batch and sizes[batch[0]][0] == shared and size <= options.batch_size:
            batch.append(i)
        else:
            batches.append([i])
    return batches


def in_order(
    count: int, batches: Sequence[Sequence[int]], found: Sequence[list[list[Hypothesis]]]
) -> list[list[Hypothesis]]:
    """The hypotheses of all batches, in the order of the rows; rows of no batch are empty."""
    # A new object for each row: callers may change its list of tokens.
    results = [[Hypothesis([], 0.0)] for _ in range(count)]
    for batch, rows in zip(batches, found, strict=True):
        for i, hypotheses in zip(batch, rows, strict=True):
            results[i] = hypotheses
    return results
