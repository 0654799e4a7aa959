"""Models in forms that are not plain weights: said to be what they are, with the way to those."""

import json
import os
import socket
import zipfile
from pathlib import Path

import pytest
import torch

from tests.support import tutorial
from tests.support.paths import REPOSITORY
from tfexport.errors import CheckpointError
from tfexport.model_src import load_checkpoint

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:ab12\nsize 309012345\n"


def refused(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path, {"num_heads": 4})
    assert str(caught.value).startswith(f"{path}")
    return str(caught.value).removeprefix(f"{path}")


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("base_model.model.encoder.layers.0.q_proj.lora_A.weight", "LoRA merge_and_unload"),
        ("encoder.layers.0.q_proj.lora_B.default.weight", "LoRA merge_and_unload"),
        ("transformer.encoder.layers.0.linear1.lora_A", "LoRA merge_and_unload loralib"),
        ("base_model.model.x.ia3_l", "PEFT merge_and_unload"),
        ("base_model.model.x.base_layer.weight", "PEFT merge_and_unload"),
        ("encoder.layers.0.adapters.de.adapter_down.0.weight", "bottleneck export(model"),
        ("prompt_embeddings", "prompts export(model"),
        ("x.q_proj.weight.absmax", "bitsandbytes dequantize()"),
        ("x.q_proj.SCB", "bitsandbytes dequantize()"),
        ("x.q_proj.qweight", "GPTQ AWQ dequantize()"),
        ("x.q_proj.weight_packed", "quantised dequantize()"),
        ("_flat_param", "FSDP full_state_dict"),
    ],
)
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "among the weights"])
def test_keys_that_give_a_form_away(tmp_path: Path, key: str, words: str, beside: bool) -> None:
    weights = dict(tutorial.make().state_dict()) if beside else {}
    torch.save({**weights, key: torch.zeros(2, 2)}, tmp_path / "model.pt")
    message = refused(tmp_path / "model.pt")
    assert all(word in message for word in words.split())
    assert key in message
    assert "problems" not in message
    assert "rename" not in message


def test_weights_beside_lora_are_read_where_the_user_leaves_it_out(tmp_path: Path) -> None:
    weights = {**tutorial.make().state_dict(), "x.lora_A": torch.zeros(2)}
    torch.save(weights, tmp_path / "model.pt")
    found = load_checkpoint(tmp_path, {"num_heads": 4, "ignore": ["{weight}.lora_A"]})
    assert found.key_report["x.lora_A"] == ()


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["adapter_config.json", "adapter_model.safetensors"], "LoRA merge_and_unload"),
        (["pytorch_adapter.bin", "head_config.json"], "adapter merge_and_unload"),
        (["tf_model.h5"], "TensorFlow from_tf=True"),
        (["saved_model.pb"], "TensorFlow from_tf=True"),
        (["flax_model.msgpack"], "Flax from_flax=True"),
        (["encoder.onnx", "decoder.onnx"], "ONNX"),
        (["model.gguf"], "GGUF"),
        (["zero_to_fp32.py", "latest"], "DeepSpeed zero_to_fp32.py"),
        (["__0_0.distcp", ".metadata"], "FSDP dcp_to_torch"),
    ],
)
def test_folders_without_plain_weights(tmp_path: Path, names: list[str], words: str) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    message = refused(tmp_path)
    assert all(word in message for word in words.split())
    assert names[0] in message


def test_whoever_merges_an_adapter_is_told_to_compare(tmp_path: Path) -> None:
    torch.save({"base_model.model.x.lora_A.weight": torch.zeros(2, 2)}, tmp_path / "model.pt")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "adapter_config.json").write_text("{}")
    for path in (tmp_path / "model.pt", tmp_path / "folder"):
        message = refused(path)
        assert "logits" in message
        assert "docs/checkpoints.md, adapters" in message
    page = (REPOSITORY / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    assert "modules_to_save" in page.partition("\n### Adapters\n")[2].partition("\n### ")[0]


def test_an_adapter_beside_weights_is_not_left_out_silently(tmp_path: Path) -> None:
    torch.save(tutorial.make().state_dict(), tmp_path / "model.pt")
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "in addition to its weights (adapter_config.json" in refused(tmp_path)
    load_checkpoint(tmp_path / "model.pt", {"num_heads": 4})


def test_parameters_that_zero_has_emptied(tmp_path: Path) -> None:
    empty = {key: torch.zeros(0) for key in tutorial.make().state_dict()}
    torch.save({"module": empty, "ds_version": "0.14"}, tmp_path / "model.pt")
    assert "zero_to_fp32.py" in refused(tmp_path / "model.pt")


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors", "pytorch_model.bin", "best"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (LFS, "a Git LFS pointer, of a file of 309,012,345 bytes; git lfs pull"),
        (b"/annex/objects/SHA256E-s12--ab.pt\n", "git-annex; git annex get"),
        (b"\n<!DOCTYPE html>\n<html lang=en>", "a web page (HTML)"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code>", "an XML document"),
        (b"\x1f\x8b\x08\0\0", "packed with gzip"),
        (b"\xfd7zXZ\0\0", "packed with xz"),
        (b"BZh91AY&SY", "packed with bzip2"),
        (b"\x28\xb5\x2f\xfd\0", "packed with zstd"),
        (b"7z\xbc\xaf\x27\x1c\0\4", "packed with 7-Zip"),
        (b"Rar!\x1a\x07\x01\0", "packed with RAR"),
        (bytes(257) + b"ustar" + bytes(100), "a tar archive"),
        (b"", "empty"),
        (b"\x89HDF\r\n\x1a\n\0\0", "TensorFlow"),
        (b"GGUF\0\0\0\3", "GGUF"),
        (b"\6\0\0\0\x10\0TransformerSpec\0", "CTranslate2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_lies_in_place_of_a_checkpoint(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    message = refused(tmp_path / name)
    assert all(word in message for word in words.split("; "))


def test_a_config_that_is_a_pointer(tmp_path: Path) -> None:
    torch.save(tutorial.make().state_dict(), tmp_path / "model.pt")
    (tmp_path / "config.json").write_bytes(LFS)
    with pytest.raises(CheckpointError, match=r"config.json: a Git LFS pointer"):
        load_checkpoint(tmp_path / "model.pt")


def test_a_zip_of_checkpoints_says_to_unpack_it(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.bin", "w") as archive:
        archive.writestr("run/model.pt", b"PK")
    assert "it holds run/model.pt. Unpack it" in refused(tmp_path / "model.bin")


def test_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.pt").symlink_to(".git/annex/objects/zz/SHA256-1")
    assert "git annex get" in refused(tmp_path / "model.pt")
    assert "model.pt is a pointer of git-annex" in refused(tmp_path)
    (tmp_path / "other.pt").symlink_to("../blobs/abc")
    assert "a link to ../blobs/abc, which is not there" in refused(tmp_path / "other.pt")


@pytest.mark.parametrize("name", ["model.pt", "config.json"])
def test_pipes_are_never_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    if name != "model.pt":
        torch.save(tutorial.make().state_dict(), tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match="it is a named pipe, and a file is expected"):
        load_checkpoint(tmp_path / "model.pt", config=tmp_path / name)


def test_sockets_and_devices_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s.pt")
        assert "it is a socket, and a file is expected" in refused(Path("s.pt"))
    assert "it is a device, and a file is expected" in refused(Path("/dev/zero"))


def test_a_bundle_is_named_as_one(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"format": "tfexport-bundle"}))
    (tmp_path / "encoder.onnx").write_bytes(b"x")
    assert "a bundle of tfexport, which is exported already" in refused(tmp_path)
