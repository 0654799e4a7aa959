"""Folders of JoeyNMT: read without it, as its own mathematics has them."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.support.toolkits import joeynmt
from tests.support.toolkits.drawn import both, difference
from tfexport.errors import CheckpointError, ConfigError
from tfexport.model_src import load_checkpoint


@pytest.mark.parametrize("seed", range(30))
def test_drawn_models_say_what_joey_says(tmp_path: Path, seed: int) -> None:
    case = joeynmt.write(seed, tmp_path)
    found = load_checkpoint(case.path)
    config = found.config.to_dict()
    assert {key: config[key] for key in case.config} == dict(case.config)
    assert difference(*both(found, case.vocab, seed)) < 1e-4


def change(folder: Path, **changes: Any) -> None:
    """Change options of the decoder alone."""
    values = yaml.safe_load((folder / "config.yaml").read_text())
    values["model"]["decoder"] |= changes
    (folder / "config.yaml").write_text(yaml.safe_dump(values))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"type": "recurrent"}, r"type: 'recurrent' is not supported"),
        ({"activation": "tanh"}, r"activation: 'tanh' is not supported"),
        ({"alpha": 3.0}, r"alpha: 1\.0 of the encoder and 3\.0 of the decoder"),
        ({"layer_norm": "rms"}, r"layer_norm: 'rms' is not supported"),
        ({"num_heads": "two"}, r"num_heads: 'two' is not an integer"),
    ],
)
def test_option_that_is_not_supported_is_named(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    joeynmt.write(1, tmp_path, alpha=1.0)
    change(tmp_path, **changes)
    with pytest.raises(ConfigError, match=message):
        load_checkpoint(tmp_path)


def test_scale_of_one_side(tmp_path: Path) -> None:
    case = joeynmt.write(5, tmp_path)
    values = yaml.safe_load((tmp_path / "config.yaml").read_text())
    values["model"]["tied_embeddings"] = False
    values["model"]["encoder"]["embeddings"]["scale"] = False
    values["model"]["decoder"]["embeddings"]["scale"] = True
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError, match="a scale of the target only"):
        load_checkpoint(case.path)


def test_folder_with_something_wrong_says_so_once(tmp_path: Path) -> None:
    joeynmt.write(1, tmp_path)
    state = torch.load(tmp_path / "best.ckpt", weights_only=True)
    del state["model_state"]["encoder.layers.0.layer_norm.bias"]
    state["model_state"]["decoder.copy.weight"] = torch.ones(3)
    torch.save(state, tmp_path / "best.ckpt")
    with pytest.raises(CheckpointError) as raised:
        load_checkpoint(tmp_path)
    assert "encoder.layers.0.layer_norm.bias" in str(raised.value)
    assert "decoder.copy.weight was not read" in str(raised.value)
    (tmp_path / "config.yaml").write_text("model: [")
    with pytest.raises(CheckpointError, match=r"config\.yaml: not readable as YAML"):
        load_checkpoint(tmp_path)


def test_weights_alone_need_what_the_options_say(tmp_path: Path) -> None:
    joeynmt.write(1, tmp_path)
    (tmp_path / "config.yaml").unlink()
    with pytest.raises(ConfigError, match=r"num_heads, norm_placement \(.*\), scale_embeddings"):
        load_checkpoint(tmp_path)
