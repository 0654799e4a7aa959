"""Nodes, workers and a driver die, and no row is lost, doubled or wrong; see ``chaos``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.exhaustive,
    pytest.mark.skipif(sys.platform != "linux", reason="kills processes by their names"),
]


def test_a_worker_a_node_and_the_driver_die(tiny_bundle: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"w{4 + i % 12} w{5 + i % 7}{' w9' * (i % 5)}\n" for i in range(99)))
    # By a process of its own: Ray starts threads and other processes, and warns a lot.
    done = subprocess.run(
        [sys.executable, "-m", "tests.corpus.chaos", tiny_bundle, texts, "--rounds", "1",
         "--rows", "6000", "--files", "3", "--blows", "worker node driver"],
        capture_output=True, text=True, cwd=REPOSITORY, timeout=300, check=False,
        env={**os.environ, "RAY_TMPDIR": "/tmp"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "18,000 rows" in done.stdout
    assert "a worker was killed; a node was lost, and another came; the driver was killed" in (
        done.stdout
    )
