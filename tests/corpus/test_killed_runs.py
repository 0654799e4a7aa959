"""Runs that are killed at any of their steps and started again."""

import random
import re
from pathlib import Path

import pytest
from pyarrow import fs

from tests.corpus.dying import Dying, Full, KilledError
from tests.corpus.files import COUNTED
from tests.corpus.runs import (
    SUFFIX,
    StoppedError,
    clear_output,
    in_output,
    partition_of,
    run,
    with_inputs,
)
from tests.support.combinations import few_of
from tfexport.corpus.assembly import RunSettings


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    return with_inputs(tmp_path)


@pytest.mark.parametrize("name", SUFFIX)
@pytest.mark.parametrize("earlier", few_of([False, True], True))
def test_a_kill_at_any_step_costs_nothing(folder: Path, name: str, earlier: bool) -> None:
    path, old = (
        Path(partition_of(folder, name).target.path),
        RunSettings({"bundle": "old"}, COUNTED, 2),
    )
    expected, _ = run(partition_of(folder, name))
    whole = in_output(folder)
    run(partition_of(folder, name), old)
    before = in_output(folder)
    assert whole[path.name] != before[path.name]
    deaths, draw, complete = 0, random.Random(name), False
    while not complete:
        clear_output(folder)
        for left_name, content in before.items() if earlier else ():
            (folder / "out" / left_name).write_bytes(content)
        try:
            run(partition_of(folder, name, fs.PyFileSystem(Dying(deaths))))
            complete = True
        except KilledError:
            deaths += 1
        allowed = {whole[path.name], before[path.name]} if earlier else {whole[path.name]}
        assert not path.exists() or path.read_bytes() in allowed
        for _ in range(2):  # who starts it again kills it again
            try:
                run(partition_of(folder, name, fs.PyFileSystem(Dying(draw.randrange(25)))))
            except KilledError:
                assert not path.exists() or path.read_bytes() in allowed
        assert run(partition_of(folder, name))[0] == expected
        assert in_output(folder) == whole
        assert not (folder / f"out/.{path.name}.parts").exists()
    assert deaths > 25, "there were steps to die at"


def test_only_what_was_lost_is_done_again(folder: Path) -> None:
    seen, deaths, complete = set[int](), 0, False
    while not complete:
        clear_output(folder)
        try:
            run(partition_of(folder, disk=fs.PyFileSystem(Dying(deaths))))
            complete = True
        except KilledError:
            kept = [name for name in in_output(folder) if re.search(r"\.parts/[0-9a-f]+-", name)]
            recorded = (folder / "out/.o.txt.done").exists()
            _, made = run(partition_of(folder))
            assert made == (0 if recorded else 3 - len(kept))
            seen.add(made)
        deaths += 1
    assert seen == {0, 1, 2, 3}


@pytest.mark.parametrize("name", SUFFIX)
def test_a_disk_that_is_full_at_any_step_keeps_no_halves(folder: Path, name: str) -> None:
    expected, _ = run(partition_of(folder, name))
    whole, room, complete = in_output(folder), 0, False
    while not complete:
        clear_output(folder)
        try:
            run(partition_of(folder, name, fs.PyFileSystem(Full(room))))
            complete = True
        except StoppedError as error:
            assert "No space left on device" in str(error)  # noqa: PT017
        left = in_output(folder)
        assert [path for path in left if "/." in path] == [], "the beginnings of files"
        assert all(whole[path] == left[path] for path in left if path in whole)
        assert run(partition_of(folder, name))[0] == expected
        assert in_output(folder) == whole
        room += 1
    assert room > 20
