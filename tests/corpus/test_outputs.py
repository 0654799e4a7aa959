"""Outputs next to which other files are, appear or are named."""

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from tests.corpus.dying import Dying
from tests.corpus.files import LOCAL
from tests.corpus.runs import (
    JOB,
    FailedError,
    Marking,
    in_output,
    partition_of,
    run,
    scanned,
    translated,
    with_inputs,
)
from tfexport.corpus import assembly, filesystem
from tfexport.corpus.partitions import Partition
from tfexport.corpus.pieces import SourceFile

FOREVER = float("inf")


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    return with_inputs(tmp_path)


def named(folder: Path, name: str) -> Partition:
    return replace(partition_of(folder), target=SourceFile(LOCAL, f"{folder}/out/{name}"))


def test_a_record_tells_of_its_own_output(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody puts another file in its place before the record is written."""
    write = filesystem.write_atomically

    def write_and_replace(system: Any, path: str, *given: Any, **told: Any) -> Any:
        result = write(system, path, *given, **told)
        if path.endswith("/o.txt"):
            Path(path).write_bytes(b"somebody's")
        return result

    partition = partition_of(folder)
    with monkeypatch.context() as patch:
        patch.setattr(assembly, "write_atomically", write_and_replace)
        expected, _ = run(partition)
    assert Path(partition.target.path).read_bytes() == b"somebody's"
    with pytest.raises(FailedError, match=r"o.txt was changed after a run wrote it\. Move"):
        run(partition)
    assert Path(partition.target.path).read_bytes() == b"somebody's"
    assert run(partition, replace(JOB, force=True)) == (expected, 3)
    assert Path(partition.target.path).read_text().startswith("ab→0\n")


@pytest.mark.parametrize("earlier", [False, True])
def test_a_folder_in_the_place_of_an_output_is_left(folder: Path, earlier: bool) -> None:
    partition = partition_of(folder)
    path = Path(partition.target.path)
    if earlier:
        run(partition)
        path.unlink()
    path.mkdir()
    with pytest.raises(FailedError, match="exists, but was not written by a run"):
        run(partition)
    assert not (folder / "out/.o.txt.parts").exists()


@pytest.mark.parametrize("size", [240, 241, 250, 255])
def test_names_may_be_as_long_as_the_disk_takes(folder: Path, size: int) -> None:
    begin = "ü" * 100
    names = [begin + "x" * (size - 205 - len(end)) + f"{end}.txt" + "y" for end in ("1", "2")]
    assert {len(name.encode()) for name in names} == {size}
    for name in names:
        expected, made = run(named(folder, name))
        assert (expected.rows, made) == (5, 3)
        assert run(named(folder, name)) == (expected, 0)
    assert len(in_output(folder)) == 4
    assert {name for name in in_output(folder) if name[0] != "."} == set(names)


@pytest.mark.parametrize("name", ["x" * 256, "in.txt/o.txt"])
def test_a_name_that_the_disk_does_not_take_fails_before_any_work(folder: Path, name: str) -> None:
    (folder / "out/in.txt").write_bytes(b"")
    (step,) = scanned(named(folder, name))
    assert str(step.failed).startswith(f"output {folder}/out/{name}: [Errno")


class Late(Dying):
    """Where a folder is written into while it is removed, and the first move fails."""

    moves = 0

    def delete_dir(self, path: str) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty")

    def move(self, source: str, target: str) -> None:
        self.moves += target.endswith("/o.txt")
        if self.moves == 1:
            self.moves += 1
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        super().move(source, target)


def test_a_writer_that_comes_late_costs_nothing(folder: Path) -> None:
    expected, made = run(partition_of(folder, disk=fs.PyFileSystem(Late(FOREVER))))
    assert (expected.rows, made) == (5, 3)
    assert (folder / "out/.o.txt.parts").exists()
    assert run(partition_of(folder)) == (expected, 0)
    assert sorted(in_output(folder)) == [".o.txt.done", "o.txt"]
    assert not (folder / "out/.o.txt.parts").exists()


def test_a_piece_that_this_run_has_made_is_not_an_earlier_runs(folder: Path) -> None:
    partition, found = partition_of(folder), list[bool]()
    for run_name in ("first", "first", "second"):
        job, decoder = replace(JOB, run=run_name), Marking(JOB)
        steps = translated(scanned(partition, job), decoder, job)
        found += {step.reused for step in steps}
        assert decoder.calls == (0 if len(found) > 1 else 3)
        assert [step.outcome is not None for step in steps] == [True] * 3
    assert found == [False, False, True]
