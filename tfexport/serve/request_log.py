"""The log of a server: JSON, one object a line, on stderr. It holds no texts and no keys.

No request waits for the log, or fails with it: a thread of its own writes the lines. What cannot
be written, on a full disk or into a pipe that nobody reads, is left out, and counted in a line as
soon as one can be written again.
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
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

LEVELS = ("info", "warning", "error")
_MOST_WAITING = 10_000  # lines
_END_SECONDS = 2.0  # for which a server that ends waits for its last lines to be written


def write(event: str, **values: Any) -> None:
    """Write one line, unless it is of less than the level that is kept."""
    if LEVELS.index(values.get("level", LEVELS[0])) < _least:
        return
    line = _line(event, **values)
    if _writer is not None:
        _writer.add(line)
    else:
        with contextlib.suppress(OSError, ValueError):  # it is full, or closed
            print(line, file=sys.stderr, flush=True)


def say(text: str) -> None:
    """Tell whoever has started the server something, if it can be told."""
    try:
        os.write(sys.stderr.fileno(), f"{text}\n".encode())
    except (AttributeError, OSError, ValueError):  # replaced, closed or full
        with contextlib.suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)


def write_fault(event: str, error: BaseException, **values: Any) -> None:
    """Write one line of an error that should not be, with where it came from."""
    where = traceback.format_exception(error)
    write(event, level="error", error=repr(error)[:500], trace="".join(where)[-4000:], **values)


def keep(level: str) -> None:
    """Write lines of this level and above alone."""
    global _least
    _least = LEVELS.index(level)


@contextlib.contextmanager
def in_a_thread() -> Iterator[None]:
    """Let a thread write lines, as long as the block lasts."""
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
    """A thread that writes lines to a file, by its number: no lock of Python's is held for it."""

    def __init__(self, number: int) -> None:
        self._number, self._lines = number, queue.Queue[str | None](_MOST_WAITING)
        self._lost, self._counting = 0, threading.Lock()
        # Daemons do not keep the process from ending; this one may wait for ever.
        self._thread = threading.Thread(target=self._run, name="tfexport-log", daemon=True)
        self._thread.start()

    def add(self, line: str) -> None:
        """Have a line written, unless too many wait."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._count(1)

    def end(self) -> None:
        """Wait for what is still to be written, for a while."""
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=_END_SECONDS)
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            lost = self._lost
            if lost:
                line = f"{_line('lost', lines=lost)}\n{line}"
            self._count(-lost if self._write(f"{line}\n".encode()) else 1)

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


_writer: _Writer | None = None
_least = 0  # number of the lowest level that is written


def _line(event: str, **values: Any) -> str:
    now = datetime.fromtimestamp(time.time(), timezone.utc).isoformat(timespec="milliseconds")
    return json.dumps({"time": now, "event": event, **values}, default=str)


class _Lines(logging.Handler):
    """Writes records of libraries as lines of the log."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        level = "error" if record.levelno >= logging.ERROR else "warning"
        values = {"level": level, "message": record.getMessage()}
        if record.exc_info and record.exc_info[1] is not None:
            write_fault(record.name, record.exc_info[1], message=record.getMessage())
        else:
            write(record.name, **values)


def take_over(*names: str) -> None:
    """Let libraries log their warnings here."""
    for name in names:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [_Lines()], False
        logger.setLevel(logging.WARNING)
