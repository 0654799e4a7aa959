"""Queue, deadlines, cancelling and fairness of a scheduler."""

import dataclasses
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.scheduler.calls import LONG, Gate, submit
from tests.runtime.scheduler.drawn import same
from tfexport.bundle import open_bundle, write_manifest
from tfexport.errors import DeadlineError, QueueFullError
from tfexport.runtime import Translator
from tfexport.runtime.engine import Engine
from tfexport.runtime.options import Step
from tfexport.runtime.parallel.cpu import ThreadLayout
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.scheduler import Observer, Scheduler
from tfexport.runtime.scheduler.scheduler import BatchWorkers
from tfexport.runtime.scheduler.sounds import ONE_WINDOW
from tfexport.runtime.scheduler.submission import (
    Ended,
    Hypotheses,
    RunningBatch,
    Submission,
    SubmissionRow,
)
from tfexport.runtime.search import Request


def test_a_full_queue_refuses_at_once(schedule: Callable[..., Scheduler], engine: Engine) -> None:
    scheduler, gate = schedule(max_queue=2, slots=1), Gate()
    running = submit(scheduler, engine, on_step=gate, **LONG)
    assert gate.reached.wait(30)
    waiting = [submit(scheduler, engine, rows=3) for _ in range(2)]
    assert scheduler.stats().waiting_requests == 2
    assert scheduler.stats().waiting_rows == 6
    with pytest.raises(QueueFullError) as full:
        submit(scheduler, engine)
    assert full.value.retry_after > 0
    gate.open.set()
    assert all(len(one.future.result(30)) for one in [running, *waiting])
    submit(scheduler, engine).future.result(30)


def test_a_row_leaves_at_its_deadline(schedule: Callable[..., Scheduler], engine: Engine) -> None:
    scheduler = schedule(slots=2)
    late = submit(
        scheduler, engine, deadline=time.monotonic() + 0.05,
        on_step=lambda step: time.sleep(0.02), **LONG,
    )  # fmt: skip
    with pytest.raises(DeadlineError):
        late.future.result(30)
    assert scheduler.drain(10)
    assert scheduler.stats().running_rows == 0


def test_a_deadline_counts_for_rows_that_wait(
    schedule: Callable[..., Scheduler], engine: Engine
) -> None:
    scheduler, gate = schedule(slots=1), Gate()
    running = submit(scheduler, engine, on_step=gate)
    assert gate.reached.wait(30)
    late = submit(scheduler, engine, deadline=time.monotonic())
    gate.open.set()
    with pytest.raises(DeadlineError):
        late.future.result(30)
    assert running.future.result(30)


def test_a_cancelled_row_gives_its_slot_back(
    schedule: Callable[..., Scheduler], engine: Engine
) -> None:
    scheduler, gate = schedule(slots=1), Gate()
    running = submit(scheduler, engine, on_step=gate, **LONG)
    assert gate.reached.wait(30)
    other = submit(scheduler, engine)
    running.cancel()
    gate.open.set()
    assert other.future.result(30)
    with pytest.raises(CancelledError):
        running.future.result(30)


def test_rows_of_a_long_request_do_not_hold_up_a_short_one(
    schedule: Callable[..., Scheduler], engine: Engine
) -> None:
    scheduler, gate, ended = schedule(slots=2), Gate(), list[str]()
    first = submit(scheduler, engine, on_step=gate)
    assert gate.reached.wait(30)
    long = submit(scheduler, engine, rows=200)
    short = submit(scheduler, engine)
    long.future.add_done_callback(lambda _: ended.append("long"))
    short.future.add_done_callback(lambda _: ended.append("short"))
    gate.open.set()
    for one in (first, long, short):
        one.future.result(60)
    assert ended == ["short", "long"]


def test_a_request_whose_rows_run_waits_no_more(
    schedule: Callable[..., Scheduler], engine: Engine
) -> None:
    scheduler, gate = schedule(max_queue=1, slots=1), Gate()
    submit(scheduler, engine, on_step=gate, **LONG)
    assert gate.reached.wait(30)
    assert scheduler.stats().waiting_requests == 0
    waiting = submit(scheduler, engine)
    waiting.cancel()  # makes room in the queue
    other = submit(scheduler, engine)
    gate.open.set()
    assert other.future.result(30)


