"""Workers that are threads of this process."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.corpus.files import marked
from tests.corpus.runs import JOB, SUFFIX, Marking, in_output, partition_of, run, with_inputs
from tfexport.corpus.row_decoder import Decoded, Row
from tfexport.corpus.stages import Step
from tfexport.corpus.thread_workers import ThreadWorkers


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    return with_inputs(tmp_path)


def thread_workers(decoder: Any, cores: int = 2) -> ThreadWorkers:
    return ThreadWorkers(decoder, JOB, cores)


def pieces(folder: Path, decoder: Any, names: Sequence[str] = ("text",)) -> list[Step]:
    with thread_workers(decoder) as workers:
        return list(workers.steps([partition_of(folder, name) for name in names]))


def test_outputs_are_those_of_any_other_run(folder: Path) -> None:
    for name in SUFFIX:
        run(partition_of(folder, name))
    expected = in_output(folder)
    for name in expected:
        (folder / "out" / name).unlink()
    named = {partition_of(folder, name).name: partition_of(folder, name) for name in SUFFIX}
    with thread_workers(Marking(JOB)) as workers:
        left = dict[str, int]()
        for step in workers.steps([*named.values()]):
            left[step.name] = left.get(step.name, step.pieces) - 1
            if not left[step.name]:
                workers.join(named[step.name], step)
        joined = []
        while workers.joining:
            joined += workers.joined(wait=True)
        assert workers.joined(wait=True) == []
    assert sorted(step.name for step, _ in joined) == sorted(named)
    assert all(step.failed is None and last.pieces == step.pieces for step, last in joined)
    assert in_output(folder) == expected


class Together(Marking):
    """Decodes a piece when another is decoded as well."""

    def __init__(self) -> None:
        super().__init__(JOB)
        self.meeting = threading.Barrier(2, timeout=30)

    def decode(self, rows: Sequence[Row], scores: bool) -> list[Decoded]:
        self.meeting.wait()
        return marked(rows)


def test_a_piece_is_decoded_while_another_is(folder: Path) -> None:
    steps = pieces(folder, Together(), ("text", "jsonl"))
    assert [step.piece for step in steps] == [None] * 6
    assert [step.outcome is not None for step in steps] == [True] * 6


class Alone(Marking):
    """Counts the pieces that are decoded at a time."""

    def __init__(self) -> None:
        super().__init__(JOB)
        self.running = self.most = 0

    def decode(self, rows: Sequence[Row], scores: bool) -> list[Decoded]:
        self.running += 1
        self.most = max(self.most, self.running)
        time.sleep(0.01)
        self.running -= 1
        return marked(rows)


def test_one_core_decodes_one_piece_at_a_time(folder: Path) -> None:
    decoder = Alone()
    with thread_workers(decoder, cores=1) as workers:
        assert len([*workers.steps([partition_of(folder, name) for name in SUFFIX])]) == 9
    assert decoder.most == 1


class Starving(Marking):
    """Has no memory for the second piece."""

    def decode(self, rows: Sequence[Row], scores: bool) -> list[Decoded]:
        if rows[0].number == 2:
            raise MemoryError("bad_alloc")
        return super().decode(rows, scores)


def test_a_run_without_memory_stops_and_can_go_on(folder: Path) -> None:
    steps = pieces(folder, Starving(JOB))
    assert [step.stopped is None for step in steps] == [True, False, True]
    assert "not enough memory" in str(steps[1].stopped)
    decoder = Marking(JOB)
    pieces(folder, decoder)
    assert decoder.calls == 1


def test_nothing_runs_on_when_the_run_ends(folder: Path) -> None:
    decoder = Marking(JOB)
    with thread_workers(decoder) as workers:
        steps = workers.steps([partition_of(folder, "text") for _ in range(9)])
        next(steps)
        steps.close()
        begun = decoder.calls
    assert begun <= 5
    assert decoder.calls == begun


class Wrong(Marking):
    """Has a fault."""

    def decode(self, rows: Sequence[Row], scores: bool) -> list[Decoded]:
        raise KeyError("a fault")


def test_a_fault_keeps_its_traceback(folder: Path) -> None:
    with pytest.raises(KeyError, match="a fault"):
        pieces(folder, Wrong(JOB))
