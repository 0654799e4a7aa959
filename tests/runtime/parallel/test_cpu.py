"""What a container may use, as the kernel's files say it."""

import math
import os
from pathlib import Path

import pytest

from tfexport.runtime.parallel import cpu


@pytest.mark.parametrize(
    ("files", "share"),
    [
        ({}, math.inf),
        ({"cpu.max": "max 100000\n"}, math.inf),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "nonsense"}, math.inf),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
    ],
    ids=["no files", "no limit", "v2", "unreadable", "v1 no limit", "v1"],
)
def test_usable_cores(
    files: dict[str, str], share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(cpu, "CGROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    expected = 8 if share == math.inf else math.ceil(share)
    assert cpu.usable_cores() == expected
    assert cpu.are_restricted() == (expected < 8)
