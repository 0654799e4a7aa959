"""``--reference`` of ``onnx``, ``torchscript`` and ``verify``."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import IDS, invoke

IMPORTS = "from tests.export.artifacts.test_reference import scores_of\n"
IMPORTS += "from tests.support import own_forwards\n"
CODE = IMPORTS + (
    "reference = scores_of(own_forwards.make(own_forwards.Seq2SeqTransformer))\n"
    "unscaled = scores_of(own_forwards.make_unscaled())\n"
)
SENTENCE = (
    "Your own forward was not run: compared with torch.nn.Transformer built from the checkpoint. "
    "Pass --reference to compare with your code."
)
SETTINGS = [*IDS, "--set=num_heads=2", "--set=unk_id=3", "--set=add_source_eos=true"]
COMMANDS = {
    "bundle": ["onnx", "-o", "a.bundle"],
    "graph": ["onnx", "-o", "a.onnx", "--graph", "forward"],
    "torchscript": ["torchscript", "-o", "a.ts"],
}


@pytest.fixture(autouse=True)
def _own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_shapes: None) -> Iterator[None]:
    """A module in the current folder, of a name that nothing else has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "code_of_mine.py").write_text(CODE)
    yield
    sys.modules.pop("code_of_mine", None)


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"code_of_mine.py", "__pycache__"}


@pytest.mark.usefixtures("few_shapes")
@pytest.mark.parametrize("command", COMMANDS)
def test_export_against_code_of_the_users_own(
    tmp_path: Path, tiny_checkpoint: Path, command: str
) -> None:
    arguments = [*COMMANDS[command], "--checkpoint", tiny_checkpoint, *SETTINGS]
    refused = invoke(*arguments, "--reference", "code_of_mine:unscaled")
    assert refused.exit_code == 1
    assert "not equal to your reference: eager modules" in refused.stderr
    assert files(tmp_path) == set()
    done = invoke(*arguments, "--reference", "code_of_mine:reference")
    assert done.exit_code == 0, done.output
    assert "equal to your reference: " in done.stdout
    assert "Your own forward" not in done.output


def test_setting_that_changes_little_is_doubted(tiny_checkpoint: Path) -> None:
    code = ["--reference", "code_of_mine:reference"]
    arguments = [*COMMANDS["graph"], "--checkpoint", tiny_checkpoint, *SETTINGS, *code]
    right = invoke(*arguments)
    assert right.exit_code == 0, right.output
    assert "warning" not in right.stderr
    done = invoke(*arguments, "--force", "--set=norm_eps=5e-5")
    assert done.exit_code == 0, done.output
    assert "warning: eager modules: differs by " in done.stderr
    found = invoke("verify", "a.onnx", "--checkpoint", tiny_checkpoint, *code, *SETTINGS)
    assert "warning: eager modules: differs by " in found.output  # the file has its setting


@pytest.mark.usefixtures("few_shapes")
@pytest.mark.parametrize("command", COMMANDS)
def test_export_without_code_says_so_and_what_to_pass(tiny_checkpoint: Path, command: str) -> None:
    done = invoke(*COMMANDS[command], "--checkpoint", tiny_checkpoint, *SETTINGS)
    assert done.exit_code == 0, done.output
    assert SENTENCE in done.stderr.splitlines()
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.usefixtures("few_shapes")
def test_verify_against_code_of_the_users_own(
    tmp_path: Path, tiny_bundle: Path, tiny_checkpoint: Path
) -> None:
    arguments = ["verify", tiny_bundle, "--checkpoint", tiny_checkpoint, "--set=num_heads=2"]
    done = invoke(*arguments, "--reference", "code_of_mine:reference")
    assert done.exit_code == 0, done.output
    assert "equal to your reference: " in done.stdout
    assert "Your own forward" not in done.output
    other = invoke(*arguments, "--reference", "code_of_mine:unscaled", "--json")
    assert other.exit_code == 1
    assert json.loads(other.stdout)["reference"] == "your reference"
    none = invoke(*arguments, "--report", "page.html")
    assert SENTENCE in none.stdout.splitlines()
    assert SENTENCE in (tmp_path / "page.html").read_text()
    as_json = json.loads(invoke(*arguments, "--json").stdout)
    assert as_json["own_code"] == SENTENCE.replace("--reference", "reference")


def test_only_settings_that_nobody_said_are_to_be_checked(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    known = "The weights do not show these settings, which your files and options do:"
    guessed = "Neither weights nor files show these settings; check each of them:"
    arguments = [*COMMANDS["graph"], "--verify", "quick", "--checkpoint"]
    told = invoke(*arguments, tiny_checkpoint, *SETTINGS).stderr
    said, below = told.partition(known)[2].split(guessed)
    assert "--set: num_heads=2" in said
    assert "assumed" not in said
    assert "norm_placement='post'" in below
    assert "num_heads" not in below
    values = {key: value for key, _, value in (one[6:].partition("=") for one in SETTINGS)}
    every = {
        "norm_placement": "post", "norm_eps": 1e-5, "activation": "relu", "mask_fill": "-inf",
        "positions": "sinusoidal", "scale_embeddings": True, "add_source_bos": True,
        **{key: json.loads(value) for key, value in values.items()},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(every))
    config = ["--force", "--config", tmp_path / "config.json"]
    told = invoke(*arguments, tiny_checkpoint, *config).stderr
    assert known in told
    assert "check each of them" not in told


@pytest.mark.parametrize("command", COMMANDS)
def test_verify_recalls_the_code_that_the_export_was_compared_with(
    tmp_path: Path, tiny_checkpoint: Path, command: str
) -> None:
    code = ["--reference", "code_of_mine:reference"]
    artifact = COMMANDS[command][2]
    done = invoke(*COMMANDS[command], "--checkpoint", tiny_checkpoint, *SETTINGS, *code)
    assert done.exit_code == 0, done.output
    arguments = ["verify", artifact, "--checkpoint", tiny_checkpoint, *SETTINGS]
    found = invoke(*arguments, "--report", "page.html")
    wanted = (
        "Your own forward was not run (the export was compared with your reference, which was not "
        "given here): compared with torch.nn.Transformer built from the checkpoint. "
        "Pass --reference to compare with your code."
    )
    assert found.exit_code == 0, found.output
    assert wanted in found.stdout.splitlines()
    page = (tmp_path / "page.html").read_text()
    assert f"<p>{wanted}</p>" in page
    assert "<h1>" + artifact + ": equal to torch.nn.Transformer</h1>" in page
    assert "was not run" not in invoke(*arguments, *code).output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--reference", "code_of_mine"], "--reference: 'code_of_mine' names no function"),
        (["--reference", "code_of_min:reference"], "--reference: no module 'code_of_min' in /"),
        (["--reference", "code_of_mine:referenc"], "did you mean 'reference'?"),
        (
            ["--reference", "code_of_mine:reference", "--no-verify"],
            "--reference is only used for the comparison; omit --no-verify.",
        ),
    ],
)
def test_reference_that_cannot_be_used_is_a_usage_error(
    tmp_path: Path, tiny_checkpoint: Path, options: list[str], message: str
) -> None:
    done = invoke(*COMMANDS["bundle"], "--checkpoint", tiny_checkpoint, *SETTINGS, *options)
    assert done.exit_code == 2
    assert message in done.stderr
    assert files(tmp_path) == set()


def test_help_says_that_the_code_is_run() -> None:
    for command in ("onnx", "torchscript", "verify"):
        shown = " ".join(invoke(command, "--help").stdout.split())
        assert "It is imported (from the current folder first) and run" in shown
