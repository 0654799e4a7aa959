"""Graphs in the oldest onnxruntime that they name, each in an environment of its own."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from tests.support.paths import REPOSITORY

# What --portable and the default name, and the release of it that 'make test' installs.
INSTALLED = {"1.18": "1.18.1", "1.21": "1.21.1"}
ROWS = [[5, 6, 7, 11], [8, 3], [16]]

RUN = """
import json, sys
import numpy as np
import onnxruntime as ort
options = ort.SessionOptions()
options.log_severity_level = 4
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
feeds = {name: np.array(value) for name, value in json.loads(sys.argv[2]).items()}
sequences, scores = session.run(["sequences", "scores"], feeds)
print(json.dumps([ort.__version__, sequences.tolist(), scores.tolist()]))
"""


def python(version: str) -> Path:
    folder = REPOSITORY / f".venv-onnxruntime-{version}" / ("Scripts" if os.name == "nt" else "bin")
    if not (folder.parent / "ready").exists():
        pytest.skip(f"needs onnxruntime {version} in {folder.parent.name}: make optional")
    return folder / "python"


def feeds() -> dict[str, Any]:
    longest = max(map(len, ROWS))
    return {
        "input_ids": [row + [0] * (longest - len(row)) for row in ROWS],
        "attention_mask": [[1] * len(row) + [0] * (longest - len(row)) for row in ROWS],
        "max_length": 12,
    }


def run(version: str, path: Path) -> subprocess.CompletedProcess[str]:
    command: list[Any] = [python(version), "-c", RUN, path, json.dumps(feeds())]
    return subprocess.run(command, capture_output=True, text=True)


def test_generate_gives_the_same_in_the_oldest_onnxruntime_that_it_names(tiny_graph: Path) -> None:
    session = ort.InferenceSession(tiny_graph)
    named = session.get_modelmeta().custom_metadata_map["tfexport_minimum_onnxruntime"]
    expected = session.run(None, {name: np.array(value) for name, value in feeds().items()})
    done = run(INSTALLED[named], tiny_graph)
    assert done.returncode == 0, done.stderr
    version, sequences, scores = json.loads(done.stdout)
    assert version.startswith(f"{named}.")
    assert sequences == expected[0].tolist()
    assert scores == pytest.approx(expected[1].tolist(), abs=1e-5)
    if tiny_graph.stem == "fused":
        refused = run(INSTALLED["1.18"], tiny_graph)
        assert refused.returncode != 0, "older ones would compute something else"
