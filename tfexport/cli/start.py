"""The entry point of the ``tfexport`` script: Ctrl-C ends it quietly during imports."""

import os
import signal
from types import FrameType

from tfexport.cli import INTERRUPTED


def main() -> None:
    """Import and run the command line."""
    # A job in the background has another handler, because Ctrl-C does not concern it.
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_usual:
        signal.signal(signal.SIGINT, _end)
    from tfexport.cli.main import main as run

    if is_usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _end(signum: int, frame: FrameType | None) -> None:
    """End without an exception: a module that is being imported might replace it."""
    os.write(2, b"Interrupted.\n")
    os._exit(INTERRUPTED)