def test_steps_are_told_in_order(schedule: Callable[..., Scheduler], engine: Engine) -> None:
    scheduler = schedule(slots=4)
    for keywords in ({}, {"sampling": True, "seed": 4}, {"return_attention": True}):
        steps: list[Step] = []
        found = submit(scheduler, engine, on_step=steps.append, max_length=9, **keywords)
        (hypotheses,) = found.future.result(30)
        told = [step.token for step in steps]
        assert told[: len(hypotheses[0].tokens)] == hypotheses[0].tokens
        assert [step.position for step in steps] == list(range(len(steps)))
        assert [step.last for step in steps] == [False] * (len(steps) - 1) + [True]


def test_a_row_wider_than_the_batch_is_decoded_alone(
    schedule: Callable[..., Scheduler], engine: Engine, tiny_bundle: Path
) -> None:
    found = submit(schedule(slots=4), engine, rows=2, beam_size=6, num_hypotheses=6)
    expected = Translator(tiny_bundle, threads=1).generate(
        [[5, 7, 9], [6, 7, 9]], beam_size=6, num_hypotheses=6
    )
    assert same(found.future.result(30), [result.hypotheses for result in expected])


def test_figures_are_told(schedule: Callable[..., Scheduler], engine: Engine) -> None:
    class Counting(Observer):
        def __init__(self) -> None:
            self.found: dict[str, list[float]] = {}

        def _add(self, name: str, value: float) -> None:
            self.found.setdefault(name, []).append(value)

        def batch(self, rows: int) -> None:
            self._add("batch", rows)

        def queued(self, seconds: float) -> None:
            self._add("queued", seconds)

        def first_token(self, seconds: float) -> None:
            self._add("first_token", seconds)

        def generated(self, tokens: int) -> None:
            self._add("generated", tokens)

        def encoded(self, tokens: int) -> None:
            self._add("encoded", tokens)

    counting = Counting()
    scheduler = schedule(counting, slots=4)
    found = submit(scheduler, engine, rows=6, max_length=5).future.result(30)
    assert sorted(counting.found["generated"]) == sorted(len(row[0].tokens) for row in found)
    assert counting.found["encoded"] == [3] * 6
    assert len(counting.found["queued"]) == len(counting.found["first_token"]) == 6
    assert max(counting.found["batch"]) == 4


