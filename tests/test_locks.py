"""Locks: each output has one writer at a time, even if writers are killed or race."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tfexport.atomic import check_new_file, new_file
from tfexport.bundle import check_output, new_bundle
from tfexport.errors import OutputExistsError
from tfexport.locks import writing

HOLD = """
import sys
from pathlib import Path
from tfexport.locks import writing
with writing(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def hold(output: Path) -> "subprocess.Popen[str]":
    """Another process that writes the output until its stdin ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(output)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_writer_is_told_who_writes(tmp_path: Path) -> None:
    output = tmp_path / "out.onnx"
    (tmp_path / "same").symlink_to(tmp_path)
    with hold(output) as other:
        message = rf"is being written by process {other.pid}\. Wait until it has ended"
        for path in (output, tmp_path / "same" / "out.onnx"):
            with pytest.raises(OutputExistsError, match=message), new_file(path, force=True):
                pass
        with pytest.raises(OutputExistsError, match=message):
            check_new_file(output, force=False)
        with pytest.raises(OutputExistsError, match=message):
            check_output(output, force=True)
        with pytest.raises(OutputExistsError, match=message), new_bundle(output):
            pass
        with writing(tmp_path / "other.onnx"):
            pass
        other.communicate("")
    with new_file(output) as partial:
        partial.write_text("whole")
    (tmp_path / "same").unlink()
    assert [path.name for path in tmp_path.iterdir()] == ["out.onnx"], "no lock is left"


def test_a_killed_writer_locks_nothing(tmp_path: Path) -> None:
    output = tmp_path / "out.onnx"
    with hold(output) as other:
        other.send_signal(signal.SIGKILL if os.name == "posix" else signal.SIGTERM)
        other.wait()
        check_new_file(output, force=False)
        with new_file(output) as partial:
            partial.write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["out.onnx"]


def test_two_of_one_process_are_two_writers(tmp_path: Path) -> None:
    with writing(tmp_path / "a"):
        with (
            pytest.raises(OutputExistsError, match="being written by this process"),
            writing(tmp_path / "a"),
        ):
            pass
        with pytest.raises(OutputExistsError, match="this process"):
            check_new_file(tmp_path / "a", force=True)


CONTEND = """
import json, sys, time
from pathlib import Path
from tfexport.errors import OutputExistsError
from tfexport.locks import writing
inside, until, won = Path(sys.argv[1] + ".inside"), time.monotonic() + 1.5, 0
while time.monotonic() < until:
    try:
        with writing(Path(sys.argv[1])):
            inside.mkdir()  # fails if another one is inside
            won += 1
            inside.rmdir()
    except OutputExistsError:
        pass
print(won)
"""


def test_there_is_never_a_second_one_inside(tmp_path: Path) -> None:
    """Writers that come and go remove each other's lock files all the time."""
    running = [
        subprocess.Popen([sys.executable, "-c", CONTEND, str(tmp_path / "out")],
                         stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]  # fmt: skip
    won = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert sum(map(json.loads, won)) > 100
    assert list(tmp_path.iterdir()) == []


def test_what_appeared_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    def write() -> None:
        with new_file(tmp_path / "a") as ours:
            ours.write_text("ours")
            (tmp_path / "a").write_text("theirs")

    with pytest.raises(OutputExistsError, match="already exists"):
        write()
    assert (tmp_path / "a").read_text() == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.skipif(sys.platform == "win32", reason="it has no such limit")
def test_a_full_disk_names_the_output(tmp_path: Path) -> None:
    import resource

    output = tmp_path / "out.onnx"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught, new_file(output) as partial:
            partial.write_bytes(bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.filename == str(output)
    assert list(tmp_path.iterdir()) == []
