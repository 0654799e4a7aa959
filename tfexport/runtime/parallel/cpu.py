"""The machine's processor, and how many of its cores are given to this process."""

import math
import os
import platform
from pathlib import Path

CGROUPS, CPUINFO = Path("/sys/fs/cgroup"), Path("/proc/cpuinfo")


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
