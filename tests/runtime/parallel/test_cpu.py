"""What the process may use of the machine, as the kernel's files say it."""

import math
import os
from pathlib import Path

import pytest

from tfexport.runtime.parallel import cpu

pytestmark = pytest.mark.no_model

V2 = "35 24 0:30 {root} {at} rw,nosuid - cgroup2 cgroup2 rw\n"
V1 = (
    "32 31 0:29 / /elsewhere rw,relatime shared:9 - cgroup cgroup rw,cpuset\n"
    "33 31 0:30 {root} {at} rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
    "34 31 0:38 / /nothing rw,relatime - cgroup2 cgroup2 rw\n"
)
V1_GROUPS = "9:cpuset:/\n3:cpu,cpuacct:{group}\n0::/\n"


def v1(quota: int, period: int = 100_000, at: str = "") -> dict[str, str]:
    return {f"{at}cpu.cfs_quota_us": f"{quota}\n", f"{at}cpu.cfs_period_us": f"{period}\n"}


@pytest.mark.parametrize(
    ("mount", "root", "group", "files", "share"),
    [
        (V2, "/", "0::/\n", {}, math.inf),
        (V2, "/", "0::/\n", {"cpu.max": "max 100000\n"}, math.inf),
        (V2, "/", "0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        (V2, "/", "0::/\n", {"cpu.max": "nonsense"}, math.inf),
        (V2, "/", "0::/a.slice/b.service\n", {"a.slice/b.service/cpu.max": "200000 100000"}, 2),
        (V2, "/", "0::/a/b\n", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, 3),
        (V2, "/", "0::/a/b\n", {"a/cpu.max": "100000 100000", "a/b/cpu.max": "500000 100000"}, 1),
        (V2, "/", "0::/a\n", {"b/cpu.max": "100000 100000"}, math.inf),
        (V2, "/", "0::/../other\n", {"cpu.max": "200000 100000"}, 2),
        (V1, "/", V1_GROUPS.format(group="/"), v1(-1), math.inf),
        (V1, "/", V1_GROUPS.format(group="/"), v1(50_000), 0.5),
        (V1, "/", V1_GROUPS.format(group="/t"), v1(-1) | v1(250_000, at="t/"), 2.5),
        (V1, "/docker/1", V1_GROUPS.format(group="/docker/1"), v1(400_000), 4),
        (V1, "/docker/1", V1_GROUPS.format(group="/docker/1/t"), v1(200_000, at="t/"), 2),
        (V1, "/docker/1", V1_GROUPS.format(group="/elsewhere"), v1(300_000), 3),
    ],
    ids=[
        "no files", "no limit", "v2", "unreadable", "a service", "its slice", "the least", "other",
        "outside of the namespace", "v1 no limit", "v1", "v1 group", "v1 container",
        "v1 group in a container", "v1 not in what is mounted",
    ],
)  # fmt: skip
def test_usable_cores(
    mount: str,
    root: str,
    group: str,
    files: dict[str, str],
    share: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups, process = tmp_path / "cgroup", tmp_path / "self"
    for folder in (groups, process):
        folder.mkdir()
    for name, text in files.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(text)
    (process / "cgroup").write_text(group)
    (process / "mountinfo").write_text(
        "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n" + mount.format(root=root, at=groups)
    )
    monkeypatch.setattr(cpu, "PROCESS", process)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    expected = 8 if share == math.inf else math.ceil(share)
    assert cpu.usable_cores() == expected
    assert cpu.are_restricted() == (expected < 8)


def test_where_the_kernel_has_no_such_files_all_cores_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "PROCESS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert cpu.usable_cores() == 8
