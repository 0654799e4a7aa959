"""Graphs whose checksum is right and which are not graphs of the bundle's model."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from tests.support.manifests import rewrite
from tests.support.paths import VERSION_1
from tfexport.bundle import open_bundle, read_manifest, write_manifest
from tfexport.errors import BundleError
from tfexport.runtime import Translator
from tfexport.runtime.model.onnxruntime_model import OnnxModel

pytestmark = pytest.mark.onnxruntime  # the native engine reads no graphs

Change = Callable[[onnx.ModelProto], None]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A bundle that decodes step by step, so that opening it opens encoder and decoder."""
    shutil.copytree(VERSION_1, tmp_path / "a.bundle")
    rewrite(tmp_path / "a.bundle", lambda values: values["graphs"].pop("generate"))
    return tmp_path / "a.bundle"


def change_graph(folder: Path, name: str, change: Change) -> None:
    """Change one graph and give the bundle right checksums again."""
    model = onnx.load(folder / name, load_external_data=False)
    change(model)
    onnx.save(model, folder / name)
    write_manifest(folder, read_manifest(folder))


def rename_output(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        names = ["answer" if name == "logits" else name for name in node.output]
        node.output[:] = names
    next(value for value in model.graph.output if value.name == "logits").name = "answer"


def double_ids(model: onnx.ModelProto) -> None:
    value = model.graph.input[0]
    value.name = "other_ids"
    value.type.tensor_type.elem_type = TensorProto.INT32
    cast = helper.make_node("Cast", ["other_ids"], ["input_ids"], to=TensorProto.INT64)
    model.graph.node.insert(0, cast)


def swap_outputs(model: onnx.ModelProto) -> None:
    outputs = list(model.graph.output)[::-1]
    del model.graph.output[:]
    model.graph.output.extend(outputs)


def drop_attention(model: onnx.ModelProto) -> None:
    assert model.graph.output.pop().name == "cross_attentions"


def fix_batch(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("decoder.onnx", rename_output, "output 'answer' is not one that it should have"),
        ("decoder.onnx", rename_output, "output 'logits' is missing"),
        ("decoder.onnx", drop_attention, "output 'cross_attentions' is missing"),
        ("encoder.onnx", double_ids, "input 'other_ids' is not one that it should have"),
        ("encoder.onnx", swap_outputs, "outputs are not in the order encoder_hidden_states"),
        ("encoder.onnx", fix_batch, "input 'input_ids' is fixed at 1 on axis 0, .* the batch"),
    ],
)
def test_difference_from_the_graphs_role_is_named(
    copy: Path, file: str, change: Change, message: str
) -> None:
    change_graph(copy, file, change)
    with pytest.raises(BundleError, match=message):
        Translator(copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_heads": 3}, r"present.0.encoder.key' has 2 on axis 1 instead of 3"),
        ({"head_dim": 3}, r"present.0.encoder.key' has 4 on axis 3 instead of 3"),
        ({"num_decoder_layers": 2}, r"present.1.encoder.value' is missing"),
        ({"d_model": 9}, r"encoder_hidden_states' has 8 on axis 2 instead of 9"),
    ],
)
def test_config_that_the_graphs_contradict_is_refused(
    copy: Path, change: dict[str, Any], message: str
) -> None:
    rewrite(copy, lambda values: values["config"].update(change))
    with pytest.raises(BundleError, match=message):
        Translator(copy)


def test_vocabulary_that_the_decoder_contradicts_is_refused(copy: Path) -> None:
    def grow(values: dict[str, Any]) -> None:
        values["limits"]["target_vocab_size"] = values["config"]["target_vocab_size"] = 20

    rewrite(copy, grow)
    with pytest.raises(BundleError, match="output 'logits' has 19 on axis 2 instead of 20"):
        Translator(copy)


def generate_graph(nodes: list[onnx.NodeProto], extra: list[onnx.TensorProto]) -> onnx.ModelProto:
    """A graph with the inputs and outputs of generate.onnx, and these nodes."""

    def tensor(name: str, kind: int, axes: list[str]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, axes)

    ids, mask = (
        tensor(name, TensorProto.INT64, ["batch", "source_length"])
        for name in ("input_ids", "attention_mask")
    )
    length = tensor("max_length", TensorProto.INT64, [])
    skip = tensor("return_scores", TensorProto.BOOL, [])
    extra = [*extra, helper.make_tensor("return_scores", TensorProto.BOOL, [], [True])]
    sequences = tensor("sequences", TensorProto.INT64, ["batch", "target_length"])
    scores = tensor("scores", TensorProto.FLOAT, ["batch"])
    graph = helper.make_graph(nodes, "g", [ids, mask, length, skip], [sequences, scores], extra)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def add_generate(folder: Path, model: onnx.ModelProto) -> None:
    onnx.save(model, folder / "generate.onnx")
    manifest = write_manifest(folder, read_manifest(folder))
    graphs = {**manifest.graphs, "generate": "generate.onnx"}
    write_manifest(folder, dataclasses.replace(manifest, graphs=graphs))


def constant(name: str, values: list[int], kind: int = TensorProto.INT64) -> onnx.TensorProto:
    return helper.make_tensor(name, kind, [len(values)], values)


def node(kind: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, [output], **attributes)


SCORES = [
    node("ReduceSum", ["input_ids", "last"], "sums", keepdims=0),
    node("Cast", ["sums"], "scores", to=TensorProto.FLOAT),
]


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        (node("Add", ["input_ids", "shift"], "sequences"), "'sequences' holds 1004, not only 0 to"),
        (node("Sub", ["input_ids", "shift"], "sequences"), "'sequences' holds -996, not only"),
        (node("Concat", ["input_ids", "input_ids"], "sequences", axis=0), r"came as \(2, 3\)"),
        (node("GatherElements", ["input_ids", "input_ids"], "sequences"), "failed in onnxruntime"),
    ],
)  # fmt: skip
def test_graph_that_does_not_do_what_it_says_is_no_surprise(
    copy: Path, sequences: onnx.NodeProto, message: str
) -> None:
    extra = [constant(*value) for value in (("last", [1]), ("shift", [1000]))]
    add_generate(copy, generate_graph([sequences, *SCORES], extra))
    with pytest.raises(BundleError, match=message):
        Translator(copy).generate([[4, 2, 5]])


def test_a_search_that_cannot_leave_scores_out_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "a.bundle"
    shutil.copytree(VERSION_1, folder)

    def demand(model: onnx.ModelProto) -> None:
        (fixed,) = [value for value in model.graph.input if value.name == "return_scores"]
        model.graph.input.remove(fixed)

    change_graph(folder, "generate.onnx", demand)
    with pytest.raises(BundleError, match="input 'return_scores' is missing"):
        Translator(folder)


def test_all_graphs_of_a_bundle_are_those_of_their_roles(tiny_bundle: Path) -> None:
    for folder in (tiny_bundle, VERSION_1):
        manifest = open_bundle(folder)
        model = OnnxModel(folder, manifest)
        for role in manifest.graphs:
            model._session(role)
