"""What artifacts say of themselves."""

import json
import zipfile
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from tfexport.bundle import read_manifest
from tfexport.errors import BundleError
from tfexport.export.artifacts.info import (
    METADATA,
    ArtifactInfo,
    info_of_bundle,
    read_graph_info,
    read_info,
    read_torch_info,
)
from tfexport.export.artifacts.option_rules import TORCHSCRIPT

INFO = ArtifactInfo(
    "generate", {"eos_id": 2}, parity={"passed": True}, needs={"onnxruntime": "1.21"}
)
TORCH = ArtifactInfo(TORCHSCRIPT, {"eos_id": 2}, written_with={"torch": "2.0"})


def graph_file(path: Path, metadata: dict[str, str]) -> Path:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 20})
    model = ir.Model(graph, ir_version=10)
    model.metadata_props.update(metadata)
    ir.save(model, path)
    return path


def torch_file(path: Path, values: Any) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"m/extra/{METADATA}", json.dumps(values))
    return path


def test_graph_says_what_was_written_into_it(tmp_path: Path) -> None:
    found = read_graph_info(graph_file(tmp_path / "g.onnx", INFO.to_metadata()))
    assert found.to_metadata() == INFO.to_metadata()
    assert found.opset == {"": 20}
    assert list(found.to_dict()) == [
        "kind", "tfexport_version", "needs", "opset", "inputs", "outputs", "config", "parity",
        "quantization",
    ]  # fmt: skip


KEYS = ["tfexport_config", "tfexport_parity", "tfexport_quantization", "tfexport_version"]


@pytest.mark.parametrize("key", KEYS)
def test_damaged_metadata_of_a_graph_is_refused(tmp_path: Path, key: str) -> None:
    metadata = INFO.to_metadata()
    del metadata[key]
    with pytest.raises(BundleError, match="its metadata is damaged"):
        read_graph_info(graph_file(tmp_path / "g.onnx", metadata))
    assert read_info(tmp_path / "g.onnx") is None


def test_torch_file_says_what_was_written_into_it(tmp_path: Path) -> None:
    path = torch_file(tmp_path / "m.ts", json.loads(TORCH.to_json()))
    assert read_torch_info(path) == TORCH
    assert read_info(path) == TORCH


@pytest.mark.parametrize(
    "change",
    [{"kind": "bundle"}, {"config": []}, {"written_with": "torch"}],
    ids=lambda change: next(iter(change)),
)
def test_damaged_metadata_of_a_torch_file_is_refused(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    path = torch_file(tmp_path / "m.ts", {**TORCH.to_dict(), **change})
    with pytest.raises(BundleError, match="not a file that 'tfexport torchscript' wrote"):
        read_torch_info(path)


def test_bundle_says_what_its_manifest_says(tiny_bundle: Path) -> None:
    manifest = read_manifest(tiny_bundle)
    found = info_of_bundle(manifest)
    assert found.config == manifest.config
    assert found.parity == manifest.parity
    assert found.to_dict()["needs"] == {"onnxruntime": manifest.minimum_onnxruntime}


@pytest.mark.parametrize("record", [{"weights": "int8"}, "int8"], ids=["record", "odd"])
def test_quantised_artifact_is_not_compared(record: Any) -> None:
    info = ArtifactInfo("generate", {}, quantization=record)
    with pytest.raises(BundleError, match=r"differ from eager PyTorch's by design"):
        info.refuse_quantized(Path("q.onnx"))
