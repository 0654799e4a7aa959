"""A generate graph run in Node, with the packages of the Node example."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.paths import REPOSITORY

PACKAGES = REPOSITORY / "examples" / "node" / "node_modules"


def in_node(graph: Path, feeds: dict[str, Any]) -> list[list[int]]:
    """Sequences (B, T) for the graph's inputs, arrays of any type and rank."""
    if not PACKAGES.exists():
        pytest.skip("needs npm packages: make examples/node/node_modules/ready")
    done = subprocess.run(
        ["node", Path(__file__).with_name("run_graph.mjs"), PACKAGES, graph],
        input=json.dumps({name: _tensor(value) for name, value in feeds.items()}),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: list[list[int]] = json.loads(done.stdout)
    return found


def _tensor(value: Any) -> dict[str, Any]:
    array = np.asarray(value)
    return {"type": array.dtype.name, "dims": array.shape, "data": array.ravel().tolist()}
