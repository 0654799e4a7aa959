"""Run cases in worker processes and collect their outcomes."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.support.paths import REPOSITORY
from tests.support.shared_work import share

GROUPS = (
    "manifests", "checkpoints", "configs", "inputs", "options", "journals", "tokenizers", "tuning",
    "graphs", "batches", "vocabularies",
)  # fmt: skip
WAIT = 30.0  # seconds of the clock after which a case hangs; others may have the processor
PREPARE = 300.0  # seconds until a group's first case begins


@dataclass(frozen=True)
class Case:
    """One case, determined by its group and seed."""

    group: str
    seed: int

    @property
    def command(self) -> str:
        """The shell command that runs this case alone."""
        return f"python -m tests.fuzz --group {self.group} --seed {self.seed} --cases 1"


@dataclass
class Outcome:
    """Result of a run: the number of cases of each group, and the problem of each that failed."""

    cases: Counter[str] = field(default_factory=Counter)
    failures: dict[Case, str] = field(default_factory=dict)

    def table(self) -> str:
        """Cases and failures by group."""
        failed = Counter(case.group for case in self.failures)
        rows = [("group", "cases", "failures")]
        rows += [(name, str(count), str(failed[name])) for name, count in self.cases.items()]
        rows.append(("all", str(self.cases.total()), str(len(self.failures))))
        return "\n".join(f"{name:<14}{count:>10}{bad:>10}" for name, count, bad in rows)


def make_cases(count: int, groups: Sequence[str] = GROUPS, seed: int = 0) -> list[Case]:
    """``count`` cases, the groups in turn."""
    return [Case(groups[i % len(groups)], seed + i // len(groups)) for i in range(count)]


def run(
    cases: Iterable[Case],
    bundle: Path,
    workers: int = 1,
    wait: float = WAIT,
    tell: Callable[[Case, str], object] = lambda case, problem: None,
) -> Outcome:
    """Run cases in worker processes.

    Args:
        cases: in any order.
        bundle: with all graphs; see ``tests.fuzz.__main__``.
        workers: processes at a time.
        wait: seconds after which a case hangs and its process is killed.
        tell: called with every case that fails, and why.
    """
    outcome = Outcome()

    def work(taken: Iterator[Case], lock: threading.Lock) -> None:
        with _Worker(bundle, wait) as worker:
            for case in taken:
                problem = worker.run(case)
                with lock:
                    outcome.cases[case.group] += 1
                    if problem is not None:
                        outcome.failures[case] = problem
                        tell(case, problem)

    share(cases, workers, work)
    return outcome


class _Worker:
    """A worker process that is replaced when it dies."""

    def __init__(self, bundle: Path, wait: float) -> None:
        self._bundle, self._wait = bundle, wait
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *error: object) -> None:
        self._end()
        self._log.close()

    def run(self, case: Case) -> str | None:
        """Run a case; the problem found, or None."""
        process = self._start()
        assert process.stdin is not None
        self._log.seek(0)
        self._log.truncate()
        try:
            process.stdin.write(f"{case.group} {case.seed}\n".encode())
            process.stdin.flush()
        except BrokenPipeError:
            return self._died("before the case")
        line: bytes | None = b""
        for seconds, stage in ((PREPARE, "before the case"), (self._wait, "in the case")):
            line = self._line(process, seconds)
            if line is None:
                return f"hung {stage}: no answer within {seconds:.0f} s; {self._hanging()}"
            if not line:
                return self._died(stage)
        problem: str | None = json.loads(line or b"")["problem"]
        return problem

    def _start(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            command = [sys.executable, "-m", "tests.fuzz.worker", str(self._bundle)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
            # Without a buffer, which could hold an answer that ``select`` then waits for in vain.
            self._process = subprocess.Popen(
                command, cwd=REPOSITORY, env=environment, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=self._log, bufsize=0,
            )  # fmt: skip
        return self._process

    @staticmethod
    def _line(process: "subprocess.Popen[bytes]", seconds: float) -> bytes | None:
        """The next answer; empty if the process is gone, None if there is none in time."""
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            return process.stdout.readline() if selector.select(seconds) else None

    def _hanging(self) -> str:
        """The source line at which the process hangs; ends the process."""
        assert self._process is not None
        self._process.send_signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        log = self._read_log()
        self._end()
        frames = [line.strip() for line in log if line.strip().startswith("File ")]
        own = [frame for frame in frames if "/tfexport/" in frame] or frames
        return own[0] if own else "not in Python code"

    def _read_log(self) -> list[str]:
        self._log.seek(0)
        return self._log.read().decode(errors="replace").strip().splitlines()

    def _died(self, stage: str) -> str:
        assert self._process is not None
        code = self._process.wait()
        why = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        log = self._read_log()
        self._end()
        return f"process died {stage}: {why}; {log[-1] if log else 'it said nothing'}"

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
            self._process = None
