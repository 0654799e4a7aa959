"""The Ray cluster, which may be this machine only, and the number of its workers."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfexport.errors import ConfigError, Problem, join_problems, shown
from tfexport.runtime.options import is_integer
from tfexport.runtime.parallel.cpu import MOST_THREADS, ThreadLayout, usable_cores

if TYPE_CHECKING:  # threads need no Ray, and importing it takes seconds
    from ray.data import ActorPoolStrategy

MOST_WORKERS = 100_000
Bounds = tuple[int, int]


@dataclass(frozen=True)
class WorkerPlan:
    """The workers of a run.

    Attributes:
        workers: how many, or the fewest and the most; None for as many as the cluster has cores
            for.
        threads: threads of each worker; Ray counts as many CPUs for it.
        batch_rows: rows that a worker sorts by length and decodes together.

    Raises:
        ConfigError: numbers are out of bounds; all are listed.
    """

    workers: int | Bounds | None = None
    threads: int = 1
    batch_rows: int = 2048

    def __post_init__(self) -> None:
        low, high = self._bounds or (1, 1)
        problems = [
            Problem(name, f"{shown(value)} is not an integer from 1 to {most}")
            for name, value, most in (
                ("workers", low, MOST_WORKERS),
                ("workers", high, MOST_WORKERS),
                ("threads_per_worker", self.threads, MOST_THREADS),
                ("batch_rows", self.batch_rows, 1 << 20),
            )
            if not is_integer(value) or not 1 <= value <= most
        ]
        if not problems and low > high:
            problems.append(Problem("workers", f"the minimum {low} exceeds the maximum {high}"))
        if problems:
            raise ConfigError(join_problems("corpus", list(dict.fromkeys(problems))))

    @property
    def _bounds(self) -> tuple[Any, Any] | None:
        given = self.workers
        return given if isinstance(given, tuple) or given is None else (given, given)

    @property
    def layout(self) -> ThreadLayout:
        """The layout of a worker's translator: each thread decodes a batch, with shared weights."""
        return ThreadLayout(workers=self.threads, threads=1)

    def of_this_machine(self) -> ThreadLayout:
        """The same number of threads in this process, each with its own batch.

        Raises:
            ConfigError: they are more than the limit of a process.
        """
        _, most = self._bounds or (1, max(1, usable_cores() // self.threads))
        if most * self.threads > MOST_THREADS:
            text = f"{most} of {self.threads} threads each exceed the limit of {MOST_THREADS} "
            text += "per process; with Ray, each worker is a process"
            raise ConfigError(join_problems("corpus", [Problem("workers", text)]))
        return ThreadLayout(workers=most * self.threads, threads=1)

    def bounds(self, spare: int = 0) -> Bounds:
        """The fewest and the most workers, in the cluster that is connected.

        Args:
            spare: by how many the default number of first workers is reduced, for other work.

        Raises:
            ConfigError: no machine of the cluster has as many CPUs as a worker needs.
        """
        room = sum(int(cores // self.threads) for cores in _cores())
        if not room:
            most = int(max(_cores(), default=0))
            text = f"{self.threads} are more than the {most} CPUs of the largest machine"
            raise ConfigError(join_problems("corpus", [Problem("threads_per_worker", text)]))
        return self._bounds or (max(1, room - spare), room)

    def strategy(self, spare: int = 0) -> "ActorPoolStrategy":
        """The pool of actors, each with a translator; see ``bounds``."""
        from ray.data import ActorPoolStrategy

        low, high = self.bounds(spare)
        return ActorPoolStrategy(min_size=low, max_size=high)

    def cpus_with_others(self) -> int:
        """CPUs that Ray counts for a worker if other steps, such as reading, need one too.

        A worker with all CPUs of the cluster would wait for them, and they for it.
        """
        fills = sum(_cores()) < self.threads + 1
        return self.threads - 1 if fills else self.threads

    def check_room_for_others(self) -> None:
        """Check that the first workers leave a CPU to other steps.

        Otherwise they would wait for each other for ever.

        Raises:
            ConfigError: they take every CPU of the cluster.
        """
        low, high = self.bounds(spare=1)
        cores, each = sum(map(int, _cores())), self.cpus_with_others()
        alone = low == 1 and each < self.threads  # a single worker reduces its CPUs
        if alone or low * self.threads < cores:
            return
        fewer = (cores - 1) // self.threads
        begun = f"{low} of {self.threads} CPUs each" if self.threads > 1 else str(low)
        text = (
            f"{begun} use all {cores} CPUs of the cluster, but the dataset's other steps need one: "
            "this would be a deadlock. Use "
        )
        if fewer:
            text += (
                f"{fewer}, or ({fewer}, {high}) to start with {fewer} and grow when CPUs are free"
            )
        else:
            text += "1, for which one CPU less is then reserved"
        raise ConfigError(join_problems("corpus", [Problem("workers", text)]))

    def used_cores(self) -> int:
        """The most cores that the workers can have in the present cluster."""
        room = sum(int(cores // self.threads) for cores in _cores())
        return min(self.bounds()[1], max(room, 1)) * self.threads


def _cores() -> list[float]:
    """CPUs of every machine of the cluster."""
    import ray

    return [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]


@contextmanager
def connected(address: str | None) -> Iterator[bool]:
    """Connect to a cluster for the block; yield whether it is a new one on this machine only.

    A connection that the program has made with ``ray.init`` stays.

    Args:
        address: the address of a running cluster; None for a new one with this process' cores.

    Raises:
        ConfigError: there is no cluster at the address.
    """
    import ray
    from ray.exceptions import RayError

    if ray.is_initialized():
        yield False
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics are sent
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    for handler in logging.getLogger("ray.data").handlers:
        if type(handler).__name__ != "SessionFileHandler":  # its log files are unchanged
            handler.setLevel(logging.ERROR)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address is None:
            # "local": by default Ray would join any cluster that runs here.
            with _without_stderr():
                ray.init("local", num_cpus=usable_cores(), include_dashboard=False, **quiet)
        else:
            _check_listening(address)
            with _without_stderr():
                ray.init(address, **quiet)
    except (
        OSError,
        ValueError,
        RuntimeError,
        RayError,
    ) as error:  # Ray raises it for a wrong address
        where = address or "this machine"
        why = str(error).rstrip(".")
        raise ConfigError(f"no Ray cluster at {where}: {why}.{_hint(address)}") from None
    try:
        yield address is None
    finally:
        ray.shutdown()


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Discard stderr of native code: Ray prints its address at every log level."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _hint(address: str | None) -> str:
    """How to give a token to the cluster, if a missing one may be the reason."""
    if address is None or os.environ.get("RAY_AUTH_MODE"):
        return ""
    return (
        " A cluster that 'ray start' started may require a token: set RAY_AUTH_MODE=token, and "
        "copy ~/.ray/auth_token from the head node to this machine."
    )


def _check_listening(address: str) -> None:
    """Check that a process listens at HOST:PORT: Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()


@contextmanager
def data_settings() -> Iterator[None]:
    """Make every row a block, and disable Ray Data's own progress display.

    A worker takes a block at a time. ``Dataset.repartition`` would need a CPU, but the workers have
    all. The program's own settings are restored afterwards.
    """
    from ray.data import DataContext

    wanted = {
        "target_max_block_size": 1,
        "enable_progress_bars": False,
        "print_on_execution_start": False,
    }
    context = DataContext.get_current()
    before = {name: getattr(context, name) for name in wanted}
    try:
        for name, value in wanted.items():
            setattr(context, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(context, name, value)
