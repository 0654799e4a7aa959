"""How many workers there are, and the CPUs that Ray counts for each."""

import pytest

from tfexport.corpus import cluster
from tfexport.corpus.cluster import WorkerPlan


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
    assert plan.cpus_beside_others() == expected
    assert low * expected + 1 <= sum(cores)
