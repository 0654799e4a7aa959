"""Faults of callers and models, and the end of a scheduler."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.scheduler.calls import LONG, Gate, submit
from tests.runtime.scheduler.drawn import same
from tfexport.errors import BundleError, ClosedSchedulerError, QueueFullError
from tfexport.runtime import Translator
from tfexport.runtime.engine import Engine
from tfexport.runtime.options import Step
from tfexport.runtime.scheduler import Scheduler, Submission
from tfexport.runtime.scheduler.continuous import SearchSequence
from tfexport.runtime.search import Request


def test_a_callback_that_fails_costs_no_other_caller(
    schedule: Callable[..., Scheduler], engine: Engine, tiny_bundle: Path
) -> None:
    scheduler, gate = schedule(slots=8), Gate()
    blocking = submit(scheduler, engine, on_step=gate)
    assert gate.reached.wait(30)

    def fail(step: Step) -> None:
        raise RuntimeError("of the caller's")

    broken = submit(scheduler, engine, on_step=fail)
    other = submit(scheduler, engine, rows=3)
    gate.open.set()
    with pytest.raises(RuntimeError, match="of the caller's"):
        broken.future.result(30)
    rows = [[5 + i % 9, 7, 9] for i in range(3)]
    expected = Translator(tiny_bundle, threads=1).generate(rows)
    assert same(other.future.result(30), [result.hypotheses for result in expected])
    assert blocking.future.result(30)


def submit_unknown(scheduler: Scheduler, engine: Engine, **keywords: Any) -> Submission:
    """Submit a row that onnxruntime fails at: no embedding has its id."""
    options, _ = engine.resolver.resolve(keywords, [None])
    return scheduler.submit([Request([5, 10_000])], options)


@pytest.mark.onnxruntime
def test_a_failing_model_fails_its_rows_and_the_next_ones_run(
    schedule: Callable[..., Scheduler], engine: Engine
) -> None:
    scheduler = schedule(slots=4)
    with pytest.raises(BundleError, match="failed in onnxruntime"):
        submit_unknown(scheduler, engine).future.result(30)
    assert submit(scheduler, engine).future.result(30)


@pytest.mark.onnxruntime
@pytest.mark.parametrize("keywords", [{}, {"return_attention": True}], ids=str)
def test_a_fault_of_some_rows_ends_their_requests(
    keywords: dict[str, Any], schedule: Callable[..., Scheduler], engine: Engine
) -> None:
    scheduler = schedule(slots=4)
    for failing in [submit_unknown(scheduler, engine, **keywords) for _ in range(3)]:
        with pytest.raises(BundleError, match="failed in onnxruntime"):
            failing.future.result(30)
    assert scheduler.drain(30)


def test_an_entry_that_fails_costs_no_other(
    schedule: Callable[..., Scheduler], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, gate = schedule(slots=4), Gate()
    running = submit(scheduler, engine, on_step=gate)
    assert gate.reached.wait(30)
    monkeypatch.setattr(SearchSequence, "take", lambda *taken: 1 / 0)
    broken = submit(scheduler, engine, beam_size=2)
    gate.open.set()
    with pytest.raises(ZeroDivisionError):
        broken.future.result(30)
    assert running.future.result(30)


def test_draining_finishes_what_was_accepted(
    schedule: Callable[..., Scheduler], engine: Engine
) -> None:
    scheduler = schedule(slots=2)
    accepted = [submit(scheduler, engine, rows=4) for _ in range(5)]
    accepted += [submit(scheduler, engine, beam_size=2, return_attention=True) for _ in range(3)]
    assert scheduler.drain(60)
    assert all(one.future.done() and one.future.result(0) for one in accepted)
    with pytest.raises(QueueFullError, match="no more work"):
        submit(scheduler, engine)


def test_draining_gives_up_after_its_time(
    schedule: Callable[..., Scheduler], engine: Engine
) -> None:
    scheduler, gate = schedule(slots=1), Gate()
    submit(scheduler, engine, on_step=gate)
    assert gate.reached.wait(30)
    assert not scheduler.drain(0.05)
    gate.open.set()
    assert scheduler.drain(30)


def test_closing_fails_what_is_left(schedule: Callable[..., Scheduler], engine: Engine) -> None:
    scheduler, gate = schedule(slots=1), Gate()
    running = submit(scheduler, engine, on_step=gate, **LONG)
    assert gate.reached.wait(30)
    waiting = submit(scheduler, engine)
    closing = threading.Thread(target=scheduler.close)
    closing.start()
    with pytest.raises(ClosedSchedulerError):  # it is closed before rows that wait fail
        waiting.future.result(30)
    gate.open.set()
    closing.join(30)
    with pytest.raises(ClosedSchedulerError):
        running.future.result(30)
