"""``tfexport inspect``, of bundles, checkpoints, single files and things of other kinds."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch

from tests.conftest import CONFIG, SETTINGS
from tests.support import tutorial
from tests.support.command import IDS, invoke, run
from tests.support.manifests import rewrite
from tests.support.paths import VERSION_1
from tfexport.bundle import MANIFEST
from tfexport.cli.bundle_description import domains_text
from tfexport.cli.description_lines import parity_text, print_config, weights_text
from tfexport.errors import TfexportError
from tfexport.export import export
from tfexport.manifest import digest_of
from tfexport.model_src.checkpoint.keymap import compact_report


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    torch.save(tutorial.make().state_dict(), tmp_path / "model.pt")
    return tmp_path / "model.pt"


def test_all_that_stands_in_the_way_of_a_bundle_is_named(checkpoint: Path) -> None:
    shown = invoke("inspect", checkpoint, "--json")
    facts = json.loads(shown.stdout)
    (problem,) = facts["problems"]
    for key in ("num_heads", "pad_id", "bos_id", "eos_id"):
        assert f"--set {key}=…" in problem
        assert facts["config"][key] == {"value": None, "origin": "missing"}
    assert facts["config"]["head_dim"] == {"value": None, "origin": "missing"}
    half = json.loads(invoke("inspect", checkpoint, "--set=num_heads=2", "--json").stdout)
    assert half["config"]["num_heads"] == {"value": 2, "origin": "--set"}
    assert half["config"]["head_dim"] == {"value": 8, "origin": "weights"}
    ready = json.loads(invoke("inspect", checkpoint, "--set=num_heads=4", *IDS, "--json").stdout)
    assert ready["problems"] == []
    assert ready["config"]["head_dim"]["value"] == 4


@pytest.mark.parametrize("options", [[], ["--all"]], ids=["short", "all"])
def test_the_summary_comes_first_and_the_problems_last(
    checkpoint: Path, options: list[str]
) -> None:
    lines = invoke("inspect", checkpoint, *options).stdout.splitlines()
    assert lines[0].startswith(f"{checkpoint}: a checkpoint, ")
    assert lines[1] == "layout:     nn-transformer"
    assert lines[-2] == "problems:   1"
    assert lines[-1].startswith("problem: required, but not in the file: num_heads")
    told = invoke("inspect", VERSION_1, *options).stdout
    assert told.startswith(f"{VERSION_1}: a bundle of tfexport ")
    assert "parity:" in told.partition("┏")[0]
    every = options == ["--all"]
    assert ("│ d_model " in told, "│ weights.bin " in told) == (every, every)
    assert ("│ dropout " in "\n".join(lines)) == every
    assert len(told.splitlines()) < 25 or every
    text = invoke("inspect", checkpoint, "--set=num_heads=4", *IDS).stdout
    assert "problems:   none" in text
    assert "problem: " not in text


def test_what_no_layout_reads_ends_in_the_lines_that_export_the_module(
    checkpoint: Path, tmp_path: Path
) -> None:
    def code(text: str) -> str:
        return text.partition("\n\n")[2]

    torch.save({"a": torch.ones(1), "b": torch.ones(1)}, tmp_path / "other.pt")
    for verb in (("inspect",), ("onnx", "-o", tmp_path / "x", "--checkpoint")):
        told = invoke(*verb, tmp_path / "other.pt").stderr
        assert "no known layout" in told
        compile(code(told), "told", "exec")
        assert str(tmp_path / "other.pt") in code(told)
    torch.save(tutorial.make().state_dict() | {"gate": torch.ones(1)}, checkpoint)
    told = invoke("inspect", checkpoint, "--set=num_heads=4", *IDS).stdout
    assert "problem: gate was not read" in told
    assert str(checkpoint) in code(told)
    facts = json.loads(invoke("inspect", checkpoint, "--set=num_heads=4", *IDS, "--json").stdout)
    assert facts["remedy"].endswith(code(told).rstrip("\n"))


def test_a_length_that_is_transformers_default_is_said_to_be_one(tmp_path: Path) -> None:
    folder = shutil.copytree(VERSION_1, tmp_path / "a.bundle")
    values = {"generation": {"max_length": 19}, "origins": {"max_length": "transformers"}}
    rewrite(folder, lambda manifest: manifest.update(**values))
    settings = "transformers' default: the model's files set no value: max_length=19"
    assert settings in invoke("inspect", folder).stdout
    assert json.loads(invoke("inspect", folder, "--json").stdout)["origins"] == values["origins"]


def test_keys_are_printed_as_they_are(tmp_path: Path) -> None:
    # Neither rich's markup nor its emoji codes; half of a surrogate pair cannot be written.
    state = tutorial.make().state_dict() | {"a[/b]": torch.ones(1), "[red]:x:": torch.ones(1)}
    torch.save(state | {"c\ud800": torch.ones(1)}, tmp_path / "model.pt")
    done = run("inspect", tmp_path / "model.pt")
    assert not done.stderr
    for key in ("a[/b]", "[red]:x:", "c?"):
        assert f"│ {key} " in done.stdout.decode()


def test_notes_are_printed_and_in_the_json(tmp_path: Path) -> None:
    state = {f"model.{key}": value for key, value in tutorial.make().state_dict().items()}
    torch.save(state, tmp_path / "model.pt")
    assert "note: every key starts with 'model.'" in invoke("inspect", tmp_path).stdout
    assert len(json.loads(invoke("inspect", tmp_path, "--json").stdout)["notes"]) == 1


def test_layers_and_heads_alike_share_a_row(checkpoint: Path) -> None:
    rows = compact_report(
        {
            **{f"e.{i}.a.{h}.Q.w": [f"enc.{i}.q.w"] for i in range(3) for h in range(2)},
            **{f"e.{i}.norm": [] for i in range(3)},
            "e.0.other": ["x"],
            "x.0.lut.w": ["t"],
            "x.1.lut.w": ["u"],
            **{f"l.{i}.w": [f"enc.{i // 2}.up.w"] for i in (1, 3)},
            **{f"n.{i}.g": ["enc.0.norm", "norm"] for i in range(2)},
        }
    )
    assert rows == {
        "e.{0…2}.a.{0…1}.Q.w": ["enc.{0…2}.q.w"],
        "e.{0…2}.norm": [],
        "e.0.other": ["x"],
        "x.0.lut.w": ["t"],
        "x.1.lut.w": ["u"],
        "l.{1,3}.w": ["enc.{0…1}.up.w"],
        "n.{0…1}.g": ["enc.0.norm", "norm"],
    }
    told = invoke("inspect", checkpoint, "--all").stdout
    assert "transformer.encoder.layers.{0…1}.norm1.weight" in told


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("README.md", b"# A page\n", "it holds text"),
        ("a.png", b"\x89PNG\r\n\x1a\n\xff\xfe", "bytes of an unknown form"),
        ("empty", b"", "it is empty"),
        ("encoder.onnx", b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        ("b.bundle/manifest.json", b"<!doctype html>", "a web page (HTML)"),
    ],
)
def test_a_file_that_is_no_artifact_is_named_for_its_content(
    tmp_path: Path, name: str, content: bytes, what: str
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(content)
    shown = invoke("inspect", tmp_path / name.partition("/")[0])
    assert shown.exit_code == 1
    assert what in shown.stderr


@pytest.mark.parametrize("name", ["model", "model.pt", "model.onnx", "x.bundle/manifest.json"])
def test_a_pipe_is_never_waited_for(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / name)
    shown = invoke("inspect", tmp_path / name.partition("/")[0])
    assert shown.exit_code == 1
    assert "a named pipe" in shown.stderr or "neither bundle nor checkpoint" in shown.stderr


def test_folder_and_archive_of_other_things_are_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("notes.txt", "x")
    shown = invoke("inspect", tmp_path / "a.zip").stderr
    assert "a zip archive that torch.save did not write; it holds notes.txt" in shown
    shown = invoke("inspect", tmp_path).stderr
    assert "a folder with neither bundle nor checkpoint; it holds a.zip" in shown


def test_options_of_checkpoints_are_refused_for_what_was_exported() -> None:
    options = ("--set=num_heads=2", "--config", "x.json", "--format", "bart")
    done = invoke("inspect", VERSION_1, *options)
    assert done.exit_code == 2
    for option in ("--set", "--config", "--format"):
        assert (
            f"{option} applies to checkpoints, but {VERSION_1} was already exported" in done.stderr
        )


def test_foreign_onnx_file_is_named(tmp_path: Path) -> None:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 20})
    ir.save(ir.Model(graph, ir_version=10), tmp_path / "a.onnx")
    assert (
        "an ONNX file that tfexport did not write" in invoke("inspect", tmp_path / "a.onnx").stderr
    )


def test_a_file_of_a_bundle_is_named_with_its_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(VERSION_1, tmp_path / "a.bundle")
    for name, what in {
        "generate.onnx": "the graph 'generate'", "step.onnx": "the graph 'step'",
        "weights.bin": "a file", "manifest.json": "a file",
    }.items():  # fmt: skip
        path = tmp_path / "a.bundle" / name
        found = invoke("inspect", path)
        assert found.exit_code == 0, found.output
        assert f"{path}: {what} of the bundle {path.parent}, of tfexport " in found.stdout
        assert f"tfexport inspect {path.parent}" in found.stdout
        assert "already exported" in invoke("inspect", path, "--set=d_model=8").stderr
    facts = json.loads(invoke("inspect", tmp_path / "a.bundle/generate.onnx", "--json").stdout)
    assert (facts["graph"], facts["bundle"]) == ("generate", str(tmp_path / "a.bundle"))
    told = f"the graph 'generate' of the bundle {tmp_path / 'a.bundle'}"
    checkpoint = ["--checkpoint", str(tmp_path / "x.pt")]
    for verb, options in (("translate", []), ("bench", []), ("verify", checkpoint)):
        refused = invoke(verb, tmp_path / "a.bundle" / "generate.onnx", *options)
        assert refused.exit_code == 1
        assert told in refused.stderr
    monkeypatch.chdir(tmp_path / "a.bundle")
    assert told in invoke("inspect", "generate.onnx").stdout
    shutil.copy("generate.onnx", tmp_path / "alone.onnx")
    alone = invoke("inspect", tmp_path / "alone.onnx")
    assert alone.exit_code == 1
    assert "the graph 'generate' of a bundle that tfexport wrote, without" in alone.stderr
    (tmp_path / "a.bundle" / "other.txt").write_text("x")
    assert "neither a bundle, a checkpoint" in invoke("inspect", "other.txt").stderr


NO_TORCH = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "onnx", "onnx_ir", "safetensors"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
from tfexport.cli.main import cli
cli.main(["inspect", sys.argv[1]], standalone_mode=False)
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.pt", "a PyTorch checkpoint or program; this needs torch"),
        (".", "a folder with a checkpoint; this needs torch"),
        ("a.onnx", "an ONNX file; this needs onnx"),
        ("page.md", "it holds text"),
    ],
)
def test_without_torch_it_is_said_what_a_thing_is_and_what_reads_it(
    checkpoint: Path, name: str, message: str
) -> None:
    folder = checkpoint.parent
    (folder / "page.md").write_text("# A page\n")
    (folder / "a.onnx").write_bytes(b"\x08\x0a")
    command = [sys.executable, "-c", NO_TORCH, str(folder / name)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert message in done.stderr
    assert "MissingDependencyError" in done.stderr or "CheckpointError" in done.stderr


ODD: list[Any] = [None, 3, "x", [], [1], {}, {"gate": 3}, {"kept": 3}, {"kept": [1]}, True, 1e999]
ODD += [{"gate": {"agreement": "x", "tokens": 1}}, {"gate": {}}, {"reference": []}, "9" * 5000]


@pytest.mark.parametrize("value", ODD, ids=lambda value: str(value)[:20])
def test_any_value_of_a_manifest_or_of_metadata_is_printed(value: Any, tmp_path: Path) -> None:
    for text in (parity_text, weights_text, domains_text):
        assert len(text(value)) < 200
    print_config({"key": value, "[red]": "[/]"})


def rewritten(folder: Path, changes: dict[str, Any]) -> Path:
    """A bundle whose manifest says something else, with the digest that fits."""
    bundle = folder / "b.bundle"
    shutil.copytree(VERSION_1, bundle)
    values = {**json.loads((bundle / MANIFEST).read_text()), **changes}
    values["digest"] = digest_of(values)
    (bundle / MANIFEST).write_text(json.dumps(values))
    return bundle


@pytest.mark.parametrize("flags", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize("key", ["opset", "parity", "quantization", "config"])
def test_bundle_with_odd_values_gives_no_traceback(
    tmp_path: Path, key: str, flags: list[str]
) -> None:
    values = json.loads((VERSION_1 / MANIFEST).read_text())
    nested: Any = 1
    for _ in range(940):
        nested = [nested]
    for number, value in enumerate([*ODD[:9], nested]):
        changed = {**values["config"], "odd": value} if key == "config" else value
        bundle = rewritten(tmp_path / str(number), {key: changed})
        shown = invoke("inspect", bundle, *flags)
        assert shown.exception is None or isinstance(shown.exception, SystemExit | TfexportError)
        assert shown.exit_code in (0, 1)


def test_inspect_of_a_checkpoint_shows_what_was_read_and_assumed(tiny_checkpoint: Path) -> None:
    facts = json.loads(invoke("inspect", tiny_checkpoint, "--json").stdout)
    assert facts["layout"] == "nn-transformer"
    assert facts["config"]["d_model"] == {"value": 8, "origin": "weights"}
    assert facts["config"]["activation"] == {"value": "relu", "origin": "assumed"}
    assert facts["config"]["num_heads"] == {"value": None, "origin": "missing"}
    assert facts["keys"]["generator.bias"] == ["output_proj.bias"]
    trained = sum(
        value.numel()
        for key, value in torch.load(tiny_checkpoint).items()
        if key != "positional_encoding.pos_embedding"
    )
    assert facts["parameters"] == trained
    text = invoke("inspect", tiny_checkpoint, "--set", "num_heads=2", "--all").stdout
    assert re.search(r"num_heads\W+2\W+--set", text)
    text = invoke("inspect", tiny_checkpoint, "--set", "num_heads=2").stdout
    assert "settings:   --set: num_heads=2" in text
    assert "activation='relu'" in text.partition("assumed: the layout's default: ")[2]


def test_inspect_of_a_broken_checkpoint_names_its_problems(
    tmp_path: Path, tutorial_model: tutorial.TutorialModel
) -> None:
    state = dict(tutorial_model.state_dict())
    del state["generator.weight"]
    torch.save({**state, "other": torch.ones(1)}, tmp_path / "a.pt")
    done = invoke("inspect", tmp_path / "a.pt")
    assert done.exit_code == 1
    assert "problem: generator.weight [19, 8] is missing" in done.stdout
    assert "problem: other was not read" in done.stdout


@pytest.mark.parametrize("kind", ["generate", "torchscript"])
def test_inspect_of_a_single_file(
    tmp_path: Path, tutorial_model: tutorial.TutorialModel, kind: str
) -> None:
    path = tmp_path / ("g.onnx" if kind == "generate" else "m.ts")
    if kind == "generate":
        export(tutorial_model, path, graph="generate", config=CONFIG, verify=False)
    else:
        export(tutorial_model, path, graph="torchscript", config=SETTINGS, verify=False)
    assert "eos_id" not in invoke("inspect", str(path)).output
    shown = invoke("inspect", str(path), "--all")
    assert shown.exit_code == 0, shown.output
    assert f"{kind}, of tfexport" in shown.output
    assert "not compared with eager PyTorch" in shown.output
    assert "eos_id" in shown.output
    if kind == "generate":
        assert "needs:        onnxruntime 1.21" in shown.output
        assert "input:        input_ids (batch, source_length)" in shown.output
    facts = json.loads(invoke("inspect", str(path), "--json").stdout)
    assert facts["kind"] == kind
    assert facts["config"]["eos_id"] == 2


def test_inspect_of_a_bundle(tiny_bundle: Path) -> None:
    text = invoke("inspect", tiny_bundle).stdout
    assert "checksums good" in text
    assert "equal to torch.nn.Transformer" in text
    assert json.loads(invoke("inspect", tiny_bundle, "--json").stdout)["format_version"] == 1
    assert invoke("inspect", tiny_bundle.parent / "none").exit_code == 1
