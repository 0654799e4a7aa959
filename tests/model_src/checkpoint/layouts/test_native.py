"""The project's own format, and its names in other files."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.model_src.checkpoint.files import State, save
from tfexport.errors import CheckpointError
from tfexport.model_src import (
    TransformerConfig,
    build_transformer,
    load_checkpoint,
    save_checkpoint,
)


def test_native_file_brings_its_config(tmp_path: Path) -> None:
    config = TransformerConfig(
        d_model=8, num_heads=2, num_encoder_layers=1, num_decoder_layers=2, d_ff=12, head_dim=3,
        source_vocab_size=9, target_vocab_size=9, norm="rms", norm_placement="res_post",
        tie_embeddings=True, tie_output=True, mask_fill=-1e9, pad_id=0, norm_bias=False,
    )  # fmt: skip
    model = build_transformer(config)
    save_checkpoint(model, tmp_path / "model.safetensors")
    found = load_checkpoint(tmp_path)
    assert found.layout == "native"
    assert found.config == config
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(found.build().state_dict()[name], tensor, atol=0, rtol=0)


@pytest.mark.parametrize("name", ["a", f"encoder.layers.{'9' * 400}.a"], ids=["none", "digits"])
def test_native_file_that_claims_many_layers_is_refused_at_once(tmp_path: Path, name: str) -> None:
    config = {"num_encoder_layers": 10**9, "num_decoder_layers": 10**9, "num_heads": 1}
    metadata = {"tfexport_config": json.dumps(config)}
    save_file({name: torch.ones(1)}, tmp_path / "model.safetensors", metadata)
    with pytest.raises(CheckpointError, match=r"num_encoder_layers|weights are missing"):
        load_checkpoint(tmp_path)


def test_native_file_with_a_damaged_config_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors", {"tfexport_config": "{"})
    with pytest.raises(CheckpointError, match="the config in its metadata: not readable as JSON"):
        load_checkpoint(tmp_path)


def native_state(positions: str) -> tuple[State, dict[str, Any]]:
    config = TransformerConfig(
        d_model=8, num_heads=2, num_encoder_layers=1, num_decoder_layers=1, d_ff=12,
        source_vocab_size=9, target_vocab_size=9, max_positions=16,
        positions=positions,  # type: ignore[arg-type]
    )  # fmt: skip
    return dict(build_transformer(config).state_dict()), config.to_dict()


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_one_position_table_of_two_is_not_enough(tmp_path: Path, positions: str) -> None:
    state, config = native_state(positions)
    table = state.pop("target_embedding.positions.table")
    path = save({**state, "wpe": table}, tmp_path)
    rename = [["^wpe", "target_embedding.positions.table"]]
    load_checkpoint(path, {**config, "rename": rename}, layout="native").build()
    with pytest.raises(CheckpointError, match=r"target_embedding\.positions\.table .* is missing"):
        load_checkpoint(path, {**config, "ignore": "wpe"}, layout="native")


def test_learned_tables_are_never_made_up(tmp_path: Path) -> None:
    state, config = native_state("learned")
    for side in ("source", "target"):
        del state[f"{side}_embedding.positions.table"]
    with pytest.raises(CheckpointError, match=r"source_embedding\.positions\.table .* is missing"):
        load_checkpoint(save(state, tmp_path), config, layout="native")
