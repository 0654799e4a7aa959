"""How many workers there are, and the CPUs that Ray counts for each."""

import pytest

from tfexport.corpus import cluster
from tfexport.corpus.cluster import WorkerPlan
from tfexport.errors import ConfigError


@pytest.mark.parametrize(
    ("cores", "threads", "expected"),
    [
        ([1.0], 1, 0), ([0.0, 1.0], 1, 0), ([2.0], 2, 1), ([2.5], 2, 1), ([2.0], 1, 1),
        ([3.0], 2, 2), ([1.0, 1.0], 1, 1), ([2.0, 1.0], 2, 2),
    ],
)  # fmt: skip
def test_a_worker_leaves_a_cpu_for_the_other_steps_of_a_dataset(
    monkeypatch: pytest.MonkeyPatch, cores: list[float], threads: int, expected: int
) -> None:
    monkeypatch.setattr(cluster, "_cores", lambda: cores)
    plan = WorkerPlan(threads=threads)
    low, high = plan.bounds(spare=1)
    assert low == high - 1 or low == 1
    assert plan.cpus_with_others() == expected
    assert low * expected + 1 <= sum(cores)


@pytest.mark.parametrize(
    ("cores", "workers", "threads", "remedy"),
    [
        ([2.0], 2, 1, "Use 1, or (1, 2) to start with 1"),
        ([2.0], 5, 1, "Use 1, or (1, 5) to start with 1"),
        ([4.0], (4, 9), 1, "Use 3, or (3, 9)"),
        ([4.0], 2, 2, "2 of 2 CPUs each use all 4 CPUs of the cluster"),
        ([1.0, 1.0], 2, 1, "Use 1, or (1, 2)"),
        ([2.9, 1.9], 3, 1, "all 3 CPUs of the cluster"),
        ([1.0], 2, 1, "Use 1, for which one CPU less is then reserved"),
        ([2.0], 2, 2, "Use 1, for which one CPU less is then reserved"),
    ],
)
def test_workers_that_take_every_cpu_are_refused(
    monkeypatch: pytest.MonkeyPatch,
    cores: list[float],
    workers: int | tuple[int, int],
    threads: int,
    remedy: str,
) -> None:
    monkeypatch.setattr(cluster, "_cores", lambda: cores)
    with pytest.raises(ConfigError, match="workers: ") as raised:
        WorkerPlan(workers, threads).check_room_for_others()
    assert remedy in str(raised.value)
    assert "deadlock" in str(raised.value)


@pytest.mark.parametrize(
    ("cores", "workers", "threads"),
    [
        ([1.0], 1, 1), ([1.0], None, 1), ([1.0], (1, 8), 1), ([2.0], None, 1), ([2.0], 1, 1),
        ([2.0], (1, 2), 1), ([2.0], 1, 2), ([2.0], None, 2), ([3.0, 1.0], 1, 3), ([4.0], 3, 1),
    ],
)  # fmt: skip
def test_workers_that_leave_room_are_taken(
    monkeypatch: pytest.MonkeyPatch,
    cores: list[float],
    workers: int | tuple[int, int] | None,
    threads: int,
) -> None:
    monkeypatch.setattr(cluster, "_cores", lambda: cores)
    WorkerPlan(workers, threads).check_room_for_others()
