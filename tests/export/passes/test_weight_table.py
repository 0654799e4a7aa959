"""The table of a bundle's parameters: every one is there, with its own values."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from numpy.typing import NDArray

from tests.support import tutorial
from tests.support.manifests import rewrite
from tfexport.bundle import WEIGHTS, read_manifest
from tfexport.errors import BundleError
from tfexport.export import export, quantize
from tfexport.export.ir_tools.quantization import quantize_per_row
from tfexport.export.passes.weights import _WrittenTensor, share_weights
from tfexport.model_src import TransformerConfig, build_transformer
from tfexport.model_src.checkpoint.read_options import ReadOptions
from tfexport.weight_table import WEIGHT_TABLE, StoredWeight, read_weight_table


def opened(bundle: Path) -> tuple[dict[str, StoredWeight], NDArray[np.uint8]]:
    file = np.fromfile(bundle / WEIGHTS, np.uint8)
    return read_weight_table(bundle, file.size), file


def floats(state: dict[str, torch.Tensor]) -> dict[str, NDArray[Any]]:
    return {
        name: tensor.numpy()
        for name, tensor in state.items()
        if tensor.dtype == torch.float32 and tensor.dim() in (1, 2)
    }


def test_every_parameter_of_a_bundle_is_in_its_file(
    tiny_bundle: Path, tutorial_model: tutorial.TutorialModel
) -> None:
    table, file = opened(tiny_bundle)
    config = read_manifest(tiny_bundle).config
    model = ReadOptions(config).read(tutorial_model).build()
    expected = floats(model.state_dict())
    assert table.keys() == expected.keys()
    for name, values in expected.items():
        assert np.array_equal(table[name].values(file), values), name
    assert WEIGHT_TABLE in read_manifest(tiny_bundle).files


@pytest.mark.slow
@pytest.mark.usefixtures("no_search_graphs")
def test_equal_parameters_and_packed_ones_have_their_own_values(tmp_path: Path) -> None:
    config = TransformerConfig(
        d_model=36, num_heads=3, num_encoder_layers=2, num_decoder_layers=1, d_ff=48,
        source_vocab_size=50, target_vocab_size=50, tie_embeddings=True, tie_output=True,
        norm_placement="pre", max_positions=16, pad_id=0, bos_id=1, eos_id=2,
        relative_positions="buckets",
    )  # fmt: skip
    torch.manual_seed(3)
    model = build_transformer(config)
    first, second = model.encoder.get_submodule("layers.0"), model.encoder.get_submodule("layers.1")
    second.load_state_dict(first.state_dict())
    path = tmp_path / "a.bundle"
    export(model, path, verify=False)
    table, file = opened(path)
    expected = floats(model.state_dict())
    assert table.keys() == expected.keys()
    for name, values in expected.items():
        assert np.array_equal(table[name].values(file), values), name
    embeddings = {table[name].offset for name in table if name.endswith("tokens.weight")}
    assert embeddings == {table["output_proj.weight"].offset}, "a tied table is stored once"

    quantize(path, tmp_path / "b.bundle")
    table, file = opened(tmp_path / "b.bundle")
    assert table.keys() == expected.keys()
    rounded = {name for name, weight in table.items() if weight.dtype == "int8"}
    assert {"output_proj.weight", "encoder.layers.1.self_attn.k_proj.weight"} <= rounded
    for name, values in expected.items():
        stored, scales = table[name].values(file), table[name].row_scales(file)
        if scales is None:
            assert np.array_equal(stored, values), name
        else:
            own, own_scales = quantize_per_row(values)
            assert np.array_equal(stored, own), name
            assert np.array_equal(scales, own_scales), name

    quantize(path, tmp_path / "c.bundle", "int4")
    assert not (tmp_path / "c.bundle" / WEIGHT_TABLE).exists()


def test_a_bundle_that_lost_its_table_is_not_quantised(tiny_bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a.bundle"
    shutil.copytree(tiny_bundle, folder)
    (folder / WEIGHT_TABLE).unlink()
    rewrite(folder, lambda manifest: manifest["files"].pop(WEIGHT_TABLE))
    with pytest.raises(BundleError, match=r"weights\.json: cannot be read"):
        quantize(folder, tmp_path / "new.bundle")
    assert not (tmp_path / "new.bundle").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_said_to_be_full() -> None:
    tensor = _WrittenTensor(np.zeros((3, 5), np.float32))
    full = os.strerror(errno.ENOSPC)
    with Path("/dev/full").open("wb", buffering=0) as file, pytest.raises(OSError, match=full):
        tensor.tofile(file)


def test_a_bundles_weights_are_written_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(tensor: _WrittenTensor, file: Any) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(_WrittenTensor, "tofile", full)
    weight = ir.val("weight", const_value=ir.tensor(np.ones((64, 64), np.float32), name="weight"))
    node = ir.node("Identity", [weight])
    graph = ir.Graph([], node.outputs, nodes=[node], initializers=[weight], opset_imports={"": 20})
    with pytest.raises(OSError, match="no room"):
        share_weights([ir.Model(graph, ir_version=10)], tmp_path)


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.bool_, np.int64])
def test_tensors_are_written_as_they_lie(dtype: type, tmp_path: Path) -> None:
    values: NDArray[Any] = np.arange(15).reshape(3, 5).astype(dtype)
    for array in (values, values.T, values[1, 1]):
        path = tmp_path / "weights.bin"
        with path.open("wb") as file:
            _WrittenTensor(np.asarray(array)).tofile(file)
        assert path.read_bytes() == np.asarray(array).tobytes()
