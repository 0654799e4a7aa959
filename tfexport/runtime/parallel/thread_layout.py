"""Workers and their threads, and the size of the pool that they share."""

from dataclasses import dataclass

from tfexport.errors import ConfigError, Problem, join_problems, shown
from tfexport.runtime.options import is_whole
from tfexport.runtime.parallel.cpu import are_restricted, usable_cores

MOST_THREADS = 1024  # twice what the largest machines have
MOST_WAITING = 1_000_000


@dataclass(frozen=True)
class ThreadLayout:
    """Numbers of workers, of threads in each, and of batches in their queue.

    Attributes:
        workers: batches decoded at a time.
        threads: threads of each worker; 0 divides the usable cores among the workers.
        queue_size: batches that may be queued or running; None for four for each worker.

    Raises:
        ConfigError: naming every number that is out of bounds.
    """

    workers: int = 1
    threads: int = 0
    queue_size: int | None = None

    def __post_init__(self) -> None:
        problems = [
            Problem(name, f"{shown(value)} is not an integer from {least} to {most}")
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
        """Batches that may be queued or running before a further submission blocks."""
        return 4 * self.workers if self.queue_size is None else self.queue_size

    def each(self) -> int:
        """Threads of each worker."""
        return self.threads or max(1, usable_cores() // self.workers)

    def pool_size(self) -> int:
        """Threads of onnxruntime's pool, which all workers share; each adds a thread of its own.

        0 leaves the choice to onnxruntime, which sees all cores of the machine, and not how many
        of them a container may use.
        """
        if self.threads == 0 and self.workers == 1 and not are_restricted():
            return 0
        return self.workers * (self.each() - 1) + 1
