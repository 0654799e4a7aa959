"""Threads that decode batches, with a queue that does not grow without bound."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")
Part = TypeVar("Part")


class Workers:
    """Threads over one model. onnxruntime leaves Python while it computes, so they do run at once.

    ``submit`` waits while ``queue_size`` jobs wait or run.
    """

    def __init__(self, workers: int, queue_size: int) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="tfexport")
        self._room = threading.BoundedSemaphore(queue_size)

    def submit(self, work: Callable[..., Result], *arguments: Any) -> "Future[Result]":
        """Do this when a worker is free."""
        self._room.acquire()
        try:
            job = self._pool.submit(work, *arguments)
        except BaseException:
            self._room.release()
            raise
        job.add_done_callback(lambda _: self._room.release())
        return job

    def close(self) -> None:
        """Finish what was submitted, and stop."""
        self._pool.shutdown(wait=True)


def gather(
    parts: "Sequence[Future[Part]]", assemble: Callable[[list[Part]], Result]
) -> "Future[Result]":
    """One future for several; it fails as the first of them does that fails."""
    whole: Future[Result] = Future()
    left = len(parts)
    lock = threading.Lock()

    def complete() -> None:
        try:
            whole.set_result(assemble([part.result() for part in parts]))
        except BaseException as error:
            whole.set_exception(error)

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
    for part in parts:
        part.add_done_callback(one_done)
    return whole
