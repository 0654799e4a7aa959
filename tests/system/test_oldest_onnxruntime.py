"""Graphs in the oldest onnxruntime that they name, each in an environment of its own."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from tests.conftest import CONFIG
from tests.support.drawn_beams import draw_options
from tests.support.paths import REPOSITORY
from tfexport.bundle import read_manifest
from tfexport.export import export
from tfexport.runtime.model.onnxruntime_model import OnnxModel, rule_inputs
from tfexport.runtime.search.graph_search import make_rules
from tfexport.runtime.search.ranking import stopping_count

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


RUN_ALL = """
import sys
import numpy as np
import onnxruntime as ort
options = ort.SessionOptions()
options.log_severity_level = 4
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
calls = np.load(sys.argv[2], allow_pickle=True)["calls"]
found = np.empty(len(calls), object)
found[:] = [session.run(None, feeds) for feeds in calls]
np.savez(sys.argv[3], found=found)
"""


@pytest.mark.parametrize(
    ("portable", "version"),
    [(False, "1.21"), pytest.param(True, "1.18", marks=pytest.mark.exhaustive)],
)
def test_beams_by_rules_are_the_same_there(
    portable: bool, version: str, tiny_bundle: Path, tmp_path: Path, tutorial_model: Any
) -> None:
    old, folder = python(INSTALLED[version]), tiny_bundle
    if portable:
        folder = tmp_path / "portable.bundle"
        export(tutorial_model, folder, config=CONFIG, portable=True, verify=False)
    model = OnnxModel(folder, read_manifest(folder), 1)
    calls = np.empty(20, object)
    for seed in range(len(calls)):
        draw = random.Random(seed)
        options = draw_options(draw, model.vocab_size)
        calls[seed] = {
            **{name: np.array(feeds()[name]) for name in ("input_ids", "attention_mask")},
            "max_length": np.array(options.max_length),
            "beam_size": np.array(options.beam_size),
            "enough": np.array(stopping_count(options)),
            **rule_inputs(make_rules(options, options.with_first_token(())), ROWS),
        }
    np.savez(tmp_path / "calls.npz", calls=calls)
    found = []
    for program in (sys.executable, old):
        made = tmp_path / "found.npz"
        command = [program, "-c", RUN_ALL, folder / "beam.onnx", tmp_path / "calls.npz", made]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.append(np.load(made, allow_pickle=True)["found"])
    for ours, theirs in zip(*found, strict=True):
        allowed = np.isfinite(ours[2])
        for here, there in zip(ours[:3], theirs[:3], strict=True):
            np.testing.assert_allclose(here[allowed], there[allowed], atol=1e-5)
        assert ours[3].tolist() == theirs[3].tolist()
