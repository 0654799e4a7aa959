"""``tfexport torchscript``. What the file computes is tested in tests/export/artifacts."""

import shutil
from pathlib import Path

import pytest
import torch

from tests.support.combinations import few_of
from tests.support.command import IDS, invoke
from tfexport.export import read_info
from tfexport.runtime import Translator


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit's own
def test_written_file_gives_the_tokens_of_the_bundle(
    tmp_path: Path, tiny_checkpoint: Path, tiny_bundle: Path
) -> None:
    output = tmp_path / "m.ts"
    done = invoke("torchscript", "--checkpoint", tiny_checkpoint, "-o", output, "--no-verify",
                  "--set=num_heads=2", *IDS)  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "not compared" in done.stdout
    source = torch.tensor([[12, 4, 4, 5, 6]])
    sequences = torch.jit.load(output).generate(source, torch.ones_like(source), 8)
    (expected,) = Translator(tiny_bundle).generate([source[0].tolist()], max_length=8,
                                                   return_end_token=True)  # fmt: skip
    assert sequences[0].tolist() == expected.hypotheses[0].tokens


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["--checkpoint", "nothing.pt"], 1, "nothing.pt: no such file or folder."),
        (["--checkpoint", "model.pt"], 2, "required, but not in the file: num_heads, pad_id"),
        (["--checkpoint", "model.pt", "--format", "bert"], 2, "'bert' is not one of"),
        ([], 2, "Missing option '--checkpoint'"),
    ],
)
def test_wrong_use_says_so_and_leaves_nothing(
    tmp_path: Path, tiny_checkpoint: Path, args: list[str], status: int, message: str
) -> None:
    shutil.copy(tiny_checkpoint, tmp_path / "model.pt")
    files = [str(tmp_path / arg) if arg.endswith(".pt") else arg for arg in args]
    done = invoke("torchscript", "-o", tmp_path / "m.ts", *files)
    assert done.exit_code == status, done.output
    assert message in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "kind"),
    few_of([("m", "torchscript"), ("m.pt2", "torch.export")], ("m", "torchscript")),
)
def test_name_says_what_is_written(
    tmp_path: Path, tiny_checkpoint: Path, name: str, kind: str
) -> None:
    output = tmp_path / name
    done = invoke("torchscript", "--checkpoint", tiny_checkpoint, "-o", output, "--no-verify",
                  "--set=num_heads=2", *IDS)  # fmt: skip
    assert done.exit_code == 0, done.output
    info = read_info(output)
    assert info is not None
    assert info.kind == kind


def test_existing_output_is_kept_without_force(tmp_path: Path) -> None:
    (tmp_path / "m.ts").write_text("mine")
    done = invoke("torchscript", "--checkpoint", "unread.pt", "-o", tmp_path / "m.ts")
    assert done.exit_code == 1
    assert "already exists" in done.stderr
    assert "--force" in done.stderr
    assert (tmp_path / "m.ts").read_text() == "mine"
