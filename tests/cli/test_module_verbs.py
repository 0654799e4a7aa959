"""The verbs on a user's module: onnx, verify, inspect, translate and torchscript."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Once
from tests.support.command import invoke
from tests.support.user_files import RECOMPUTING, WITH_STATE, Methods, UserFile

FACTORY = """

from tfexport.export import Input


def make(seed=0):
    torch.manual_seed(seed)
    return {
        "model": Captioner(), "inputs": [Input("frames", "float32", ("batch", "time", 6))],
        "pad_id": 0, "bos_id": 1, "eos_id": 2, "max_length": 9,
    }


def other():
    return make(seed=1)
"""
ROWS = [np.random.default_rng(i).normal(size=(4 + i % 2, 6)).astype(np.float32) for i in range(4)]


@pytest.fixture(scope="session")
def exported(once: Once) -> Path:
    """A folder with ``captioner.py``, rows of two lengths, and the module's bundle."""
    return once("captioner", _export)


def _export(folder: Path) -> None:
    folder.mkdir()
    write(folder, WITH_STATE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path])
        found = invoke("onnx", "--module", "captioner:make", "-o", "a.bundle")
    sys.modules.pop("captioner", None)
    assert found.exit_code == 0, found.output
    assert "equal to the code of Captioner" in found.output


def write(folder: Path, methods: Methods) -> None:
    file = UserFile(folder, methods)
    file.path.write_text(file.text + FACTORY)
    rows: dict[str, Any] = {f"frames/{i}": row for i, row in enumerate(ROWS)}
    np.savez(folder / "rows.npz", **rows)


@pytest.fixture
def folder(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of it, as the current folder."""
    shutil.copytree(exported, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("captioner", None)


@pytest.fixture
def bundle(folder: Path) -> Path:
    return folder / "a.bundle"


def test_module_goes_from_export_to_tokens(bundle: Path) -> None:
    told = invoke("inspect", bundle).output
    assert "inputs:      frames float32 (batch, time, 6)" in told
    assert "with a state, a token at a time" in told
    assert "past.1 float32 (batch, past_length, 8)" in told

    same = invoke("verify", bundle, "--module", "captioner:make", "--json")
    assert same.exit_code == 0
    report = json.loads(same.stdout)
    assert report["passed"]
    assert {"memory", "cached steps", "generate", "beam"} <= set(report["largest_difference"])
    differs = invoke("verify", bundle, "--module", "captioner:other")
    assert differs.exit_code == 1
    assert "NOT equal" in differs.output

    lines = invoke("translate", bundle, "--inputs", "rows.npz").stdout.splitlines()
    assert len(lines) == len(ROWS)
    assert all(1 <= len(line.split()) <= 9 for line in lines)
    written = invoke("translate", bundle, "--inputs", "rows.npz", "--jsonl", "-o", "out.jsonl")
    assert written.exit_code == 0
    found = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [" ".join(map(str, row["tokens"])) for row in found] == lines
    # Alone each row gives the same.
    for row, line in zip(ROWS, lines, strict=True):
        np.savez("one.npz", frames=row[None])
        assert invoke("translate", bundle, "--inputs", "one.npz").stdout.splitlines() == [line]


def test_rows_that_cannot_be_decoded_are_named(bundle: Path) -> None:
    bad = ROWS[1].copy()
    bad[0, 0] = np.nan
    rows: dict[str, Any] = {"frames/0": ROWS[0], "frames/1": bad, "frames/2": ROWS[2][:, :5]}
    np.savez("bad.npz", **rows)
    found = invoke("translate", bundle, "--inputs", "bad.npz")
    assert found.exit_code == 1
    assert len(found.stdout.splitlines()) == 3
    assert found.stdout.splitlines()[1:] == ["", ""]
    assert "bad.npz: row 1: 'frames' holds NaN or infinity as float32" in found.stderr
    assert (
        "bad.npz: row 2: 'frames' has shape (4, 5), not (time, 6): 5 instead of 6" in found.stderr
    )


def test_what_is_no_file_of_rows_is_refused(bundle: Path) -> None:
    np.savez("pickled.npz", frames=np.array([{"a": 1}], object))
    np.savez("named.npz", image=ROWS[0][None], frame=ROWS[0])
    np.save("array.npy", ROWS[0])
    Path("text.npz").write_text("no arrays")
    for file, said in (
        ("pickled.npz", "not an .npz file of plain arrays"),
        ("named.npz", "input 'frames' is missing"),
        ("array.npy", "it holds one array"),
        ("text.npz", "not an .npz file"),
    ):
        found = invoke("translate", bundle, "--inputs", file)
        assert found.exit_code == 1
        assert found.stdout == ""
        assert said in found.stderr, found.stderr


def test_options_of_lines_do_not_go_with_rows(bundle: Path) -> None:
    found = invoke("translate", bundle, "lines.txt", "--inputs", "rows.npz", "--ids", "--resume")
    assert found.exit_code == 2
    for said in ("--ids applies to lines", "--resume applies to lines", "lines.txt: give either"):
        assert said in found.stderr
    for verb in (["translate", bundle], ["translate", bundle, "--ids"], ["bench", bundle]):
        taken = invoke(*verb, stdin="5 6")
        assert taken.exit_code != 0
        assert "the model takes frames, not ids or text" in taken.stderr, taken.output


@pytest.mark.usefixtures("no_beam_graph", "few_shapes")
def test_a_single_file_quantised_weights_and_torchscript(folder: Path) -> None:
    one = invoke("onnx", "--module", "captioner:make", "-o", "a.onnx", "--graph", "generate")
    assert one.exit_code == 0, one.output
    assert "input:        frames (batch, time, 6)" in invoke("inspect", "a.onnx").output
    small = invoke("onnx", "--module", "captioner:make", "-o", "q.bundle", "--quantize", "int8",
                   "--samples", "rows.npz")  # fmt: skip
    assert small.exit_code == 0, small.output
    assert "tokens agree" in small.output
    # ``memory[0]`` of a tuple that is not annotated cannot be scripted.
    script = invoke("torchscript", "--module", "captioner:make", "-o", "a.ts")
    assert script.exit_code == 1
    assert "a.ts: cannot be scripted: Captioner.step (captioner.py, line" in script.stderr
    assert "\n" not in script.stderr.strip().removeprefix("Error: ").partition("scripted")[2]
    assert not (folder / "a.ts").exists()


def test_a_module_that_scripts_is_compared(folder: Path) -> None:
    write(folder, RECOMPUTING)
    script = invoke("torchscript", "--module", "captioner:make", "-o", "a.ts")
    assert script.exit_code == 0, script.output
    assert "equal to the code of Captioner" in script.output


def test_options_of_checkpoints_do_not_go_with_a_module(folder: Path) -> None:
    found = invoke("onnx", "--module", "captioner:make", "-o", "b.bundle", "--set", "a=1",
                   "--log-probs")  # fmt: skip
    assert found.exit_code == 2
    assert "--set applies to checkpoints" in found.stderr
    assert "--log-probs applies to checkpoints" in found.stderr
    both = invoke("onnx", "--module", "captioner:make", "--checkpoint", "m.pt", "-o", "b.bundle")
    assert both.exit_code == 2
    neither = invoke("verify", "a.bundle")
    assert neither.exit_code == 2
    assert "--checkpoint" in neither.stderr
