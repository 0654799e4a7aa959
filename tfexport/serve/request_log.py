"""The log of a server on stderr: one JSON object a line, without texts and keys.

A thread writes the lines, so no request waits for the log or fails with it. Lines that cannot be
written, such as on a full disk, are dropped; a later line has their number.
"""

import contextlib
import json
import logging
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import Any

from pydantic_core import to_json

LEVELS = ("info", "warning", "error")
_MOST_WAITING = 10_000  # lines
# Lines that come together are written together: a thread that wakes takes the GIL from the others.
_GATHERING, _TOGETHER = 0.01, 256  # seconds, lines
# Bytes that a pipe takes whole on Linux, so that lines of other writers do not come between.
_AT_ONCE = 4096
_END_SECONDS = 2.0  # seconds that a stopping server waits for its last lines


def write(event: str, **values: Any) -> None:
    """Write one line, unless its level is too low."""
    if LEVELS.index(values.get("level", LEVELS[0])) < _least:
        return
    line = _line(event, **values)
    if _writer is not None:
        _writer.add(line)
    else:
        with contextlib.suppress(OSError, ValueError):  # it is full, or closed
            print(line, file=sys.stderr, flush=True)


def say(text: str) -> None:
    """Write a line for the operator to stderr, if possible."""
    try:
        os.write(sys.stderr.fileno(), f"{text}\n".encode())
    except (AttributeError, OSError, ValueError):  # replaced, closed or full
        with contextlib.suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)


def write_fault(event: str, error: BaseException, **values: Any) -> None:
    """Log an unexpected error, with its traceback."""
    where = traceback.format_exception(error)
    write(event, level="error", error=repr(error)[:500], trace="".join(where)[-4000:], **values)


def keep(level: str) -> None:
    """Write only lines of this level and above."""
    global _least
    _least = LEVELS.index(level)


@contextlib.contextmanager
def in_a_thread() -> Iterator[None]:
    """Write lines in a thread for the block."""
    global _writer
    try:
        number = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # replaced, or there is none
        yield
        return
    _writer = writer = _Writer(number)
    try:
        yield
    finally:
        _writer = None
        writer.end()


class _Writer:
    """A thread that writes lines to a file descriptor, without a lock of Python's."""

    def __init__(self, number: int) -> None:
        self._number, self._lines = number, queue.Queue[str | None](_MOST_WAITING)
        self._lost, self._counting = 0, threading.Lock()
        # A daemon, because the thread may wait for ever, and the process has to end.
        self._thread = threading.Thread(target=self._run, name="tfexport-log", daemon=True)
        self._thread.start()

    def add(self, line: str) -> None:
        """Queue a line, unless too many wait."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._count(1)

    def end(self) -> None:
        """Wait a short time for the lines that are still queued."""
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=_END_SECONDS)
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        lines: list[str | None] = []
        while None not in lines:
            lines = [self._lines.get()]
            if lines[0] is not None:
                time.sleep(_GATHERING)
            while len(lines) < _TOGETHER and not self._lines.empty():
                lines.append(self._lines.get())
            lost = self._lost
            if lost and self._write(f"{_line('lost', lines=lost)}\n".encode()):
                self._count(-lost)
            for group in _groups(line for line in lines if line is not None):
                if not self._write(b"".join(group)):
                    self._count(len(group))

    def _count(self, lines: int) -> None:
        with self._counting:
            self._lost += lines

    def _write(self, data: bytes) -> bool:
        try:
            while data:
                data = data[os.write(self._number, data) :]
        except OSError:
            return False
        return True


def _groups(lines: Iterable[str]) -> Iterator[list[bytes]]:
    """Lines with their ends, in groups that are written at once; a longer line is alone."""
    group, size = list[bytes](), 0
    for line in lines:
        data = f"{line}\n".encode()
        if group and size + len(data) > _AT_ONCE:
            yield group
            group, size = [], 0
        group.append(data)
        size += len(data)
    if group:
        yield group


_writer: _Writer | None = None
_least = 0  # number of the lowest level that is written


def _line(event: str, **values: Any) -> str:
    now = datetime.fromtimestamp(time.time(), timezone.utc).isoformat(timespec="milliseconds")
    line = {"time": now, "event": event, **values}
    with contextlib.suppress(ValueError):  # half of a surrogate pair
        made = to_json(line, fallback=str)
        if made.isascii():
            return made.decode()
    # With escapes: characters of callers may end a line, or steer a terminal.
    return json.dumps(line, default=str, separators=(",", ":"))


class _Lines(logging.Handler):
    """Writes records of Python's logging as lines of the log."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        level = "error" if record.levelno >= logging.ERROR else "warning"
        values = {"level": level, "message": record.getMessage()}
        if record.exc_info and record.exc_info[1] is not None:
            write_fault(record.name, record.exc_info[1], message=record.getMessage())
        else:
            write(record.name, **values)


def take_over(*names: str) -> None:
    """Send the warnings of libraries to this log."""
    for name in names:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [_Lines()], False
        logger.setLevel(logging.WARNING)
