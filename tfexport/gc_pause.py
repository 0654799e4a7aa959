"""Python's garbage collector: paused, and run less often."""

import contextlib
import gc
from collections.abc import Iterator

# Objects that are made before a collection of the youngest, and collections before older ones are
# looked at too.
_THRESHOLDS = (20_000, 20, 20)


def collect_seldom() -> None:
    """Collect less often, in a process of our own that holds many objects.

    By default, collections take a fifth of a server's event loop: they come with every few
    requests, and all that are being answered are alive. Of the translation of a file of messages
    they take 4 percent.
    """
    gc.set_threshold(*_THRESHOLDS)


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
