"""``tfexport demo``."""

import json
from pathlib import Path

import pytest
import torch

from tests.conftest import SETTINGS
from tests.support import tutorial
from tests.support.command import invoke
from tfexport.cli.demo_command import DEMO, DemoFiles, find_demo
from tfexport.errors import ConfigError

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("few_shapes", "no_search_graphs")
def test_demo_runs_on_a_model_of_the_right_form(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfexport.cli.demo_command.START_RUNS", 1)
    model = tutorial.make(
        scale=3.0, d_model=8, num_heads=2, encoder_layers=1, decoder_layers=1, d_ff=12,
        source_size=len(words), target_size=len(words),
    )  # fmt: skip
    torch.save(model.state_dict(), tmp_path / "model.pt")
    (tmp_path / "config.json").write_text(json.dumps({"num_heads": 2, "unk_id": 3, **SETTINGS}))
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    (tmp_path / "test.tsv").write_text("w12 w4\tw6 w7\nw4 w5\tw16\n")
    done = invoke("demo", "--model", tmp_path, "-o", tmp_path / "d.bundle")
    assert done.exit_code == 0, done.output
    assert "torch blocked" in done.stdout
    assert "BLEU" in done.stdout
    assert "process start to first translation" in done.stdout


def test_demo_outside_a_clone_says_where_its_model_is(tmp_path: Path) -> None:
    done = invoke("demo", "--model", tmp_path)
    assert done.exit_code == 2
    assert "ships with the repository" in done.stderr


def test_installed_package_finds_the_demo_of_the_clone_that_one_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site-packages/tfexport/cli/demo_command.py"
    monkeypatch.setattr("tfexport.cli.demo_command.__file__", str(installed))
    clone = tmp_path / "clone"
    (clone / DEMO).mkdir(parents=True)
    (clone / DEMO / "test.tsv").write_text("ja\tyes\n")
    monkeypatch.chdir(clone)
    assert find_demo(None) == DemoFiles(Path(DEMO), ["ja"], ["yes"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="run this in the folder of a clone"):
        find_demo(None)
