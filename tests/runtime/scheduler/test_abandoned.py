"""Searches of rows that nobody waits for any more end between two steps."""

import dataclasses
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.runtime.scheduler.calls import submit
from tfexport.errors import DeadlineError
from tfexport.runtime.engine import Engine
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.scheduler import Scheduler
from tfexport.runtime.scheduler.submission import Submission
from tfexport.runtime.search import AbandonedError, Request, batch, decode

LONG: dict[str, Any] = {"max_length": 60, "min_length": 59}
DYNAMIC: list[dict[str, Any]] = [
    {"return_attention": True},
    {"return_attention": True, "beam_size": 2},
    {"return_attention": True, "sampling": True},
    {"return_alternatives": True, "num_hypotheses": 3},
]


class Steps:
    """Counts the steps of searches, and makes them slow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.begun, advance = 0, threading.Event(), batch.advance

        def slow(*args: Any) -> Any:
            self.count += 1
            self.begun.set()
            time.sleep(0.02)
            return advance(*args)

        monkeypatch.setattr(batch, "advance", slow)


@pytest.fixture(name="steps")
def _steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


@pytest.mark.parametrize("keywords", DYNAMIC, ids=str)
def test_late_rows_end(
    keywords: dict[str, Any], schedule: Callable[..., Scheduler], engine: Engine, steps: Steps
) -> None:
    running = schedule(slots=8)
    late = submit(running, engine, 2, deadline=time.monotonic() + 60, **LONG, **keywords)
    assert steps.begun.wait(30)
    late._deadline = time.monotonic()
    with pytest.raises(DeadlineError):
        late.future.result(30)
    assert running.drain(30)
    assert 0 < steps.count < 40


@pytest.mark.parametrize("keywords", DYNAMIC, ids=str)
def test_cancelled_rows_end(
    keywords: dict[str, Any], schedule: Callable[..., Scheduler], engine: Engine, steps: Steps
) -> None:
    running = schedule(slots=8)
    cancelled = submit(running, engine, 2, **LONG, **keywords)
    assert steps.begun.wait(30)
    cancelled.cancel()
    assert running.drain(30)
    assert steps.count < 40


def test_rows_go_on_beside_one_that_is_over(
    schedule: Callable[..., Scheduler], engine: Engine, steps: Steps
) -> None:
    running = schedule(slots=8)
    options = {**LONG, "return_attention": True}
    first = submit(running, engine, **options)  # alone, so that the others wait and share a batch
    assert steps.begun.wait(30)
    late = submit(running, engine, deadline=time.monotonic() + 60, **options)
    other = submit(running, engine, **options)
    assert len(first.future.result(30)[0][0].tokens) >= 59
    late._deadline = time.monotonic()
    with pytest.raises(DeadlineError):
        late.future.result(30)
    assert not other.future.done()
    assert len(other.future.result(30)[0][0].tokens) >= 59


@pytest.mark.parametrize("beam_size", [1, 2])
def test_a_search_in_one_call_ends(beam_size: int, engine: Engine, steps: Steps) -> None:
    given = {"beam_size": beam_size, "max_length": 60}
    options, _ = engine.resolver.resolve(given, [None])
    requests = [Request([5, 7])] * 64
    over = dataclasses.replace(options, going=lambda: False)
    with pytest.raises(AbandonedError):
        decode(engine.model, requests, over)
    going = dataclasses.replace(options, going=lambda: True)
    assert decode(engine.model, requests, going) == decode(engine.model, requests, options)
    assert not steps.count


def test_rows_of_a_submission_may_end_at_the_same_time(engine: Engine) -> None:
    options, _ = engine.resolver.resolve({}, [None])
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        found = _SlowCount([Request([5, 7], place) for place in range(8)], options, None, None)
        ends = [threading.Thread(target=found.finish, args=(place, [Hypothesis([place], 0.0)]))
                for place in range(8)]  # fmt: skip
        for end in ends:
            end.start()
        for end in ends:
            end.join()
        hypotheses = found.future.result(30)
    finally:
        sys.setswitchinterval(before)
    assert [row[0].tokens for row in hypotheses] == [[place] for place in range(8)]


class _SlowCount(Submission):
    """A submission between whose reading and writing of the count another thread may come."""

    _count = 0

    @property
    def _left(self) -> int:
        count = self._count
        time.sleep(0.005)
        return count

    @_left.setter
    def _left(self, count: int) -> None:
        self._count = count
