"""Weights are told apart by what was written when they were made."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tests.conftest import SETTINGS
from tests.support import tutorial
from tests.support.paths import VERSION_1
from tfexport.bundle import open_bundle, write_manifest
from tfexport.errors import BundleError
from tfexport.export import export, quantize
from tfexport.export.ir_tools.nodes import (
    EMBEDDING,
    POSITIONS,
    PROJECTION,
    Role,
    add_initializer,
    read_role,
    write_role,
)

POSITIONS_AND_WORDS = 64  # as many of each


def test_a_name_that_is_taken_by_another_value_is_not_shared() -> None:
    graph = ir.Graph([], [], nodes=[], name="g")
    first = add_initializer(graph, "w", np.zeros((2, 2), np.float32))
    again = add_initializer(graph, "w", np.zeros((2, 2), np.float32))
    other = add_initializer(graph, "w", np.ones((2, 2), np.float32))
    assert again is first
    assert other is not first
    assert other.name != "w"


def test_a_role_can_be_read_back(tmp_path: Path) -> None:
    graph = ir.Graph([], [], nodes=[], name="g", opset_imports={"": 20})
    value = add_initializer(graph, "w", np.zeros((2, 2), np.float32))
    assert read_role(value) is None
    write_role(value, Role("output_proj.weight", PROJECTION, transposed=True))
    ir.save(ir.Model(graph, ir_version=10), tmp_path / "g.onnx")
    found = ir.load(tmp_path / "g.onnx").graph.initializers["w"]
    assert read_role(found) == Role("output_proj.weight", PROJECTION, transposed=True)


@pytest.mark.usefixtures("no_step_graph")
def test_positions_stay_float32_where_there_are_as_many_as_words(tmp_path: Path) -> None:
    model = tutorial.make(
        seed=3, d_model=32, num_heads=2, encoder_layers=1, decoder_layers=1, d_ff=32,
        source_size=POSITIONS_AND_WORDS, target_size=POSITIONS_AND_WORDS,
        length=POSITIONS_AND_WORDS,
    )  # fmt: skip
    export(model, tmp_path / "float.bundle", config=SETTINGS, verify=False)
    quantize(tmp_path / "float.bundle", tmp_path / "int8.bundle", "int8")
    for name in ("encoder", "decoder", "generate", "beam"):
        before = _kinds(tmp_path / "float.bundle" / f"{name}.onnx")
        after = _kinds(tmp_path / "int8.bundle" / f"{name}.onnx")
        assert {EMBEDDING, POSITIONS} <= before, name
        assert POSITIONS in after, name
        assert EMBEDDING not in after, f"{name}: still float32"


def _kinds(path: Path) -> set[str]:
    """Roles of what is float32 in a file."""
    model = ir.load(path)
    roles = [
        read_role(value)
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None and value.const_value.dtype == ir.DataType.FLOAT
    ]
    return {role.kind for role in roles if role is not None}


def test_a_bundle_that_names_no_weights_is_not_quantised(tmp_path: Path) -> None:
    folder = tmp_path / "a.bundle"
    shutil.copytree(VERSION_1, folder)
    manifest = open_bundle(folder)
    for file in manifest.graphs.values():
        graph = onnx.load(folder / file, load_external_data=False)
        for weight in graph.graph.value_info:
            del weight.metadata_props[:]
        onnx.save(graph, folder / file)
    write_manifest(folder, manifest)
    with pytest.raises(BundleError, match="nothing to quantise"):
        quantize(folder, tmp_path / "int8.bundle", "int8")
    assert not (tmp_path / "int8.bundle").exists()
