"""Toolkits' files made to do harm: nothing in them is run, and what they claim is checked."""

import argparse
import io
import os
import pickle
import pickletools
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.model_src.checkpoint.hostile_files import at_once, in_archive, pickle_of, refuse
from tfexport.errors import CheckpointError, ConfigError
from tfexport.model_src import load_checkpoint
from tfexport.model_src.checkpoint.pickle_checks import read_tensors
from tfexport.model_src.checkpoint.pickle_files import Contents
from tfexport.model_src.checkpoint.pickle_parser import Call, Global, PickleError
from tfexport.model_src.checkpoint.toolkit_pickles import plain_value
from tfexport.model_src.checkpoint.weight_files import load_state_dict

BOTH = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


class Harm:
    """An object that would make a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def content(**changes: Any) -> dict[str, Any]:
    """What fairseq saves, with little inside."""
    model = {"encoder.layers.0.fc1.weight": torch.arange(6.0).reshape(2, 3)}
    return {"args": argparse.Namespace(arch="transformer"), "model": model, **changes}


def save(path: Path, value: Any, zipped: bool = True) -> Path:
    torch.save(value, path, _use_new_zipfile_serialization=zipped)
    return path


@BOTH
@pytest.mark.parametrize("where", ["args", "model", "extra_state"])
def test_nothing_is_run_wherever_it_stands(tmp_path: Path, where: str, zipped: bool) -> None:
    harm = Harm(tmp_path / "made")
    value = content(extra_state={"harm": harm})
    if where == "args":
        value["args"].activation_fn = harm
    elif where == "model":
        value["model"]["encoder.layers.0.fc1.bias"] = harm
    path = save(tmp_path / "a.pt", value, zipped)
    with pytest.raises((CheckpointError, ConfigError)):
        load_checkpoint(path)
    found = load_state_dict(path)
    assert list(found.tensors) == ["encoder.layers.0.fc1.weight"]
    if where == "args":
        assert "system" in found.config["args"]["activation_fn"]
    assert not (tmp_path / "made").exists()


def test_object_instead_of_the_options_is_refused_as_ever(tmp_path: Path) -> None:
    for value in (
        content(args=Harm(tmp_path / "made")),
        {**content(), "args": {"x": Harm(tmp_path)}},
    ):
        refuse(save(tmp_path / "a.pt", value), "holds Python objects")
    plain = {"args": argparse.Namespace(), "model": {"w": torch.zeros(2)}}
    refuse(save(tmp_path / "a.pt", plain), "holds Python objects .*argparse.Namespace")
    assert not (tmp_path / "made").exists()


@BOTH
def test_tensors_are_those_that_torch_saved(tmp_path: Path, zipped: bool) -> None:
    base = torch.randn(4, 6)
    model: dict[str, Any] = {
        "encoder.layers.0.fc1.weight": base,
        "transposed": base.T, "part": base[1:3, ::2], "expanded": base[0].expand(3, 6),
        "parameter": torch.nn.Parameter(base[2]), "scalar": torch.tensor(3.0),
        "empty": torch.zeros(0, 4), "half": base.half(), "brain": base.bfloat16(),
        "double": base.double(), "long": torch.arange(5), "bool": torch.tensor([True, False]),
        "small": base.to(torch.float8_e4m3fn),
    }  # fmt: skip
    path = save(tmp_path / "a.pt", content(model=model, last_optimizer_state=[base + 1]), zipped)
    found = load_state_dict(path).tensors
    assert list(found) == list(model)
    for name, tensor in model.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name].double(), tensor.double()), name
    assert found["part"].untyped_storage().data_ptr() == (
        found["transposed"].untyped_storage().data_ptr()
    )


@BOTH
def test_file_that_is_cut_off_is_refused(tmp_path: Path, zipped: bool) -> None:
    model = {"encoder.layers.0.fc1.weight": torch.zeros(1000, 10)}
    path = save(tmp_path / "a.pt", content(model=model), zipped)
    path.write_bytes(path.read_bytes()[:-2000])
    refuse(path, "not a PyTorch checkpoint" if zipped else "truncated, damaged")


@BOTH
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("kind", ["sparse", "meta", "quantized"])
def test_tensor_without_plain_values_is_refused(tmp_path: Path, kind: str, zipped: bool) -> None:
    made: dict[str, Any] = {
        "sparse": torch.eye(3).to_sparse(),
        "meta": torch.zeros(3, device="meta"),
        "quantized": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    }
    model = {"encoder.layers.0.fc1.weight": made[kind]}
    refuse(save(tmp_path / "a.pt", content(model=model), zipped), "not a plain dense tensor")


def test_claims_are_checked_before_anything_is_made(tmp_path: Path) -> None:
    huge = {"encoder.layers.0.fc1.weight": torch.zeros(1).expand(2**40)}
    refuse(save(tmp_path / "a.pt", content(model=huge)), "claims far more values")
    sound = pickle_of(content(model={"encoder.layers.0.fc1.weight": torch.zeros(3)}))
    longer = sound.replace(b"K\x03", b"J" + struct.pack("<i", 10**6))
    refuse(in_archive(tmp_path / "a.pt", longer, {"0": bytes(12)}), "shorter than")
    refuse(in_archive(tmp_path / "a.pt", sound), "record 0 is missing")


def test_archive_of_the_other_byte_order_is_refused(tmp_path: Path) -> None:
    data = pickle_of(content(model={"encoder.layers.0.fc1.weight": torch.zeros(3)}))
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("a/data.pkl", data)
        archive.writestr("a/byteorder", "big")
        archive.writestr("a/data/0", bytes(12))
    refuse(tmp_path / "a.pt", "highest byte first")


def test_options_inside_themselves_end(tmp_path: Path) -> None:
    space = argparse.Namespace(arch="transformer")
    space.self = space
    refuse(save(tmp_path / "a.pt", content(args=space)), "more values than a toolkit's do")
    values: list[Any] = [1]
    for _ in range(12):
        values = [values] * 8
    space = argparse.Namespace(arch="transformer", laughs=values)
    refuse(save(tmp_path / "a.pt", content(args=space)), "more values than a toolkit's do")


def test_long_vocabularies_need_no_exception(tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(300_000)]
    path = save(tmp_path / "a.pt", content(task_state={"words": words}))
    assert load_state_dict(path).tensors
    refuse(save(tmp_path / "b.pt", {"model": {"w": torch.zeros(1)}, "words": words}), "400000 inst")


def test_objects_of_options_become_plain_values() -> None:
    node = Call("omegaconf.nodes.AnyNode", (), {"_val": 5, "_parent": None})
    config = Call("omegaconf.dictconfig.DictConfig", (), {"_content": {"size": node}})
    assert plain_value(config) == {"size": 5}
    assert plain_value(Call("fairseq.dataclass.constants.Kind", ("relu",))) == "relu"
    assert plain_value({"a": Global("torch.float16"), 5: 1}) == {"a": "<'torch.float16'>"}
    assert plain_value(Call("a.B", (), {"x": 1})) == "<'a.B'>"


def test_storage_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    data = pickle_of(content(model={"encoder.layers.0.fc1.weight": torch.zeros(3)}))
    path = in_archive(tmp_path / "a.pt", data.replace(b"FloatStorage", b"GoatStorages"))
    refuse(path, "which no weight has")
    with pytest.raises(PickleError):
        read_tensors(path, Contents(None, {}, 0), {"w": Call("torch._utils._rebuild_qtensor", ())})


def test_storages_of_a_legacy_file_are_all_listed(tmp_path: Path) -> None:
    path = save(tmp_path / "a.pt", content(), zipped=False)
    raw = path.read_bytes()
    head = io.BytesIO(raw)
    for _ in range(4):
        list(pickletools.genops(head))
    start = head.tell()
    keys = pickle.load(head)
    for wrong in ([], keys * 2, ["other"], 5, [None]):
        path.write_bytes(raw[:start] + pickle.dumps(wrong, 2) + raw[head.tell() :])
        with at_once(), pytest.raises(CheckpointError, match="damaged"):
            load_state_dict(path)
