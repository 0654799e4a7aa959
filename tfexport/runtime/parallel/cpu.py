"""The machine's processor, and how many of its cores are given to this process."""

import math
import os
import platform
from pathlib import Path

CGROUPS, CPUINFO = Path("/sys/fs/cgroup"), Path("/proc/cpuinfo")
# Flags of Linux that matter to products of matrices, least first: of x86 and of ARM.
_FLAGS = (
    "avx", "avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16",
    "asimd", "asimddp", "i8mm", "sve", "bf16",
)  # fmt: skip


def usable_cores() -> int:
    """Cores by the process' affinity and, in a container on Linux, by its CPU quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, math.ceil(min(cores, _share(CGROUPS))))


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

    ``avx2+avx512f`` for example; the architecture's name where there is no Linux to ask.
    """
    names = set[str]()
    if CPUINFO.exists():
        for line in CPUINFO.read_text().splitlines():
            if line.startswith(("flags", "Features")):
                names = set(line.partition(":")[2].split())
                break
    found = [flag for flag in _FLAGS if flag in names]
    return "+".join(found) or platform.machine() or "unknown"


def _share(root: Path) -> float:
    """The CPU quota of the control group in cores (cgroup v2, then v1); infinity if unlimited."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (root / "cpu" / "cpu.cfs_quota_us").read_text()
            period = (root / "cpu" / "cpu.cfs_period_us").read_text()
        except OSError:
            return math.inf
    try:
        share = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max"
        return math.inf
    return share if share > 0 else math.inf  # version 1 says -1 for no limit
