"""What ends a partition, what ends the run, and what ends a worker."""

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from tests.corpus.dying import Dying, Full
from tests.corpus.runs import (
    JOB,
    FailedError,
    Marking,
    StoppedError,
    clear_output,
    partition_of,
    run,
    scanned,
    translated,
    with_inputs,
)
from tfexport.corpus.ray_workers import MOST_ATTEMPTS
from tfexport.corpus.stages import Coordinator


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    return with_inputs(tmp_path)


@pytest.mark.parametrize(
    ("number", "end"),
    [
        (errno.ENOSPC, StoppedError), (errno.EDQUOT, StoppedError), (errno.EROFS, StoppedError),
        (errno.EIO, StoppedError), (errno.EACCES, FailedError), (errno.EPERM, FailedError),
        (errno.ENAMETOOLONG, FailedError), (errno.EFBIG, FailedError),
    ],
)  # fmt: skip
def test_only_what_every_output_meets_ends_the_run(
    folder: Path, number: int, end: type[Exception]
) -> None:
    room, complete = 0, False
    while not complete:
        clear_output(folder)
        try:
            run(partition_of(folder, disk=fs.PyFileSystem(Full(room, number))))
            complete = True
        except (StoppedError, FailedError) as error:
            assert type(error) is end  # noqa: PT017
            assert str(error).startswith(f"output {folder}/out/o.txt: [Errno {number}]")  # noqa: PT017
        room += 1
    assert room > 10


class Unreadable(Dying):
    """Where what is named so cannot be opened."""

    name = ""

    def open_input_stream(self, path: str) -> Any:
        if path.endswith(self.name):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return super().open_input_stream(path)


@pytest.mark.parametrize("name", ["/o.txt", "/.o.txt.done"])
def test_an_output_that_cannot_be_read_is_named(folder: Path, name: str) -> None:
    run(partition_of(folder))
    disk = Unreadable(float("inf"))
    disk.name = name
    (step,) = scanned(partition_of(folder, disk=fs.PyFileSystem(disk)))
    assert str(step.failed).startswith(f"output {folder}/out/o.txt: [Errno 13] Permission denied")


def test_an_input_that_cannot_be_read_fails_alone(folder: Path) -> None:
    partition = partition_of(folder)
    Path(partition.source.path).unlink()
    Path(partition.source.path).symlink_to("nothing")
    (step,) = scanned(partition)
    assert str(step.failed).startswith("cannot be read: [Errno 2]")


class Lost(Dying):
    """Where nothing can be found out about files any more."""

    def get_file_info(self, paths: Any) -> Any:
        if self.dead:
            raise OSError(errno.EIO, "Input/output error")
        return super().get_file_info(paths)


def test_an_input_that_is_lost_is_not_taken_for_the_output(folder: Path) -> None:
    disk = Lost(float("inf"))
    partition = partition_of(folder)
    source = replace(partition.source, system=fs.PyFileSystem(disk))
    steps = scanned(replace(partition, source=source))
    disk.dead = True
    for step in translated(steps, Marking(JOB)):
        assert (step.failed, step.stopped) == ("cannot be read: [Errno 5] Input/output error", None)


class Failing(Marking):
    """Cannot decode the second piece."""

    def __init__(self, error: Exception) -> None:
        super().__init__(JOB)
        self.error = error

    def decode(self, rows: Any, scores: bool) -> Any:
        if rows[0].number == 2:
            raise self.error
        return super().decode(rows, scores)


@pytest.mark.parametrize("error", [ValueError("what"), pa.ArrowInvalid("what")])
def test_an_error_of_a_piece_fails_its_partition(folder: Path, error: Exception) -> None:
    steps = translated(scanned(partition_of(folder)), Failing(error))
    assert [step.failed for step in steps] == [
        None, "its rows from 3 on cannot be translated: what", None,
    ]  # fmt: skip
    assert [step.outcome is None for step in steps] == [False, True, False]


class DiedError(BaseException):
    """A process that is no more."""


def test_a_worker_without_memory_dies(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(code: int) -> None:
        raise DiedError(code)

    monkeypatch.setattr("os._exit", die)
    with pytest.raises(DiedError, match="1"):
        translated(scanned(partition_of(folder)), Failing(MemoryError("bad_alloc")))


def test_a_piece_of_which_workers_die_fails_its_partition(folder: Path) -> None:
    coordinator, decoder = Coordinator(JOB), Marking(JOB)
    for _ in range(MOST_ATTEMPTS):
        coordinator.begin("in.txt\x001")
    steps = translated(scanned(partition_of(folder)), decoder, coordinator=coordinator)
    assert steps[1].failed == "5 workers died on its rows from 3 on, or lacked memory for them"
    assert (steps[0].failed, steps[2].failed, decoder.calls) == (None, None, 2)


def test_a_piece_that_comes_to_an_end_is_not_counted_on(folder: Path) -> None:
    coordinator = Coordinator(JOB)
    for _ in range(MOST_ATTEMPTS + 1):
        clear_output(folder)
        steps = translated(scanned(partition_of(folder)), Marking(JOB), coordinator=coordinator)
        assert [step.failed for step in steps] == [None] * 3
