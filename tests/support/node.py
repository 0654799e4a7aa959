"""Generate graphs and tokenizers run in Node, with the packages of the Node example."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.paths import REPOSITORY

PACKAGES = REPOSITORY / "examples" / "node" / "node_modules"


def in_node(graph: Path, feeds: dict[str, Any]) -> list[list[int]]:
    """Sequences (B, T) for the graph's inputs, arrays of any type and rank."""
    values = {name: _tensor(value) for name, value in feeds.items()}
    sequences: list[list[int]] = _run("run_graph.mjs", graph, values)
    return sequences


def tokens_in_node(folder: Path, texts: Sequence[str]) -> list[dict[str, Any]]:
    """For each text its ids, tokens, and the text of its ids, by tokenizers in JavaScript.

    Args:
        folder: of a bundle, of which only the manifest and the tokenizers' files need be there.
        texts: of the source.
    """
    tokens: list[dict[str, Any]] = _run("tokenize.mjs", folder, list(texts))
    return tokens


def _run(program: str, path: Path, values: Any) -> Any:
    if not PACKAGES.exists():
        pytest.skip("needs npm packages: make examples/node/node_modules/ready")
    done = subprocess.run(
        ["node", Path(__file__).with_name(program), PACKAGES, path],
        input=json.dumps(values),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _tensor(value: Any) -> dict[str, Any]:
    array = np.asarray(value)
    return {"type": array.dtype.name, "dims": array.shape, "data": array.ravel().tolist()}
