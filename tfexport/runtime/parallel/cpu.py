"""The machine's processor, and the layout of workers and threads over its cores."""

import math
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tfexport.errors import ConfigError, Problem, join_problems, shown
from tfexport.runtime.options import is_integer

PROCESS, CPUINFO = Path("/proc/self"), Path("/proc/cpuinfo")
# Linux's CPU flags that affect matrix products, least first: of x86 and of ARM.
_FLAGS = (
    "avx", "avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16",
    "asimd", "asimddp", "i8mm", "sve", "bf16",
)  # fmt: skip


def usable_cores() -> int:
    """The usable cores: the process' affinity, limited by the CPU quotas of its cgroups."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, math.ceil(min([cores, *_quotas()])))


def are_restricted() -> bool:
    """Whether the process may use fewer cores than the machine has."""
    return usable_cores() < (os.cpu_count() or 1)


def processor() -> str:
    """The processor's name."""
    if CPUINFO.exists():
        for line in CPUINFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def instruction_set() -> str:
    """The processor's instruction sets for products of matrices, as Linux names them.

    For example ``avx2+avx512f``; on other systems the architecture's name.
    """
    names = set[str]()
    if CPUINFO.exists():
        for line in CPUINFO.read_text().splitlines():
            if line.startswith(("flags", "Features")):
                names = set(line.partition(":")[2].split())
                break
    found = [flag for flag in _FLAGS if flag in names]
    return "+".join(found) or platform.machine() or "unknown"


def _quotas() -> Iterator[float]:
    """The quotas, in cores, of the process' cgroup and its parents, of version 2 or 1.

    In a container only a part of the hierarchy may be mounted. Source: cgroups(7), proc(5).
    """
    try:
        groups = (PROCESS / "cgroup").read_text().splitlines()
        mounts = (PROCESS / "mountinfo").read_text().splitlines()
    except OSError:  # not Linux
        return
    # Version 2 names no controllers.
    paths = {
        name: path
        for _, names, path in (line.split(":", 2) for line in groups)
        for name in names.split(",")
    }
    for mount in mounts:
        root, point = mount.split()[3:5]
        kind, _, options = mount.partition(" - ")[2].split(" ", 2)
        controller = {"cgroup2": "", "cgroup": "cpu"}.get(kind)
        named = controller == "" or "cpu" in options.split(",")
        if controller is None or not named or controller not in paths:
            continue
        try:
            inside = PurePosixPath(paths[controller]).relative_to(root).parts
        except ValueError:  # not in what is mounted
            inside = ()
        folder = Path(point)
        for part in ("", *(() if ".." in inside else inside)):
            folder /= part
            yield _quota(folder)


def _quota(group: Path) -> float:
    try:
        quota, period = (group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (group / "cpu.cfs_quota_us").read_text()
            period = (group / "cpu.cfs_period_us").read_text()
        except OSError:
            return math.inf
    try:
        share = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max"
        return math.inf
    return share if share > 0 else math.inf  # version 1 has -1 for no limit


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
            if not is_integer(value) or not least <= value <= most
        ]
        if not problems and self.threads * self.workers > MOST_THREADS:
            text = f"{self.workers} workers of {self.threads} threads are more than {MOST_THREADS}"
            problems.append(Problem(None, text))
        if problems:
            raise ConfigError(join_problems("translator", problems))

    @property
    def most_waiting(self) -> int:
        """Batches that may be queued or running before a submission blocks."""
        return 4 * self.workers if self.queue_size is None else self.queue_size

    def each(self) -> int:
        """Threads of each worker."""
        return self.threads or max(1, usable_cores() // self.workers)

    def pool_size(self) -> int:
        """Threads of onnxruntime's pool, which all workers share; each adds its own thread.

        0 is onnxruntime's own choice: all cores of the machine, even if a container may use fewer.
        """
        if self.threads == 0 and self.workers == 1 and not are_restricted():
            return 0
        return self.workers * (self.each() - 1) + 1
