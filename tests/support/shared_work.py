"""Cases that several threads share, each taking the next one when it is done with its last."""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Case = TypeVar("Case")


def share(
    cases: Iterable[Case], workers: int, work: Callable[[Iterator[Case], threading.Lock], None]
) -> None:
    """Call a function in several threads, with an iterator over the cases that they share.

    Args:
        cases: in any order.
        workers: threads.
        work: takes the cases of one thread, and the lock that all share for what they write.

    Raises:
        Exception: what a call of ``work`` raised.
    """
    lock, waiting = threading.Lock(), iter(cases)

    def take() -> Iterator[Case]:
        while True:
            with lock:
                try:
                    case = next(waiting)
                except StopIteration:
                    return
            yield case

    with ThreadPoolExecutor(workers) as pool:
        for job in [pool.submit(work, take(), lock) for _ in range(workers)]:
            job.result()
