"""Reading input lines of a file or a pipe once, and parsing a line."""

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tfexport.errors import InputError

HEAD = 1 << 20  # bytes at a file's start that are part of its fingerprint

Source = str | os.PathLike[str] | BinaryIO


class InputLines:
    """Lines that are read once and counted.

    Attributes:
        name: the name of the file, for messages.
        count: number of lines that have been read.
        size: number of bytes of these lines.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.name, self.count, self.size = name, 0, 0
        self._file = file
        try:
            self._status: os.stat_result | None = os.fstat(file.fileno())
        except (OSError, ValueError):  # a stream in memory
            self._status = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        line = next(self._file)
        self.count += 1
        self.size += len(line)
        return line

    @property
    def is_file(self) -> bool:
        """Whether the input is a file, which can be read again."""
        return self._status is not None and stat.S_ISREG(self._status.st_mode)

    @property
    def is_terminal(self) -> bool:
        """Whether the lines are typed at a terminal."""
        return self._file.isatty()

    def is_at(self, path: Path) -> bool:
        """Whether the input is the file at this path."""
        with contextlib.suppress(OSError):
            return self._status is not None and os.path.samestat(self._status, path.stat())
        return False

    def fingerprint(self) -> dict[str, Any] | None:
        """Size, and hash of the start, of a file; None for a pipe. Call it before reading."""
        if not self.is_file or self._status is None:
            return None
        start = self._file.tell()
        head = self._file.read(HEAD)
        self._file.seek(start)
        return {"size": self._status.st_size, "head": hashlib.sha256(head).hexdigest()}


@contextlib.contextmanager
def open_lines(source: Source) -> Iterator[InputLines]:
    """Open a file and close it afterwards; a stream is left open.

    Raises:
        OSError: it cannot be opened.
    """
    if isinstance(source, str | os.PathLike):
        with Path(source).open("rb") as file:
            yield InputLines(file, os.fspath(source))
    else:
        yield InputLines(source, "-")


def read_line(line: bytes, first: bool = False) -> str:
    """Decode a line, without its end.

    Raises:
        InputError: it is not UTF-8.
    """
    try:
        return line.decode("utf-8-sig" if first else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8: {error.reason} at byte {error.start}") from None


def read_numbers(text: str) -> list[int]:
    """Parse ids that are separated by spaces.

    Raises:
        InputError: naming the first word that is not an integer.
    """
    words = text.split()
    wrong = [word for word in words if not is_number(word)]
    if wrong:
        raise InputError(f"{wrong[0]!r} is not an integer")
    return [int(word) for word in words]


def is_number(word: str) -> bool:
    """Whether a word is an integer in ASCII digits, small enough for an id."""
    # int() would also take "1_000" and other scripts' digits, and refuse to parse huge numbers.
    digits = word.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= 18
