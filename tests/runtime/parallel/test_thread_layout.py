"""Threads of a pool that several workers share."""

from typing import Any

import pytest

from tfexport.errors import ConfigError
from tfexport.runtime.parallel import cpu
from tfexport.runtime.parallel.cpu import ThreadLayout

pytestmark = pytest.mark.no_model


@pytest.mark.parametrize(
    ("workers", "threads", "restricted", "size"),
    [
        (1, 1, False, 1),
        (1, 4, False, 4),
        (3, 4, False, 10),  # three workers are threads themselves
        (1, 0, False, 0),  # onnxruntime sees the whole machine
        (1, 0, True, 6),  # and would take cores that a container may not use
        (2, 0, False, 5),
        (4, 0, True, 1),
        (16, 0, False, 1),  # more workers than cores: one thread each
    ],
)
def test_workers_share_one_pool(
    monkeypatch: pytest.MonkeyPatch, workers: int, threads: int, restricted: bool, size: int
) -> None:
    monkeypatch.setattr(cpu, "usable_cores", lambda: 6)
    monkeypatch.setattr(cpu, "are_restricted", lambda: restricted)
    assert ThreadLayout(workers, threads).pool_size() == size


def test_four_batches_a_worker_may_wait_unless_it_is_said() -> None:
    assert ThreadLayout(3).most_waiting == 12
    assert ThreadLayout(3, queue_size=2).most_waiting == 2


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"workers": 0}, ["workers"]),
        ({"threads": None}, ["threads"]),
        ({"threads": True}, ["threads"]),
        ({"workers": 1.0, "threads": -1, "queue_size": 0}, ["threads", "workers", "queue_size"]),
    ],
)
def test_every_bad_number_is_named(values: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        ThreadLayout(**values)
    assert str(caught.value).count("is not an integer from") == len(names)
    assert all(f"{name}: " in str(caught.value) for name in names)
