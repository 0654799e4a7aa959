"""Cases that fail, each in its own way: what the runner is tested with. Not among ``GROUPS``."""

import os
import signal
import time
from pathlib import Path
from random import Random

from tfexport.errors import InputError

FAULTS = ("none", "own error", "error", "crash", "exit", "hang", "slow", "memory")
_CHOSEN: dict[str, str] = {}


def prepare(bundle: Path) -> None:
    """The kind of fault stands in the environment."""
    _CHOSEN["fault"] = os.environ["FUZZ_FAULT"]


def run(rng: Random, scratch: Path, bundle: Path) -> None:
    """Fail."""
    fault = _CHOSEN["fault"]
    if fault == "error":
        raise ZeroDivisionError(scratch.name[:5])
    if fault == "own error":
        raise InputError("a group has to say where one may come from")
    if fault == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "exit":
        os._exit(3)
    if fault == "hang":
        time.sleep(60)
    if fault == "slow":
        end = time.process_time() + 2.1
        while time.process_time() < end:
            sum(range(1000))
    if fault == "memory":
        assert bytes(1 << 31)
