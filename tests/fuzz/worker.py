"""One worker process: reads cases as lines, writes their results as lines of JSON.

A case that takes too much memory meets the limit of the address space. One that crashes or hangs
ends this process, which the runner notices.
"""

import contextlib
import faulthandler
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any, TextIO

SECONDS = 2.0  # of processor time, which does not depend on what else the machine does
BYTES = 1 << 30
_SPARE = 1 << 29  # of the address space, which is reserved in larger pieces than are used


def main(bundle: Path) -> None:
    """Run cases until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not be taken for an answer
    faulthandler.register(signal.SIGUSR1)  # by which the runner asks where a case hangs
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    groups: dict[str, ModuleType] = {}
    for line in sys.stdin:
        name, seed = line.split()
        if name not in groups:
            groups[name] = importlib.import_module(f"tests.fuzz.groups.{name}")
            groups[name].prepare(bundle)
        _answer(answers, {"started": True})
        _answer(answers, _run(groups[name], Random(f"{name} {seed}"), bundle))


def _answer(answers: TextIO, value: dict[str, Any]) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()


def _run(group: ModuleType, rng: Random, bundle: Path) -> dict[str, Any]:
    scratch = Path(tempfile.mkdtemp(prefix="fuzz-"))
    before = _memory("VmRSS")
    _reset_peak()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_memory("VmSize") + BYTES + _SPARE, limits[1]))
    start = time.process_time()
    problem = None
    try:
        group.run(rng, scratch, bundle)
    except BaseException as error:
        problem = _describe(error)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        shutil.rmtree(scratch, ignore_errors=True)
    seconds, grown = time.process_time() - start, _memory("VmHWM") - before
    if problem is None and seconds > SECONDS:
        problem = f"took {seconds:.1f} s"
    if problem is None and grown > BYTES:
        problem = f"took {grown >> 20} MB"
    return {"problem": problem, "seconds": seconds, "bytes": grown}


def _describe(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "tfexport" in Path(frame.filename).parts] or frames
    where = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
    message = repr(str(error))[1:-1]
    return f"{type(error).__name__} at {where}: {message[:150]}"


def _memory(name: str) -> int:
    """A figure of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    return 0


def _reset_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
