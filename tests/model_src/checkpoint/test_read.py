"""Reading: detection of the layout and the account of every key."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.model_src.checkpoint.files import State, save
from tests.support import tutorial
from tests.support.originals import annotated, rebuilt, rmsnorm
from tfexport.errors import CheckpointError, ConfigError
from tfexport.model_src import (
    load_checkpoint,
)


def test_every_key_is_accounted_for(state: State, tmp_path: Path) -> None:
    found = load_checkpoint(save(state, tmp_path), settings=["num_heads=4"])
    assert set(found.key_report) == set(state)
    assert all(found.key_report.values())
    became = {target for targets in found.key_report.values() for target in targets}
    assert became == set(found.weights) == set(found.build().state_dict())


def test_all_that_is_wrong_comes_in_one_message(state: State, tmp_path: Path) -> None:
    del state["transformer.encoder.layers.1.linear1.bias"]
    state["surplus.weight"] = torch.zeros(2)
    state["generator.bias"][3] = float("nan")
    state["transformer.decoder.norm.weight"][0] = float("inf")
    state["transformer.decoder.layers.0.linear2.weight"] = torch.zeros(16, 25)
    state["transformer.decoder.layers.1.self_attn.in_proj_weight"] = torch.zeros(47, 16)
    state["tgt_tok_emb.embedding.weight"] = state["tgt_tok_emb.embedding.weight"].int()
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(save(state, tmp_path))
    message = str(caught.value)
    for part in (
        "transformer.encoder.layers.1.linear1.bias [24] is missing",
        "surplus.weight was not read",
        "generator.bias holds 1 values that are NaN or infinite",
        "transformer.decoder.norm.weight holds 1 values that are NaN or infinite",
        "transformer.decoder.layers.0.linear2.weight has shape [16, 25], expected [16, 24]",
        "layers.1.self_attn.in_proj_weight has shape (47, 16), which does not split into 3",
        "tgt_tok_emb.embedding.weight holds torch.int32 values",
        "settings=['num_heads=…']",
        "layout='nn-transformer'",
    ):
        assert part in message


@pytest.mark.parametrize("number", ["2", "999999", "9" * 400])
def test_layers_with_a_gap_are_named_however_high_they_count(
    state: State, tmp_path: Path, number: str
) -> None:
    moved = {
        key.replace("encoder.layers.1.", f"encoder.layers.{number}."): value
        for key, value in state.items()
    }
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(save(moved, tmp_path), settings=["num_heads=4"])
    assert f"encoder.layers.{number}." in str(caught.value)


def test_state_dict_in_no_layout_says_which_came_nearest(tmp_path: Path) -> None:
    weights = {
        "generator.bias": torch.zeros(3),
        "mixer.weight": torch.zeros(3),
        "fc": torch.ones(1),
    }
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(save(weights, tmp_path))
    assert "no known layout; the closest is nn-transformer (1 of 3 keys)" in str(caught.value)
    assert "Unknown keys: mixer.weight, fc" in str(caught.value)


def test_unknown_layout_names_the_known_ones(state: State, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'bert' is not one of 'nn-transformer', "):
        load_checkpoint(save(state, tmp_path), layout="bert")


@pytest.mark.parametrize("text", ["{", "[]", ""], ids=["broken", "a list", "empty"])
def test_config_file_that_is_none_is_named(state: State, tmp_path: Path, text: str) -> None:
    path = save(state, tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_checkpoint(path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_read_as_float32(
    state: State, tmp_path: Path, dtype: torch.dtype
) -> None:
    path = save({key: value.to(dtype) for key, value in state.items()}, tmp_path)
    found = load_checkpoint(path, settings=["num_heads=4"])
    assert {tensor.dtype for tensor in found.weights.values()} == {torch.float32}


def test_every_weight_is_from_the_file_or_computed_in_every_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw_nothing(part: nn.Module) -> None:
        for parameter in part.parameters():
            nn.init.constant_(parameter, float("nan"))

    monkeypatch.setattr("tfexport.model_src.build.initialise", draw_nothing)
    heads = {"num_heads": 4}
    originals: dict[str, tuple[nn.Module, dict[str, Any]]] = {
        "nn-transformer": (tutorial.make(), heads),
        "nn-transformer-rebuilt": (
            rebuilt.Rebuilt(),
            {**heads, "num_encoder_layers": 2, "num_decoder_layers": 2},
        ),
        "annotated": (annotated.Annotated(), heads),
        "rmsnorm": (rmsnorm.RMSNormModel(), {}),
    }
    for layout, (original, config) in originals.items():
        tables = (".pe", "pos_embedding")
        state = {k: v for k, v in original.state_dict().items() if not k.endswith(tables)}
        torch.save(state, tmp_path / "model.pt")
        found = load_checkpoint(tmp_path, config)
        assert found.layout == layout
        for name, tensor in found.build().state_dict().items():
            assert torch.isfinite(tensor).all(), f"{layout}: {name}"


def test_misspelt_table_is_named_where_no_layout_is_found(tmp_path: Path) -> None:
    state = {f"net.{key}": value for key, value in tutorial.make().state_dict().items()}
    state |= {f"other.{i}": torch.zeros(1) for i in range(9)}
    torch.save({f"x{i}.{key}": value for i, (key, value) in enumerate(state.items())},
               tmp_path / "net.pt")  # fmt: skip
    with pytest.raises(CheckpointError, match="no known layout") as caught:
        load_checkpoint(
            tmp_path / "net.pt", {"renames": {"net.{weight}": "{weight}"}, "num_heads": 2}
        )
    assert "Note: config: unknown key 'renames'; did you mean 'rename'?" in str(caught.value)


def test_shape_of_heads_is_judged_only_where_all_are_there(tmp_path: Path) -> None:
    state = rmsnorm.RMSNormModel().state_dict()
    key = next(key for key in state if "attention_blocks.1.K_net" in key)
    del state[key]
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(tmp_path / "model.pt")
    assert "K_net.weight is there 2 times, expected 3" in str(caught.value)
    assert "has shape" not in str(caught.value)
