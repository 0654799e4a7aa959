"""The project's own format, and its names in other files."""

import json
import re
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
    rename = {"wpe": "target_embedding.positions.table"}
    load_checkpoint(path, {**config, "rename": rename}, layout="native").build()
    with pytest.raises(CheckpointError, match=r"target_embedding\.positions\.table .* is missing"):
        load_checkpoint(path, {**config, "ignore": "wpe"}, layout="native")


def test_learned_tables_are_never_made_up(tmp_path: Path) -> None:
    state, config = native_state("learned")
    for side in ("source", "target"):
        del state[f"{side}_embedding.positions.table"]
    with pytest.raises(CheckpointError, match=r"source_embedding\.positions\.table .* is missing"):
        load_checkpoint(save(state, tmp_path), config, layout="native")


@pytest.mark.parametrize("form", [(1, 16, 8), (16, 1, 8), (1, 16, 1, 8)], ids=str)
@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_position_tables_may_have_axes_of_length_one(
    tmp_path: Path, positions: str, form: tuple[int, ...]
) -> None:
    state, config = native_state(positions)
    table = torch.randn(16, 8)
    for side in ("source", "target"):
        state[f"{side}_embedding.positions.table"] = table.reshape(form)
    found = load_checkpoint(save(state, tmp_path), config, layout="native")
    for side in ("source", "target"):
        kept = found.build().state_dict()[f"{side}_embedding.positions.table"]
        torch.testing.assert_close(kept, table, atol=0, rtol=0)


def test_a_linear_for_each_head_with_biases_is_joined(tmp_path: Path) -> None:
    state, config = native_state("learned")
    split: State = {}
    for key, tensor in state.items():
        match = re.fullmatch(r"(.*_attn\.[qkv]_proj)\.(weight|bias)", key)
        if match is None:
            split[key] = tensor
            continue
        for head, part in enumerate(tensor.chunk(2)):
            split[f"{match[1]}.{head}.{match[2]}"] = part
    assert len(split) == len(state) + 3 * 3 * 2
    del config["num_heads"], config["head_dim"]
    found = load_checkpoint(save(split, tmp_path), config, layout="native")
    assert (found.config.num_heads, found.origins["num_heads"]) == (2, "weights")
    for name, tensor in state.items():
        torch.testing.assert_close(found.weights[name], tensor, atol=0, rtol=0)


def test_a_missing_head_is_named_and_so_is_a_projection_as_it_is_called(tmp_path: Path) -> None:
    state, config = native_state("learned")
    query = "decoder.layers.0.cross_attn.v_proj"
    weight = state.pop(f"{query}.weight")
    with pytest.raises(CheckpointError, match=rf"{query}\.weight \[8, 8\] is missing"):
        load_checkpoint(save(state, tmp_path), config, layout="native")
    state[f"{query}.0.weight"], state[f"{query}.2.weight"] = weight.chunk(2)
    with pytest.raises(CheckpointError, match=rf"{query}\.1\.weight is missing"):
        load_checkpoint(save(state, tmp_path), config, layout="native")
