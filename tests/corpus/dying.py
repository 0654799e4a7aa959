"""File systems under which a process dies at a chosen step, or has no more space from there on."""

import errno
import os
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyarrow import fs

from tests.corpus.files import LOCAL


class KilledError(Exception):
    """The process is dead, and so is its clean-up."""


_DISKS: dict[int, "Dying"] = {}


def _disk(number: int) -> "Dying":
    return _DISKS[number]


class Dying(fs.FileSystemHandler):  # type: ignore[misc]
    """The local disk, until so many of its changes have begun.

    The abstract methods of ``FileSystemHandler`` that a corpus never calls raise
    ``NotImplementedError``: without them there could be no object of this class.

    Args:
        lives: changes that are made; the next one is made by half.
    """

    def __init__(self, lives: float) -> None:
        self.lives, self.dead = lives, False

    def __reduce__(self) -> Any:
        _DISKS[id(self)] = self  # a stage that it is sent to takes the same lives
        return _disk, (id(self),)

    def step(self) -> bool:
        """Whether this change is made whole."""
        self.check()
        self.lives -= 1
        self.dead = self.lives < 0
        return not self.dead

    def check(self) -> None:
        if self.dead:
            raise KilledError

    def get_type_name(self) -> str:
        return "dying"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Iterable[str]) -> Any:
        self.check()
        return LOCAL.get_file_info(list(paths))

    def get_file_info_selector(self, selector: fs.FileSelector) -> Any:
        self.check()
        return LOCAL.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        if self.step():
            LOCAL.create_dir(path, recursive=recursive)
        self.check()

    def delete_dir(self, path: str) -> None:
        if self.step():
            LOCAL.delete_dir(path)
        else:
            files = LOCAL.get_file_info(fs.FileSelector(path))
            for info in files[: len(files) // 2]:
                LOCAL.delete_file(info.path)
        self.check()

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        raise NotImplementedError

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        if self.step():
            LOCAL.delete_file(path)
        self.check()

    def move(self, source: str, target: str) -> None:
        if self.step():
            LOCAL.move(source, target)
        self.check()

    def copy_file(self, source: str, target: str) -> None:
        raise NotImplementedError

    def open_input_stream(self, path: str) -> Any:
        self.check()
        return LOCAL.open_input_stream(path)

    def open_input_file(self, path: str) -> Any:
        self.check()
        return LOCAL.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        if not self.step():
            raise KilledError
        return pa.PythonFile(_Written(self, path), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        raise NotImplementedError


class Full(Dying):
    """The local disk, which takes nothing more after so many changes; files can be deleted.

    Args:
        lives: changes that are made.
        number: of the error from there on.
    """

    def __init__(self, lives: float, number: int = errno.ENOSPC) -> None:
        super().__init__(lives)
        self.number = number

    def step(self) -> bool:
        self.lives -= 1
        if self.lives < 0:
            raise OSError(self.number, os.strerror(self.number))
        return True

    def delete_file(self, path: str) -> None:
        LOCAL.delete_file(path)


class _Written:
    """A file that is being written."""

    closed = False

    def __init__(self, disk: Dying, path: str) -> None:
        self._disk, self._path = disk, path
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115, PTH123

    def write(self, content: Any) -> int:
        whole = self._disk.step()
        size = self._file.write(content if whole else memoryview(content)[: len(content) // 2])
        self._disk.check()
        return size

    def flush(self) -> None:
        pass

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self.closed = True
        self._file.close()
