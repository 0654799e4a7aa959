"""``tfexport verify``."""

from pathlib import Path

import pytest
import torch

from tests.support import tutorial
from tests.support.command import invoke


@pytest.mark.usefixtures("few_shapes")
def test_verify_fails_with_status_1_where_the_model_is_another(
    tmp_path: Path, tiny_bundle: Path, tutorial_model: tutorial.TutorialModel
) -> None:
    state = {key: value.clone() for key, value in tutorial_model.state_dict().items()}
    state["transformer.encoder.layers.0.linear1.bias"] += 0.1
    torch.save(state, tmp_path / "other.pt")
    done = invoke("verify", tiny_bundle, "--checkpoint", tmp_path / "other.pt")
    assert done.exit_code == 1
    assert "NOT equal to torch.nn.Transformer: first difference in encoder states" in done.stdout
