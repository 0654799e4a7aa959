"""What a run counts: pieces, bytes, partitions that fail, and the time that is left."""

import time
from dataclasses import replace
from typing import Any

import pytest

from tests.corpus.files import LOCAL
from tfexport.corpus.assembly import Outcome
from tfexport.corpus.partitions import Partition
from tfexport.corpus.pieces import SourceFile
from tfexport.corpus.report import MOST_NAMED, RunProgress
from tfexport.corpus.stages import PieceStep


def progress_of(**sizes: int) -> RunProgress:
    place = SourceFile(LOCAL, "nowhere")
    return RunProgress(
        [Partition(name, "text", place, place, size) for name, size in sizes.items()]
    )


def piece(name: str, pieces: int = 4, **told: Any) -> PieceStep:
    return PieceStep(name, pieces, outcome=Outcome(10, 30), **told)


def test_a_partition_is_joined_with_its_last_piece() -> None:
    progress = progress_of(a=100, b=100)
    ends = [progress.take(piece(name, 2)) for name in "abba"]
    assert ends == [False, False, True, True]
    for name in "ab":
        progress.take_joined(
            PieceStep(name, 2, outcome=Outcome(20, 60, 1, ((3, "why"),))), name == "a"
        )
    report = progress.end()
    assert (report.finished, report.rows, report.decoded_rows, report.tokens) == (2, 40, 40, 120)
    assert (report.outdated, report.errors, report.with_errors, report.unfinished) == (1, 2, 2, 0)
    assert not report.complete


def test_an_old_output_counts_as_replaced_when_it_is() -> None:
    progress = progress_of(a=100, b=100, c=100)
    for name in "abc":
        assert progress.take(piece(name, 1, outdated=True))
    progress.take_joined(PieceStep("a", 1, outcome=Outcome(10)), outdated=True)
    progress.take_joined(PieceStep("b", failed="a piece is missing"), outdated=True)
    progress.take_joined(PieceStep("c", stopped="a full disk"), outdated=True)
    report = progress.end()
    assert (report.outdated, report.finished, report.failures, report.unfinished) == (1, 1, 1, 1)
    assert report.stopped == "a full disk"


def test_pieces_of_earlier_runs_are_not_decoded_by_this_one() -> None:
    progress = progress_of(a=100)
    progress.take(piece("a", 2, reused=True))
    progress.take(piece("a", 2))
    assert (progress.report.decoded_rows, progress.report.tokens) == (10, 30)


def test_bytes_of_failed_files_need_no_more_work() -> None:
    progress = progress_of(a=100, b=100, c=200)
    progress.take(PieceStep("a", failed="cannot be read"))
    assert progress.advance().done == pytest.approx(0.25)
    progress.take(piece("b"))
    progress.take(PieceStep("b", 4, failed="5 workers died"))
    assert progress.advance().done == pytest.approx(0.5)
    # Its other pieces come all the same, and may fail too.
    assert not progress.take(piece("b"))
    assert not progress.take(PieceStep("b", 4, failed="was changed"))
    assert progress.advance().done == pytest.approx(0.5)
    assert progress.report.failed == {"a": "cannot be read", "b": "5 workers died"}
    assert (progress.report.failures, progress.report.unfinished) == (2, 1)
    assert progress.advance().rows == 20


def test_the_time_that_is_left_is_by_this_runs_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = progress_of(old=600, failed=100, going_on=100, new=200)
    progress.take(PieceStep("old", outcome=Outcome(5), reused=True))
    progress.take(PieceStep("failed", failed="cannot be read"))
    progress.take(piece("going_on", 2, reused=True))
    assert progress.advance().seconds_left is None
    now += 10
    progress.take(piece("new"))  # 50 bytes in 10 s, and 200 are left
    advance = progress.advance()
    assert advance.done == pytest.approx(0.8)
    assert advance.seconds_left == pytest.approx(40)
    assert progress.end().seconds == 10


def test_a_report_names_some_of_many_files() -> None:
    names = [f"f{number}" for number in range(3 * MOST_NAMED)]
    progress = progress_of(**dict.fromkeys(names, 1), stopped=1)
    bad = Outcome(2, 3, 1, ((1, "why"),))
    for name in names[: MOST_NAMED + 7]:
        progress.take(PieceStep(name, failed="cannot be read"))
    for name in names[MOST_NAMED + 7 : 2 * MOST_NAMED]:
        progress.take(PieceStep(name, outcome=bad, reused=True))
    for name in names[2 * MOST_NAMED :]:
        progress.take_joined(PieceStep(name, 1, outcome=bad), outdated=False)
    values = progress.end().to_dict()
    assert (len(values["failed"]), values["failures"]) == (MOST_NAMED, MOST_NAMED + 7)
    assert (len(values["row_errors"]), values["with_errors"]) == (MOST_NAMED, 2 * MOST_NAMED - 7)
    assert (values["errors"], values["unfinished"]) == (2 * MOST_NAMED - 7, 1)


def test_a_corpus_is_complete_when_every_row_is() -> None:
    whole = progress_of(a=1)
    whole.take_joined(PieceStep("a", 1, outcome=Outcome(1, 1)), outdated=False)
    report = whole.end()
    assert report.complete
    for wrong in ({"errors": 1}, {"failures": 1}, {"stopped": "full"}, {"partitions": 2}):
        assert not replace(report, **wrong).complete
    assert progress_of(a=0).advance().done == 1.0
