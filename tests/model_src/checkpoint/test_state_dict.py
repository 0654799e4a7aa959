import argparse
import os
import pickle
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import save_file, save_model
from torch import nn

from tfexport.errors import CheckpointError
from tfexport.model_src.checkpoint.weight_files import load_state_dict

WEIGHTS = {"a.weight": torch.ones(2, 3), "b": torch.zeros(300)}


class RunsCode:
    """What a hostile pickle would do: run a command when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_pickle_that_would_run_code_is_refused_and_does_not(tmp_path: Path, zipped: bool) -> None:
    ran = tmp_path / "ran"
    path = tmp_path / "evil.pt"
    torch.save({**WEIGHTS, "x": RunsCode(ran)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match="holds Python objects") as caught:
        load_state_dict(path)
    assert not ran.exists()
    assert "system" in str(caught.value)
    assert "torch.load('evil.pt', map_location='cpu', weights_only=False)" in str(caught.value)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize(
    ("value", "weights"),
    [
        ({"state_dict": WEIGHTS, "args": argparse.Namespace(heads=8)}, "checkpoint['state_dict']"),
        ({"args": argparse.Namespace(), "model": WEIGHTS}, "checkpoint['model']"),
        ({"args": argparse.Namespace(), "net": WEIGHTS}, "checkpoint['net']"),
        (nn.Linear(2, 2), "checkpoint.state_dict()"),
        ({"epoch": 3, "model": nn.Linear(2, 2)}, "checkpoint['model'].state_dict()"),
    ],
    ids=["state_dict", "model", "another key", "whole module", "module under a key"],
)
@pytest.mark.filterwarnings("ignore:Couldn't retrieve source code")
def test_objects_are_refused_with_the_lines_that_re_save_them(
    tmp_path: Path, value: Any, weights: str, zipped: bool
) -> None:
    torch.save(value, tmp_path / "model.ckpt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match="holds Python objects") as caught:
        load_state_dict(tmp_path / "model.ckpt")
    assert f"torch.save({weights}, 'model.pt')" in str(caught.value)
    checkpoint = torch.load(tmp_path / "model.ckpt", weights_only=False)
    torch.save(eval(weights, {"checkpoint": checkpoint}), tmp_path / "model.pt")
    assert load_state_dict(tmp_path / "model.pt").tensors


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "model"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod."])
def test_wrappers_are_undone(tmp_path: Path, key: str, prefix: str) -> None:
    inner = {prefix + name: tensor for name, tensor in WEIGHTS.items()}
    torch.save({key: inner, "epoch": 3, "optimizer": {"state": {}}}, tmp_path / "a.pth")
    found = load_state_dict(tmp_path / "a.pth")
    assert set(found.tensors) == set(WEIGHTS)
    assert found.others == ()


def test_prefix_that_only_some_keys_have_is_a_name(tmp_path: Path) -> None:
    torch.save({"module.a": torch.ones(1), "b": torch.ones(1)}, tmp_path / "a.pt")
    assert set(load_state_dict(tmp_path / "a.pt").tensors) == {"module.a", "b"}


def test_compiled_submodules_lose_their_mark_in_the_middle(tmp_path: Path) -> None:
    torch.save({"net._orig_mod.a": torch.ones(1)}, tmp_path / "a.pt")
    assert set(load_state_dict(tmp_path / "a.pt").tensors) == {"net.a"}


@pytest.mark.parametrize("name", ["model.safetensors", "model.pt", "pytorch_model.bin"])
def test_folder_stands_for_the_checkpoint_inside(tmp_path: Path, name: str) -> None:
    if name.endswith(".safetensors"):
        save_file(WEIGHTS, tmp_path / name, {"made by": "test"})
    else:
        torch.save(WEIGHTS, tmp_path / name)
    found = load_state_dict(tmp_path)
    assert found.path == tmp_path / name
    assert found.metadata == ({"made by": "test"} if name.endswith(".safetensors") else {})


def test_folder_with_none_or_two_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint in this folder; looked for"):
        load_state_dict(tmp_path)
    (tmp_path / "checkpoint-500").mkdir()
    torch.save(WEIGHTS, tmp_path / "checkpoint-500" / "model.pt")
    with pytest.raises(CheckpointError, match=r"Name one of its folders: checkpoint-500\."):
        load_state_dict(tmp_path)
    torch.save(WEIGHTS, tmp_path / "model.pt")
    save_file(WEIGHTS, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"several checkpoints: model.safetensors, model.pt"):
        load_state_dict(tmp_path)


class Tied(nn.Module):
    """Three names of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(5, 4), nn.Embedding(5, 4)
        self.output = nn.Linear(4, 5)
        self.target.weight = self.source.weight
        self.output.weight = self.source.weight


