"""Runs cases in worker processes, and keeps their results as lines of JSON."""

import contextlib
import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tests.drawn_modules.case import DIED, Result
from tests.drawn_modules.productions import draw_design
from tests.support.paths import REPOSITORY
from tests.support.shared_work import share

FOLDER = REPOSITORY / "build" / "fuzz-modules"
WAIT = 120.0  # seconds of processor time, after which a case is ended
_PATIENCE = 6  # times as many of the clock: others may have the processor
_LOOK = 2.0  # seconds between two looks at the processor time
_TICKS = os.sysconf("SC_CLK_TCK")
_CASES_OF_A_PROCESS = 60  # torch's caches of programs grow

Tell = Callable[[Result], object]


def read_results(folder: Path) -> list[Result]:
    """The results in a folder, by seed; the last where there are several."""
    found: dict[int, Result] = {}
    path = folder / "results.jsonl"
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):  # a line that was cut off is drawn again
            values = json.loads(line)
            values["labels"] = tuple(values["labels"])
            found[values["seed"]] = Result(**values)
    return [found[seed] for seed in sorted(found)]


def is_of_this_grammar(result: Result) -> bool:
    """Whether a result is of what its seed gives now; the grammar may have changed since."""
    return result.labels == draw_design(result.seed).labels


def _end_line(path: Path) -> None:
    """End a last line that was cut off."""
    if path.exists() and not path.read_bytes().endswith(b"\n"):
        with path.open("a") as file:
            file.write("\n")


def run(
    seeds: Iterable[int],
    folder: Path,
    workers: int = 2,
    wait: float = WAIT,
    tell: Tell = lambda result: None,
) -> None:
    """Run the cases of seeds that have no result, and append their results to a file.

    Args:
        seeds: of the cases.
        folder: for ``results.jsonl``, and the source of each case whose outcome is bad.
        workers: processes at a time.
        wait: seconds of processor time after which a case is ended; it has died then.
        tell: called with each result.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = {result.seed for result in read_results(folder) if is_of_this_grammar(result)}
    _end_line(folder / "results.jsonl")

    def work(taken: Iterator[int], lock: threading.Lock) -> None:
        with _Worker(wait) as worker:
            for seed in taken:
                result = worker.run(seed)
                with lock, (folder / "results.jsonl").open("a") as file:
                    file.write(result.to_json() + "\n")
                    if result.is_bad:
                        worker.keep(seed, folder)
                    tell(result)

    share((seed for seed in seeds if seed not in known), workers, work)


class _Worker:
    """A worker process, replaced when it dies and after some cases."""

    def __init__(self, wait: float) -> None:
        self._wait, self._cases = wait, 0
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="drawn-modules-"))

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *error: object) -> None:
        self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def keep(self, seed: int, folder: Path) -> None:
        """Copy the source of a case into a folder."""
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(self._folder / f"drawn_{seed}.py", folder)

    def run(self, seed: int) -> Result:
        """Run the case of one seed."""
        process = self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        self._cases += 1
        process.stdin.write(f"{seed}\n".encode())
        process.stdin.flush()
        line = self._answer(process)
        if not line:
            why = f"no answer in {self._wait:.0f} s"
            if line is not None:
                why = f"exit code {process.wait()}"
            self._end()
            design = draw_design(seed)
            return Result(seed, design.labels, DIED, why, design.refused_because, 0, self._wait)
        values = json.loads(line)
        values["labels"] = tuple(values["labels"])
        return Result(**values)

    def _answer(self, process: "subprocess.Popen[bytes]") -> bytes | None:
        """The next line; empty if the process is gone, None if its time is over."""
        assert process.stdout is not None
        begun, used = time.monotonic(), _processor_time(process.pid)
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not selector.select(_LOOK):
                spent = _processor_time(process.pid) - used
                if spent > self._wait or time.monotonic() - begun > _PATIENCE * self._wait:
                    return None
            return process.stdout.readline()

    def _start(self) -> "subprocess.Popen[bytes]":
        if self._cases >= _CASES_OF_A_PROCESS:
            self._end()
        if self._process is None:
            command = [sys.executable, "-m", "tests.drawn_modules.worker", str(self._folder)]
            environment = {
                **os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore",
                "PYTHONPATH": os.pathsep.join(
                    [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
                ).rstrip(os.pathsep),
            }  # fmt: skip
            # Without a buffer, which could hold an answer that ``select`` then waits for in vain.
            self._process = subprocess.Popen(
                command, cwd=REPOSITORY, env=environment, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
            )  # fmt: skip
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
            self._process, self._cases = None, 0


def _processor_time(pid: int) -> float:
    """Seconds that a process has computed, or 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS
