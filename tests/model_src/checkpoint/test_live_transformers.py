"""Live models of transformers are taken as their folder would be, and their own forward is run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.hf_models import FAMILIES, make_model, save_folder
from tfexport.export.reference.live_module import LiveModule
from tfexport.model_src.checkpoint.read import load_checkpoint
from tfexport.model_src.checkpoint.read_options import checkpoint_of

pytest.importorskip("transformers")
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_live_model_is_read_as_its_folder(tmp_path: Path, family: str) -> None:
    model = make_model(family)
    folder = load_checkpoint(save_folder(model, tmp_path / "folder"))
    live = checkpoint_of(model)
    assert live.layout == folder.layout
    assert live.config == folder.config
    assert live.read_generation() == folder.read_generation()
    assert live.weights.keys() == folder.weights.keys()
    for name, weight in folder.weights.items():
        assert torch.equal(live.weights[name], weight), name


@pytest.mark.parametrize("family", ["marian", "t5", "fsmt"])
def test_its_own_forward_is_run(family: str) -> None:
    model = make_model(family)
    live = LiveModule(model, checkpoint_of(model))
    assert live.title == f"your {type(model).__name__}.forward"
    source, target = torch.randint(3, 50, (2, 7)), torch.randint(3, 50, (2, 4))
    with torch.no_grad():
        wanted = model(input_ids=source, decoder_input_ids=target, use_cache=False).logits
    torch.testing.assert_close(live(source, target), wanted)


def test_one_inside_a_module_of_training_is_found() -> None:
    class Training(nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

    model = make_model("marian")
    found = checkpoint_of(Training(model))
    assert found.layout == "marian"
    assert found.config == checkpoint_of(model).config


def test_values_of_the_caller_win() -> None:
    found = checkpoint_of(make_model("marian"), {"eos_id": 5})
    assert found.config.eos_id == 5
