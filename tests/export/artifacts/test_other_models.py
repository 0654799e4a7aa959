"""An artifact and the checkpoint of another model: differences are named, and nothing is run."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import CONFIG, SETTINGS
from tests.support import tutorial
from tests.support.command import invoke
from tfexport.errors import BundleError
from tfexport.export import export, verify

SIZES: dict[str, Any] = {
    "d_model": 8, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "d_ff": 12,
}  # fmt: skip
OTHERS = [
    ({"encoder_layers": 2}, "num_encoder_layers is 1 here and 2 in the checkpoint"),
    ({"decoder_layers": 2}, "num_decoder_layers is 1 here and 2 in the checkpoint"),
    ({"d_ff": 16}, "d_ff is 12 here and 16 in the checkpoint"),
    ({"d_model": 12, "d_ff": 16}, "d_model is 8 here and 12 in the checkpoint"),
    ({"source_size": 40, "target_size": 30}, "target_vocab_size is 19 here and 30"),
]


@pytest.mark.parametrize(("sizes", "message"), OTHERS, ids=[str(it[0]) for it in OTHERS])
def test_other_sizes_are_named(tiny_bundle: Path, sizes: dict[str, Any], message: str) -> None:
    other = tutorial.make(**{**SIZES, **sizes})
    with pytest.raises(BundleError, match=message) as caught:
        verify(tiny_bundle, other, config=SETTINGS)
    assert "this bundle was not exported from that checkpoint" in str(caught.value)


def test_other_special_ids_are_named(
    tiny_bundle: Path, tutorial_model: tutorial.TutorialModel
) -> None:
    with pytest.raises(BundleError, match="eos_id is 2 here and 5 in the checkpoint"):
        verify(tiny_bundle, tutorial_model, config={**SETTINGS, "eos_id": 5})


@pytest.mark.parametrize("kind", ["generate.onnx", "forward.onnx", "torchscript.ts"])
def test_single_files_name_them_too(
    tmp_path: Path, tutorial_model: tutorial.TutorialModel, kind: str
) -> None:
    path = tmp_path / kind
    if path.suffix == ".onnx":
        export(tutorial_model, path, graph=path.stem, verify=False, config=CONFIG)
    else:
        export(tutorial_model, path, graph="torchscript", verify=False, config=CONFIG)
    other = tutorial.make(**{**SIZES, "encoder_layers": 2})
    with pytest.raises(
        BundleError, match=f"this {path.stem} was not exported from that checkpoint"
    ):
        verify(path, other, config=SETTINGS)


def test_command_line_says_it_in_one_message(tiny_bundle: Path, tmp_path: Path) -> None:
    other = tutorial.make(**{**SIZES, "source_size": 40})
    torch.save(other.state_dict(), tmp_path / "other.pt")
    done = invoke("verify", tiny_bundle, "--checkpoint", tmp_path / "other.pt", "--set=num_heads=2")
    assert done.exit_code == 1
    assert "was not exported from that checkpoint" in done.stderr
    assert "Traceback" not in done.output
