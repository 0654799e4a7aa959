"""Every verb once, of the wheel that `make test-wheel` installs."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import Result

from tests.conftest import SETTINGS
from tests.serve.servers import serving
from tests.support import tutorial
from tests.support.command import COMMANDS, invoke
from tests.support.paths import REPOSITORY
from tests.support.user_files import RECOMPUTING, UserFile

FACTORY = """

def make():
    from tfexport.export import Input

    torch.manual_seed(0)
    frames = Input("frames", "float32", ("batch", "time", 6))
    return dict(model=Captioner().eval(), inputs=[frames], pad_id=0, bos_id=1, eos_id=2,
                max_length=8)
"""
MODULE = ("--module", "captioner:make")
pytestmark = [
    pytest.mark.messages,
    pytest.mark.usefixtures("few_shapes", "no_search_graphs", "no_beam_graph"),
]


def test_every_verb_is_tried() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f'("{name}"' not in text and name != "serve"] == []


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the demo's bundle, texts, and the file of a module."""
    shutil.copytree(REPOSITORY / "examples" / "de-en.bundle", tmp_path / "de-en.bundle")
    (tmp_path / "german.txt").write_text("Guten Morgen.\nWo ist der Bahnhof?\n", encoding="utf-8")
    (tmp_path / "english.txt").write_text("Good morning.\nWhere is it?\n", encoding="utf-8")
    file = UserFile(tmp_path, RECOMPUTING)
    file.path.write_text(file.text + FACTORY, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args: object, code: int = 0) -> Result:
    done = invoke(*args)
    assert done.exit_code == code, done.output
    return done


def test_verbs_that_decode(here: Path) -> None:
    translated = run("translate", "de-en.bundle", "german.txt").stdout
    assert "Where's the station?" in translated
    assert len(run("score", "de-en.bundle", "german.txt", "english.txt").stdout.split()) == 2
    run("corpus", "de-en.bundle", "german.txt", "out.txt")
    assert (here / "out.txt").read_text(encoding="utf-8") == translated
    run("bench", "de-en.bundle", "german.txt", "--runs", 1, "--batch-size", 2, "--max-length", 4)
    assert "de-en" in run("inspect", "de-en.bundle").stdout
    with serving(here, here / "de-en.bundle") as server:
        assert server.ask("GET", "/metrics").status == 200


def test_verbs_that_need_what_is_not_here_say_so(here: Path) -> None:
    assert (
        "reads no sound; translate takes it"
        in run("transcribe", "de-en.bundle", "german.txt", code=2).stderr
    )
    done = invoke("optimize", "de-en.bundle")
    assert done.exit_code == 0 or "tfexport-native" in done.stderr


def test_verbs_that_export(here: Path, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfexport.cli.demo_command.START_RUNS", 1)
    model = tutorial.make(
        scale=3.0, d_model=8, num_heads=2, encoder_layers=1, decoder_layers=1, d_ff=12,
        source_size=len(words), target_size=len(words),
    )  # fmt: skip
    tiny = here / "tiny"
    tiny.mkdir()
    torch.save(model.state_dict(), tiny / "model.pt")
    (tiny / "config.json").write_text(json.dumps({"num_heads": 2, "unk_id": 3, **SETTINGS}))
    (tiny / "vocab.txt").write_text("\n".join(words) + "\n")
    (tiny / "test.tsv").write_text("w12 w4\tw6 w7\nw4 w5\tw16\n")
    assert "torch blocked" in run("demo", "--model", tiny, "-o", "tiny.bundle").stdout
    run("quantize", "tiny.bundle", "-o", "tiny-int8.bundle")


def test_verbs_that_take_a_module(here: Path) -> None:
    run("onnx", *MODULE, "-o", "captions.bundle", "--verify", "quick")
    run("torchscript", *MODULE, "-o", "captions.ts", "--no-verify")
    run("verify", "captions.bundle", *MODULE, "--level", "quick")
    assert "frames" in run("inspect", "captions.bundle").stdout
