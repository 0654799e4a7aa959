"""Pausing Python's garbage collector."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_collecting() -> Iterator[None]:
    """Pause garbage collection inside the block.

    Creating many objects that all stay alive triggers it repeatedly, and each time it scans them
    all without finding anything.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
