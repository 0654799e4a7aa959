"""The stock layout: position tables of all shapes, packed and separate projections."""

from pathlib import Path

import pytest
import torch

from tests.model_src.checkpoint.files import State, save
from tfexport.model_src import (
    load_checkpoint,
)


def test_a_table_that_the_file_carries_is_used_as_it_is(state: State, tmp_path: Path) -> None:
    table = torch.randn_like(state["positional_encoding.pos_embedding"])
    state["positional_encoding.pos_embedding"] = table
    model = load_checkpoint(save(state, tmp_path), settings=["num_heads=4"]).build()
    for side in ("source", "target"):
        found = model.get_buffer(f"{side}_embedding.positions.table")
        torch.testing.assert_close(found, table.squeeze(1), atol=0, rtol=0)


@pytest.mark.parametrize("shape", [(64, 16), (1, 64, 16), (64, 1, 16)])
def test_position_tables_of_all_shapes_are_read(
    state: State, tmp_path: Path, shape: tuple[int, ...]
) -> None:
    key = "positional_encoding.pos_embedding"
    state[key] = state[key].reshape(shape)
    found = load_checkpoint(save(state, tmp_path), settings=["num_heads=4"])
    assert found.weights["source_embedding.positions.table"].shape == (64, 16)


def test_without_a_table_the_sinusoidal_one_is_computed(state: State, tmp_path: Path) -> None:
    table = state.pop("positional_encoding.pos_embedding").squeeze(1)
    found = load_checkpoint(save(state, tmp_path), settings=["num_heads=4", "max_positions=64"])
    computed = found.build().get_buffer("source_embedding.positions.table")
    torch.testing.assert_close(computed, table, atol=1e-5, rtol=0)


def test_separate_projections_are_read_with_their_biases(state: State, tmp_path: Path) -> None:
    expected = load_checkpoint(save(state, tmp_path), {"num_heads": 4}).weights
    for key in [key for key in state if "in_proj_" in key]:
        for part, third in zip("qkv", state.pop(key).chunk(3), strict=True):
            state[key.replace("in_proj_", f"{part}_proj_")] = third.clone()
    found = load_checkpoint(save(state, tmp_path), {"num_heads": 4})
    for name, tensor in expected.items():
        torch.testing.assert_close(found.weights[name], tensor, atol=0, rtol=0)
