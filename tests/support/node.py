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
    """Sequences (B, T) for input_ids (B, S), attention_mask (B, S) and max_length."""
    if not PACKAGES.exists():
        pytest.skip("needs npm packages: make examples/node/node_modules/ready")
    done = subprocess.run(
        ["node", Path(__file__).with_name("run_graph.mjs"), PACKAGES, graph],
        input=json.dumps({name: np.asarray(value).tolist() for name, value in feeds.items()}),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: list[list[int]] = json.loads(done.stdout)
    return found
