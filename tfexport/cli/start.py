"""Where the ``tfexport`` command begins: Ctrl-C ends it quietly while its modules are imported."""

import os
import signal
from types import FrameType

from tfexport.cli import INTERRUPTED


def main() -> None:
    """The entry point of the ``tfexport`` script."""
    # It is another one for a job in the background, which Ctrl-C does not concern.
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_usual:
        signal.signal(signal.SIGINT, _end)
    from tfexport.cli.main import main as run

    if is_usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _end(signum: int, frame: FrameType | None) -> None:
    """Without an exception, which a module that is being imported would make another of."""
    os.write(2, b"Interrupted.\n")
    os._exit(INTERRUPTED)
