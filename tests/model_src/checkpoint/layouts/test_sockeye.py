"""Folders of Sockeye: read without it, as its own mathematics has them."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.toolkits import sockeye
from tests.support.toolkits.drawn import both, difference
from tfexport.errors import CheckpointError, ConfigError
from tfexport.model_src import load_checkpoint


@pytest.mark.parametrize("seed", range(30))
def test_drawn_models_say_what_sockeye_says(tmp_path: Path, seed: int) -> None:
    case = sockeye.write(seed, tmp_path)
    found = load_checkpoint(case.path)
    config = found.config.to_dict()
    assert {key: config[key] for key in case.config} == dict(case.config)
    assert difference(*both(found, case.vocab, seed)) < 1e-4


REFUSED: dict[str, Any] = {
    "lhuc": True, "neural_vocab_selection": "logit_max", "dtype": "int8",
    "decoder_type": "ssru_transformer", "preprocess_sequence": "rn",
    "block_prepended_cross_attention": True, "attention_heads": "x", "act_type": "tanh",
}  # fmt: skip


@pytest.mark.parametrize("option", REFUSED)
def test_option_that_is_not_supported_is_named(tmp_path: Path, option: str) -> None:
    if option == "act_type":
        sockeye.write(0, tmp_path)
        text = (tmp_path / "config").read_text()
        (tmp_path / "config").write_text(re.sub(r"act_type: \w+", "act_type: tanh", text))
    else:
        sockeye.write(0, tmp_path, **{option: REFUSED[option]})
    with pytest.raises(ConfigError, match=option):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("embedding_source.factor_embeds.0.weight", "factors"),
        ("decoder.layers.0.autoregr_layer.forget_gate.weight", r"SSRU"),
        ("encoder.layers.0.lhuc.weight", "LHUC"),
        ("nvs.project_vocab.weight", "neural vocabulary selection"),
        ("encoder.layers.0.other.weight", "was not read"),
    ],
)
def test_tensor_that_is_not_supported_is_named(tmp_path: Path, key: str, reason: str) -> None:
    sockeye.write(0, tmp_path)
    state = torch.load(tmp_path / "params.best", weights_only=True)
    torch.save(state | {key: torch.ones(2, 2)}, tmp_path / "params.best")
    match = rf"{reason}.*{re.escape(key)}|{re.escape(key)}.*{reason}"
    with pytest.raises(CheckpointError, match=match):
        load_checkpoint(tmp_path)


def test_folder_with_something_wrong_says_so_once(tmp_path: Path) -> None:
    sockeye.write(0, tmp_path)
    (tmp_path / "config").write_text("!ModelConfig [")
    with pytest.raises(CheckpointError, match="config: not readable as YAML"):
        load_checkpoint(tmp_path)
    (tmp_path / "config").unlink()
    with pytest.raises((CheckpointError, ConfigError), match="heads of its 'config'"):
        load_checkpoint(tmp_path)
