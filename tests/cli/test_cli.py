"""The command as a whole: help, version, what is said of checkpoints and bundles, the demo."""

import json
import re
from pathlib import Path

import click
import pytest
import torch

from tests.conftest import CONFIG, SETTINGS
from tests.support import tutorial
from tests.support.command import invoke, run
from tests.support.paths import REPOSITORY
from tfexport import __version__
from tfexport.cli.console import progress_bar
from tfexport.cli.decoding_options import SCORING
from tfexport.cli.main import cli
from tfexport.cli.tables import parity_table
from tfexport.export import ParityReport, export_graph, export_torchscript
from tfexport.export.parity import Comparison
from tfexport.runtime.scorer import SCORE_OPTIONS


@pytest.mark.parametrize("name", ["", *cli.commands])
def test_every_command_and_option_has_help(name: str) -> None:
    result = invoke(*name.split(), "--help")
    assert result.exit_code == 0
    command = cli.commands[name] if name else cli
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help or parameter.show_default, parameter.name


def test_every_command_and_option_stands_in_the_docs() -> None:
    text = (REPOSITORY / "docs" / "commands.md").read_text(encoding="utf-8")
    for name, command in cli.commands.items():
        section = text.partition(f"## tfexport {name}\n")[2].partition("\n## ")[0]
        assert section, name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                long = max(parameter.opts, key=len)
                assert f"`{long}`" in section, f"{name}: {long}"


def test_version() -> None:
    assert invoke("--version").output == f"tfexport, version {__version__}\n"


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
    text = invoke("inspect", tiny_checkpoint, "--set", "num_heads=2").stdout
    assert re.search(r"num_heads\W+2\W+--set", text)


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
        export_graph(tutorial_model, path, "generate", config=CONFIG, verify=False)
    else:
        export_torchscript(tutorial_model, path, config=SETTINGS, verify=False)
    shown = invoke("inspect", str(path))
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


def test_demo_runs_on_a_model_of_the_right_form(tmp_path: Path, words: list[str]) -> None:
    model = tutorial.make(
        scale=3.0, d_model=8, num_heads=2, encoder_layers=1, decoder_layers=1, d_ff=12,
        source_size=len(words), target_size=len(words),
    )  # fmt: skip
    torch.save(model.state_dict(), tmp_path / "model.pt")
    (tmp_path / "config.json").write_text(json.dumps({"num_heads": 2, "unk_id": 3, **SETTINGS}))
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    (tmp_path / "test.tsv").write_text("w12 w4\tw6 w7\nw4 w5\tw16\n")
    done = run("demo", "--model", tmp_path, "-o", tmp_path / "d.bundle")
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode()
    assert "torch blocked" in text
    assert "BLEU" in text
    assert "process start to first translation" in text


def test_demo_outside_a_clone_says_where_its_model_is(tmp_path: Path) -> None:
    done = invoke("demo", "--model", tmp_path)
    assert done.exit_code == 2
    assert "ships with the repository" in done.stderr


def test_table_keeps_its_columns_where_a_stage_lacks_a_shape_or_has_it_twice() -> None:
    comparisons = [
        Comparison("generate", 8, 7, 0.0, 20),
        Comparison("scores", 8, 7, 1e-6, 8),
        Comparison("text", 8, 40, 0.0, 30),
        Comparison("text", 8, 40, 1.0, 12, near_ties=2),
    ]
    table = parity_table(ParityReport("eager", comparisons), "g.onnx")
    cells = [list(column.cells) for column in table.columns]
    assert [[str(cell) for cell in column] for column in cells[2:]] == [
        ["20 equal", ""],
        ["1.0e-06", ""],
        ["", "✗ 1 rows differ, 2 near ties"],
    ]
    assert getattr(cells[4][1], "style", None) == "bold red"


def test_each_step_of_a_command_is_told_with_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar() as tell:
        for step, done in (("reading", 0), ("writing", 0), ("writing", 1)):
            tell(step, done, 2)
    assert re.fullmatch(r"reading … \d+\.\d s\nwriting … \d+\.\d s\n", capsys.readouterr().err)


def test_scoring_options_are_those_of_the_runtime() -> None:
    # Listed twice, since the command line may not load the runtime to show its help.
    names = {name.replace("-", "_") for name in SCORING}
    assert names == SCORE_OPTIONS
