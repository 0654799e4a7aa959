"""Workers that are threads of this process."""

import itertools
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.corpus.files import marked
from tests.corpus.runs import JOB, SUFFIX, Marking, in_output, partition_of, run, with_inputs
from tfexport.corpus.row_decoder import CorpusRow, RowResult
from tfexport.corpus.stages import PieceStep
from tfexport.corpus.thread_workers import ThreadWorkers
from tfexport.runtime.parallel.workers import StartError


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    return with_inputs(tmp_path)


def thread_workers(decoder: Any, cores: int = 2) -> ThreadWorkers:
    return ThreadWorkers(decoder, JOB, cores)


def pieces(folder: Path, decoder: Any, names: Sequence[str] = ("text",)) -> list[PieceStep]:
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
    """Decodes no piece before ``expected`` are being decoded at a time."""

    def __init__(self, expected: int) -> None:
        super().__init__(JOB)
        self.expected, self.started = expected, itertools.count(1)
        self.have_met = threading.Event()

    def decode(self, rows: Sequence[CorpusRow], scores: bool) -> list[RowResult]:
        if next(self.started) >= self.expected:
            self.have_met.set()
        assert self.have_met.wait(30)
        return marked(rows)


def test_a_piece_is_decoded_while_another_is(folder: Path) -> None:
    steps = pieces(folder, Together(2), ("text", "jsonl"))
    assert [step.piece for step in steps] == [None] * 6
    assert [step.outcome is not None for step in steps] == [True] * 6


class Alone(Marking):
    """Counts the pieces that are decoded at a time."""

    def __init__(self) -> None:
        super().__init__(JOB)
        self.running = self.most = 0

    def decode(self, rows: Sequence[CorpusRow], scores: bool) -> list[RowResult]:
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

    def decode(self, rows: Sequence[CorpusRow], scores: bool) -> list[RowResult]:
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


class Slow(Marking):
    """Decodes the first piece at once, others when it is let, and says that one has begun."""

    def __init__(self) -> None:
        super().__init__(JOB)
        self.begun, self.let, self.waiting = threading.Event(), threading.Event(), False

    def decode(self, rows: Sequence[CorpusRow], scores: bool) -> list[RowResult]:
        if rows[0].number:
            self.begun.set()
            self.waiting = True
            self.let.wait(30)
            self.waiting = False
        return super().decode(rows, scores)


def test_a_run_that_ends_waits_for_what_it_has_begun_and_writes_nothing_more(folder: Path) -> None:
    decoder = Slow()
    threading.Timer(0.2, decoder.let.set).start()
    with thread_workers(decoder) as workers:
        steps = workers.steps([partition_of(folder, name) for name in SUFFIX])
        next(steps)
        steps.close()
        begun, written = decoder.calls, in_output(folder)
    assert begun < 9
    time.sleep(0.1)
    assert (decoder.calls, in_output(folder)) == (begun, written)


def test_who_interrupts_does_not_wait_and_finds_nothing_more_written(folder: Path) -> None:
    decoder = Slow()
    steps = thread_workers(decoder).steps([partition_of(folder, "text")])
    next(steps)
    assert decoder.begun.wait(30)
    with pytest.raises(KeyboardInterrupt):
        steps.throw(KeyboardInterrupt())
    assert decoder.waiting
    decoder.let.set()
    time.sleep(0.2)
    kept = [name for name in in_output(folder) if ".parts/" in name]
    assert len(kept) == 1


class Ended(Marking):
    """Decodes with threads that are started no more."""

    def decode(self, rows: Sequence[CorpusRow], scores: bool) -> list[RowResult]:
        raise StartError("cannot schedule new futures after interpreter shutdown")


def test_a_piece_that_nobody_decodes_is_not_kept(folder: Path) -> None:
    with pytest.raises(StartError):
        pieces(folder, Ended(JOB))
    assert [name for name in in_output(folder) if ".parts/" in name] == []


def test_arrow_lacking_memory_is_no_fault_of_the_rows(folder: Path) -> None:
    class Arrow(Marking):
        def decode(self, rows: Sequence[CorpusRow], scores: bool) -> list[RowResult]:
            raise pa.ArrowMemoryError("malloc")

    assert {str(step.stopped) for step in pieces(folder, Arrow(JOB))} == {
        "not enough memory; use fewer workers"
    }


def test_small_files_are_decoded_as_many_at_a_time_as_there_are_cores(tmp_path: Path) -> None:
    found = []
    for number in range(8):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "in.txt").write_text("a\n")
        (folder / "out").mkdir()
        found.append(partition_of(folder, "text"))
    with thread_workers(Together(4), cores=4) as workers:
        assert len([*workers.steps(found)]) == 8


class Wrong(Marking):
    """Has a fault."""

    def decode(self, rows: Sequence[CorpusRow], scores: bool) -> list[RowResult]:
        raise KeyError("a fault")


def test_a_fault_keeps_its_traceback(folder: Path) -> None:
    with pytest.raises(KeyError, match="a fault"):
        pieces(folder, Wrong(JOB))
