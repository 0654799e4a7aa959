"""Checkpoints in several files: read as one, and refused by name where a file is not right."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tfexport.errors import CheckpointError
from tfexport.model_src.checkpoint.files import CheckpointFiles
from tfexport.model_src.checkpoint.weight_files import load_state_dict

PARTS = {
    "model-00001-of-00002.safetensors": {"a.weight": torch.ones(2, 3), "b.weight": torch.zeros(4)},
    "model-00002-of-00002.safetensors": {"c.weight": torch.full((5,), 2.0)},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, tensors in PARTS.items():
        save_file(tensors, tmp_path / name)
    write_index(tmp_path, {key: name for name, tensors in PARTS.items() for key in tensors})
    return tmp_path


def write_index(folder: Path, places: object) -> None:
    values = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(values))


def test_shards_are_read_as_one(folder: Path) -> None:
    found = load_state_dict(folder)
    expected = {key: tensor for tensors in PARTS.values() for key, tensor in tensors.items()}
    assert found.tensors.keys() == expected.keys()
    assert all(torch.equal(found.tensors[key], expected[key]) for key in expected)


def test_shards_of_torch_save(folder: Path) -> None:
    for number, tensors in enumerate(PARTS.values()):
        torch.save(tensors, folder / f"pytorch_model-{number}.bin")
    places = {
        key: f"pytorch_model-{i}.bin" for i, part in enumerate(PARTS.values()) for key in part
    }
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    assert load_state_dict(index).tensors.keys() == places.keys()


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"1 of its 2 shards are missing: model-00002"):
        load_state_dict(folder)


def test_tensors_elsewhere_are_named(folder: Path) -> None:
    first = "model-00001-of-00002.safetensors"
    write_index(folder, {"a.weight": first, "lost.weight": first})
    with pytest.raises(CheckpointError, match=r"lacks lost.weight(.|\n)*holds b.weight, which"):
        load_state_dict(folder)


@pytest.mark.parametrize("name", ["../model.pt", "/etc/passwd", "a\\b.bin", "", 3])
def test_shards_stay_in_the_folder(folder: Path, name: object) -> None:
    write_index(folder, {"a.weight": name})
    with pytest.raises(CheckpointError, match="is not a file in its folder"):
        load_state_dict(folder)


@pytest.mark.parametrize("places", [{}, [], "x", None])
def test_an_index_without_a_map(folder: Path, places: object) -> None:
    write_index(folder, places)
    with pytest.raises(CheckpointError, match="holds no weight_map"):
        load_state_dict(folder)


def test_one_of_several_forms_in_a_folder_of_hugging_face(folder: Path) -> None:
    torch.save(PARTS["model-00001-of-00002.safetensors"], folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="several checkpoints"):
        CheckpointFiles(folder).find_weights()
    (folder / "config.json").write_text('{"model_type": "marian"}')
    assert CheckpointFiles(folder).find_weights().name == "model.safetensors.index.json"
    save_file(PARTS["model-00002-of-00002.safetensors"], folder / "model.safetensors")
    assert CheckpointFiles(folder).find_weights().name == "model.safetensors"
