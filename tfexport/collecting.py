"""Python's search for garbage, put off where it finds none and takes long."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_collecting() -> Iterator[None]:
    """Do not look for garbage inside the block.

    Whoever makes many objects that all stay has Python look through them, and through all that
    there were before, again and again.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
