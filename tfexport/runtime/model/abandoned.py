"""Ending a call of an engine whose caller no longer wants its result."""

import contextlib
import threading
from collections.abc import Callable, Iterator

Going = Callable[[], bool]
NEVER = threading.Event()  # is not set
_PAUSE = 0.05  # seconds between two questions


class AbandonedError(Exception):
    """A search was abandoned by its caller; see ``ResolvedOptions.going``."""


@contextlib.contextmanager
def watched(going: Going | None, stop: Callable[[], object]) -> Iterator[threading.Event]:
    """Call ``stop`` as soon as ``going`` returns false; a thread asks while the block runs.

    Args:
        going: whether to continue; None for always.
        stop: makes the call in the block raise an error soon.

    Yields:
        An event that is set if ``stop`` is called.
    """
    if going is None:
        yield NEVER
        return
    stopped, over, asked = threading.Event(), threading.Event(), going

    def watch() -> None:
        while asked():
            if over.wait(_PAUSE):
                return
        stopped.set()
        stop()

    thread = threading.Thread(target=watch, name="tfexport-watch", daemon=True)
    thread.start()
    try:
        yield stopped
    finally:
        over.set()
        thread.join()
