"""A system in a separate process, as the benchmark sees it."""

import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.configurations import OPTIMUM_PYTHON, REPOSITORY, Configuration

PAUSE = 0.1  # seconds, in which the threads of the process before stop spinning


class Process:
    """A system in one configuration, loaded and waiting.

    Raises:
        RuntimeError: it does not run on this machine, or ended; `log` says why.
    """

    def __init__(
        self, system: str, configuration: Configuration, folder: Path, checkpoint: Path, beam: int,
        log: Path,
    ) -> None:  # fmt: skip
        self.configuration = configuration
        python = str(OPTIMUM_PYTHON) if system == "Optimum-ONNX" else sys.executable
        if not Path(python).exists():
            raise RuntimeError(f"{python} is not there")
        setup = {
            "folder": str(folder),
            "checkpoint": str(checkpoint),
            "beam": beam,
            "threads": configuration.threads,
            "workers": configuration.workers,
            "options": configuration.options,
        }
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(configuration.threads),
            **configuration.environment,
        }
        with log.open("a", encoding="utf-8") as errors:
            print(f"== {system}: {asdict(configuration)}", file=errors, flush=True)
            self._process = subprocess.Popen(
                [python, "-m", "benchmarks.systems", system, json.dumps(setup)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                text=True, env=environment, cwd=REPOSITORY,
            )  # fmt: skip
        self._is_loaded = False

    def wait(self) -> None:
        """Until it is loaded."""
        if not self._is_loaded:
            self._read()
            self._is_loaded = True

    def run(
        self, rows: list[list[int]], limit: int, alone: bool = False, times: int = 1
    ) -> dict[str, Any]:
        """Decode together or each row alone, so many times, one after the other.

        Returns:
            Seconds, tokens and peak resident memory in kB.
        """
        assert self._process.stdin is not None
        self.wait()
        time.sleep(PAUSE)
        job = {"rows": rows, "limit": limit, "alone": alone, "times": times}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the system ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended with a job unread
            self._process.stdin.close()
        self._process.wait()
