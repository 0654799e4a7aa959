"""The machine's cores, shared out among workers."""

from dataclasses import dataclass
from typing import Any, TypeGuard

from tfexport.errors import ConfigError, Problem, join_problems, shown
from tfexport.runtime.parallel.cpu import are_restricted, usable_cores

MOST_THREADS = 1024  # twice what the largest machines have
MOST_WAITING = 1_000_000


@dataclass(frozen=True)
class ThreadLayout:
    """Workers, and the threads that compute in each.

    Attributes:
        workers: batches decoded at a time.
        threads: threads inside an operator; 0 shares the machine's cores among the workers.
        queue_size: batches that may wait or run; None for four times the workers.

    Raises:
        ConfigError: a number that cannot be.
    """

    workers: int = 1
    threads: int = 0
    queue_size: int | None = None

    def __post_init__(self) -> None:
        problems = [
            Problem(name, f"{shown(value)} is not a whole number from {least} to {most}")
            for name, value, least, most in (
                ("threads", self.threads, 0, MOST_THREADS),
                ("workers", self.workers, 1, MOST_THREADS),
                ("queue_size", 1 if self.queue_size is None else self.queue_size, 1, MOST_WAITING),
            )
            if not is_whole(value) or not least <= value <= most
        ]
        if not problems and self.threads * self.workers > MOST_THREADS:
            text = f"{self.workers} workers of {self.threads} threads are more than {MOST_THREADS}"
            problems.append(Problem(None, text))
        if problems:
            raise ConfigError(join_problems("translator", problems))

    @property
    def most_waiting(self) -> int:
        """Batches that may wait or run before a submission waits."""
        return 4 * self.workers if self.queue_size is None else self.queue_size

    def pool_size(self) -> int:
        """Threads of onnxruntime's pool, which all workers share beside a thread of their own.

        0 stands for onnxruntime's own choice, which knows the machine but not what of it a
        container may use.
        """
        threads = self.threads
        if threads == 0:
            if self.workers == 1 and not are_restricted():
                return 0
            threads = max(1, usable_cores() // self.workers)
        return self.workers * (threads - 1) + 1


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether a value is a whole number; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)
