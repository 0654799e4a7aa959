"""``tfexport onnx`` as people run it."""

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import CONFIG
from tests.support.command import invoke
from tfexport.runtime import Translator


@pytest.mark.usefixtures("few_shapes")
def test_onnx_then_verify_then_translate(tmp_path: Path, tiny_checkpoint: Path) -> None:
    bundle = tmp_path / "a.bundle"
    settings = [f"--set={key}={json.dumps(value)}" for key, value in CONFIG.items()]
    done = invoke(
        "onnx", "--checkpoint", tiny_checkpoint, "-o", bundle, "--set", "num_heads=2", *settings
    )
    assert done.exit_code == 0, done.output
    assert "equal to torch.nn.Transformer" in done.stdout
    assert "exporting decoder.onnx" in done.stderr
    # What the checkpoint does not say is taken from the bundle.
    report = tmp_path / "report.html"
    checked = invoke(
        "verify", bundle, "--checkpoint", tiny_checkpoint, "--json", "--report", report
    )
    assert checked.exit_code == 0, checked.output
    assert json.loads(checked.stdout)["passed"] is True
    assert "greedy tokens" in report.read_text()
    table = invoke("verify", bundle, "--checkpoint", tiny_checkpoint)
    assert "cached steps" in table.stdout
    translated = invoke("translate", bundle, "--ids", "--max-length", 6, stdin="12 4 4 5 6\n\n5\n")
    expected = Translator(bundle).generate([[12, 4, 4, 5, 6], [], [5]], max_length=6)
    lines = [" ".join(map(str, result.hypotheses[0].tokens)) for result in expected]
    assert translated.stdout.split("\n") == [*lines, ""]


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["--checkpoint", "nothing.pt"], 1, "nothing.pt: no such file or folder."),
        (["--checkpoint", "model.pt", "--set", "num_hedas=2"], 2, "did you mean 'num_heads'?"),
        (["--checkpoint", "model.pt", "--set", "num_heads=3"], 2, "3 heads do not divide"),
        (["--checkpoint", "model.pt"], 2, "required, but not in the file: num_heads, pad_id"),
        (["--checkpoint", "model.pt", "--format", "bert"], 2, "'bert' is not one of"),
        (["--checkpoint", "model.pt", "--opset", "13"], 2, "13 is not in the range 18<=x<=25"),
        (
            ["--checkpoint", "model.pt", "--config", "no.json"],
            1,
            "no.json: cannot be read: No such file",
        ),
        (["--checkpoint", "text.pt"], 1, "text.pt: not a PyTorch checkpoint."),
        ([], 2, "Missing option '--checkpoint'"),
    ],
)
def test_wrong_use_of_onnx_says_so_and_leaves_nothing(
    tmp_path: Path, tiny_checkpoint: Path, args: list[str], status: int, message: str
) -> None:
    shutil.copy(tiny_checkpoint, tmp_path / "model.pt")
    (tmp_path / "text.pt").write_text("hello, no checkpoint")
    before = sorted(tmp_path.iterdir())
    files = [str(tmp_path / a) if a.endswith((".pt", ".json")) else a for a in args]
    done = invoke("onnx", "-o", tmp_path / "a.bundle", *files)
    assert done.exit_code == status, done.output
    assert message in done.stderr
    assert "Traceback" not in done.output
    assert sorted(tmp_path.iterdir()) == before


def test_existing_output_is_kept_without_force(tmp_path: Path, tiny_bundle: Path) -> None:
    done = invoke("onnx", "--checkpoint", "unread.pt", "-o", tiny_bundle)
    assert done.exit_code == 1
    assert "already exists. Use --force" in done.stderr
    (tmp_path / "file").write_text("mine")
    done = invoke("onnx", "--checkpoint", "unread.pt", "-o", tmp_path / "file", "--force")
    assert done.exit_code == 1
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("name", ["m.ts", "m.pt", "m.pt2", "m.onnx"])
def test_a_bundle_is_not_named_like_a_file(tmp_path: Path, name: str) -> None:
    done = invoke("onnx", "--checkpoint", "unread.pt", "-o", tmp_path / name)
    assert done.exit_code == 2
    assert name in done.stderr
    assert ("--graph" if name == "m.onnx" else "tfexport torchscript") in done.stderr
