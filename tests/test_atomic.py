"""Outputs on a disk that is full: the reason is named, and nothing is left."""

import errno
import io
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tfexport import atomic


def no_errno(_path: Path) -> None:
    raise OSError("100 requested and 3 written")  # as numpy does


def of_numpy(_path: Path) -> None:
    raise OSError("Not enough free space to write 100 bytes after offset 0")


def of_torch(_path: Path) -> None:
    raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534")


def no_file(_path: Path) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


class FullFile(io.BytesIO):
    def write(self, _data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def begin(path: Path, fail: Callable[[Path], None]) -> None:
    """Write half of a file, or of a folder."""
    if path.suffix == ".pt":
        with atomic.new_file(path) as file:
            file.write_bytes(b"half")
            fail(file)
    with atomic.new_folder(path, lambda: None) as folder:
        (folder / "weights.bin").write_bytes(b"half")
        fail(folder)


@pytest.mark.parametrize("fail", [no_errno, of_numpy, of_torch, no_file])
def test_a_full_disk_is_named_whatever_the_writer_says(
    fail: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: FullFile())  # noqa: A006
    for output in ("a.pt", "a.bundle"):
        path = tmp_path / output
        with pytest.raises(OSError, match=re.escape(str(path))) as raised:
            begin(path, fail)
        assert raised.value.errno == errno.ENOSPC
        assert "No space left" in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_a_disk_with_room_for_less_is_named_too(tmp_path: Path) -> None:
    """Numpy looks before it writes, and then there is room for a little."""
    with pytest.raises(OSError, match="No space left") as raised:
        begin(tmp_path / "a.pt", of_numpy)
    assert raised.value.errno == errno.ENOSPC


@pytest.mark.parametrize("error", [RuntimeError("a bug"), OSError("something else")])
def test_other_failures_stay_what_they_are_where_there_is_room(
    error: Exception, tmp_path: Path
) -> None:
    with pytest.raises(type(error), match=str(error)), atomic.new_file(tmp_path / "a.pt"):
        raise error
    assert not list(tmp_path.iterdir())