@pytest.mark.onnxruntime
def test_without_the_graph_rows_are_batched_dynamically(tiny_bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a.bundle"  # as portable ones are, for example
    shutil.copytree(tiny_bundle, folder)
    (folder / "step.onnx").unlink()
    manifest = open_bundle(tiny_bundle)
    graphs = {role: name for role, name in manifest.graphs.items() if role != "step"}
    write_manifest(folder, dataclasses.replace(manifest, graphs=graphs))
    engine = Engine(folder, ThreadLayout(threads=1))
    scheduler = Scheduler(engine)
    assert not scheduler.continuous
    assert "step.onnx" in scheduler.reason
    found = submit(scheduler, engine, rows=5).future.result(30)
    rows = [[5 + i % 9, 7, 9] for i in range(5)]
    expected = Translator(folder, threads=1).generate(rows)
    assert same(found, [result.hypotheses for result in expected])
    scheduler.close()


class _OneAStep(RunningBatch):
    """A batch of which a row ends in each step."""

    def __init__(self, futures: "list[Future[Hypotheses]]", capacity: int = 4) -> None:
        super().__init__(capacity)
        self._futures, self.done = futures, list[int]()  # futures done before each step
        self.reached, self.open = threading.Event(), threading.Event()

    def step(self) -> Ended:
        self.reached.set()
        assert self.open.wait(30)
        self.done.append(sum(future.done() for future in self._futures))
        return [(self.rows.pop(0), [Hypothesis([5], 0.0)])]


@pytest.mark.no_model
@pytest.mark.parametrize(
    ("in_groups", "done"), [(False, [*range(10)]), (True, [0, 1, 1, 3, 3, 5, 5, 7, 8, 9])]
)
def test_results_are_handed_over_in_groups_while_rows_wait(
    in_groups: bool, done: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfexport.runtime.scheduler.scheduler._HELD_SECONDS", 60.0)
    submissions = [Submission([Request([5], 0, ())], ONE_WINDOW, None, None) for _ in range(10)]
    batch = _OneAStep([each.future for each in submissions])
    workers = BatchWorkers(
        "test", [batch], Observer(), np.zeros(1, np.int32) if in_groups else None
    )
    workers.submit(submissions[0])
    assert batch.reached.wait(30)
    for each in submissions[1:]:
        workers.submit(each)
    batch.open.set()
    for each in submissions:
        assert each.future.result(30) == [[Hypothesis([5], 0.0)]]
    workers.close()
    assert batch.done == done


class _Clock:
    """Stands for the module ``time``; only steps take time."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class _TimedSteps(_OneAStep):
    """Steps of these milliseconds, of which a row ends in each; the last ones take none."""

    def __init__(
        self, futures: "list[Future[Hypotheses]]", clock: _Clock, steps: Sequence[int]
    ) -> None:
        super().__init__(futures, capacity=12)
        self._clock, self._steps = clock, iter(steps)

    def step(self) -> Ended:
        self.reached.set()
        assert self.open.wait(30)
        self._clock.now += next(self._steps, 0) / 1000
        return super().step()


@pytest.mark.no_model
@pytest.mark.parametrize(
    ("steps", "done"),
    [
        ((9,) * 9, [0, 0, 0, 0, 4, 4, 4, 4, 8]),
        ((15,) * 5, [0, 0, 2, 2, 4]),  # a third step would end after 45 ms
        ((15, 25, 9, 9), [0, 0, 2, 2]),  # the second one took longer than the first
        ((30, 9), [0, 1]),
        ((2,) * 12, [0, 0, 0, 0, 0, 0, 6, 6, 6, 6, 6, 6]),  # half of the slots
    ],
)
def test_results_are_held_for_a_bounded_time(
    steps: Sequence[int], done: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted from the beginning of the step in which the first of them ended."""
    clock = _Clock()
    monkeypatch.setattr("tfexport.runtime.scheduler.scheduler.time", clock)
    submissions = [Submission([Request([5], 0, ())], ONE_WINDOW, None, None) for _ in range(40)]
    batch = _TimedSteps([each.future for each in submissions], clock, steps)
    workers = BatchWorkers("test", [batch], Observer(), np.zeros(1, np.int32))
    for each in submissions:
        workers.submit(each)
    batch.open.set()
    for each in submissions:
        each.future.result(30)
    workers.close()
    assert batch.done[: len(done)] == done


class _Entering(_TimedSteps):
    """Also notes how many rows enter after the first ones."""

    def __init__(self, clock: _Clock, step: int) -> None:
        super().__init__([], clock, (step,) * 9)
        self.entered = list[int]()

    def enter(self, rows: Sequence[SubmissionRow]) -> None:
        super().enter(rows)
        self.entered.append(len(rows))


@pytest.mark.no_model
@pytest.mark.parametrize(
    ("step", "entered"),
    [
        (4, [12, 6]),  # half of the slots, after 24 ms
        (9, [12, 4, 4]),  # 36 ms
        (20, [12, 3, 3, 3]),  # a quarter at least
    ],
)
def test_rows_enter_a_full_batch_together(
    step: int, entered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = _Clock()
    monkeypatch.setattr("tfexport.runtime.scheduler.scheduler.time", clock)
    submission = Submission([Request([5], n, ()) for n in range(60)], ONE_WINDOW, None, None)
    batch = _Entering(clock, step)
    batch.open.set()
    workers = BatchWorkers("test", [batch], Observer())
    workers.submit(submission)
    submission.future.result(30)
    workers.close()
    assert batch.entered[: len(entered)] == entered
