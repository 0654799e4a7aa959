"""The log of a server: JSON, one object a line, on stderr. It holds no texts and no keys."""

import json
import logging
import sys
import time
import traceback
from datetime import datetime, timezone
from typing import Any


def write(event: str, **values: Any) -> None:
    """Write one line."""
    now = datetime.fromtimestamp(time.time(), timezone.utc).isoformat(timespec="milliseconds")
    line = json.dumps({"time": now, "event": event, **values}, default=str)
    print(line, file=sys.stderr, flush=True)


def write_fault(event: str, error: BaseException, **values: Any) -> None:
    """Write one line of an error that should not be, with where it came from."""
    where = traceback.format_exception(error)
    write(event, level="error", error=repr(error)[:500], trace="".join(where)[-4000:], **values)


class _Lines(logging.Handler):
    """Writes records of libraries as lines of the log."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        values = {"level": record.levelname.lower(), "message": record.getMessage()}
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