@pytest.mark.parametrize("wrap", [False, True], ids=["plain", "compiled"])
def test_names_that_save_model_left_out_are_read_from_its_metadata(
    tmp_path: Path, wrap: bool
) -> None:
    model = Tied()
    save_model(nn.ModuleDict({"module": model}) if wrap else model, str(tmp_path / "m.safetensors"))
    found = load_state_dict(tmp_path / "m.safetensors").tensors
    assert found.keys() == model.state_dict().keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in model.state_dict().items())


def test_names_left_out_of_shards_are_read_from_their_metadata(tmp_path: Path) -> None:
    model = Tied()
    save_torch_state_dict(dict(model.state_dict()), tmp_path, max_shard_size=81)
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    found = load_state_dict(tmp_path).tensors
    assert found.keys() == model.state_dict().keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in model.state_dict().items())


def test_metadata_that_names_one_tensor_too_often_is_refused(tmp_path: Path) -> None:
    large = {"a": torch.zeros(2**20, dtype=torch.float16)}
    save_file(large, tmp_path / "m.safetensors", {f"a{i}": "a" for i in range(64)})
    with pytest.raises(CheckpointError, match="names one tensor so often that 68157440 values"):
        load_state_dict(tmp_path / "m.safetensors")


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are text elsewhere")
@pytest.mark.parametrize("zipped", [True, False])
def test_a_path_that_is_not_utf8_is_read_or_named(tmp_path: Path, zipped: bool) -> None:
    folder = tmp_path / "m\udcf6del"
    folder.mkdir()
    with (folder / "model.pt").open("wb") as file:
        torch.save(WEIGHTS, file, _use_new_zipfile_serialization=zipped)
    assert load_state_dict(folder).tensors.keys() == WEIGHTS.keys()
    save_file(WEIGHTS, tmp_path / "m.safetensors")
    (tmp_path / "m.safetensors").rename(folder / "m.safetensors")
    with pytest.raises(CheckpointError, match="its path is not UTF-8, which safetensors requires"):
        load_state_dict(folder / "m.safetensors")


def damaged(tmp_path: Path) -> dict[str, Path]:
    """Files that are no checkpoints, by what is wrong with them."""
    files = {}
    torch.save(WEIGHTS, tmp_path / "whole.pt")
    torch.save(WEIGHTS, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    save_file(WEIGHTS, tmp_path / "whole.safetensors")
    for name in ("whole.pt", "legacy.pt", "whole.safetensors"):
        content = (tmp_path / name).read_bytes()
        for share in (0.1, 0.5, 0.99):
            files[f"{share} of {name}"] = tmp_path / f"{share}-{name}"
            files[f"{share} of {name}"].write_bytes(content[: int(share * len(content))])
    with zipfile.ZipFile(tmp_path / "foreign.pt", "w") as archive:
        archive.writestr("x", "y")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps({"a": [1]}))
    for name, content in {
        "empty.pt": b"",
        "empty.safetensors": b"",
        "garbage.pt": b"hello, this is no checkpoint",
        "garbage.safetensors": b"zzzzzzzzzzzzzzzzzzzz",
        "source.py": b"import torch\n",
        "picture.png": b"\x89PNG\r\n\x1a\n" + bytes(64),
        "no suffix": b"some text",
    }.items():
        (tmp_path / name).write_bytes(content)
        files[name] = tmp_path / name
    return {**files, "foreign": tmp_path / "foreign.pt", "plain": tmp_path / "plain.pt"}


def test_whatever_is_no_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    for path in damaged(tmp_path).values():
        with pytest.raises(CheckpointError) as caught:
            load_state_dict(path)
        assert str(path) in str(caught.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_archive_is_told_from_a_checkpoint(tmp_path: Path) -> None:
    torch.jit.script(nn.Linear(2, 2)).save(tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match="a TorchScript archive, not a checkpoint"):
        load_state_dict(tmp_path / "model.pt")


@pytest.mark.parametrize(
    ("value", "message"),
    [([1, 2], "holds a list"), ({"epoch": 3}, "holds no tensors; its keys are epoch")],
)
def test_pickle_without_a_state_dict_says_what_it_holds(
    tmp_path: Path, value: Any, message: str
) -> None:
    torch.save(value, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=message):
        load_state_dict(tmp_path / "a.pt")


def test_view_that_claims_more_than_it_holds_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1).expand(1 << 20, 1 << 20)}, tmp_path / "a.pt")
    assert (tmp_path / "a.pt").stat().st_size < 4096
    with pytest.raises(CheckpointError, match=r"claims far more values than it holds.*largest: a"):
        load_state_dict(tmp_path / "a.pt")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nothing\.pt: no such file or folder"):
        load_state_dict(tmp_path / "nothing.pt")
