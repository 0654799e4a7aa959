"""The graph files themselves: names, axes, weights, opsets."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.conftest import CONFIG
from tests.export.conftest import LARGE, SIZES, large, make_wide, pre_norm
from tests.support import tutorial
from tests.support.combinations import few_of
from tfexport import graph_io
from tfexport.bundle import WEIGHTS
from tfexport.errors import ConfigError
from tfexport.export import export
from tfexport.model_src import TransformerConfig, build_transformer

CACHE = graph_io.CacheShape(1, 2, 4)


def axes(value: ort.NodeArg) -> tuple[int | str, ...]:
    return tuple(value.shape)


@pytest.mark.parametrize(
    "spec",
    [graph_io.encoder_graph(CACHE, 8), graph_io.decoder_graph(CACHE, 19)],
    ids=lambda spec: spec.name,
)
def test_graph_says_what_graph_io_says(tiny_bundle: Path, spec: graph_io.GraphSpec) -> None:
    session = ort.InferenceSession(tiny_bundle / spec.filename)
    for values, tensors in (
        (session.get_inputs(), spec.inputs),
        (session.get_outputs(), spec.outputs),
    ):
        assert [value.name for value in values] == [tensor.name for tensor in tensors]
        assert [axes(value) for value in values] == [tensor.axes for tensor in tensors]
        types = {"int64": "tensor(int64)", "float32": "tensor(float)"}
        assert [value.type for value in values] == [types[tensor.dtype] for tensor in tensors]


def test_names_are_those_of_hugging_face(tiny_bundle: Path) -> None:
    names = {
        value.name for value in ort.InferenceSession(tiny_bundle / "decoder.onnx").get_inputs()
    }
    assert names == {
        "input_ids",
        "encoder_attention_mask",
        *(
            f"past_key_values.0.{side}.{part}"
            for side in ("decoder", "encoder")
            for part in ("key", "value")
        ),
    }


@pytest.mark.parametrize("name", ["encoder.onnx", "decoder.onnx", "generate.onnx"])
def test_graph_passes_the_checker_and_holds_no_paths(tiny_bundle: Path, name: str) -> None:
    onnx.checker.check_model(str(tiny_bundle / name), full_check=True)
    content = (tiny_bundle / name).read_bytes()
    assert b"site-packages" not in content
    assert b".py" not in content
    model = onnx.load(str(tiny_bundle / name), load_external_data=False)
    assert {entry.domain for entry in model.opset_import} == {"", "com.microsoft"}


def test_weights_go_by_their_parameters_names(tiny_bundle: Path) -> None:
    model = onnx.load(str(tiny_bundle / "decoder.onnx"), load_external_data=False)
    names = {tensor.name for tensor in model.graph.initializer}
    assert "decoder.layers.0.cross_attn.q_proj.weight.T" in names
    assert "decoder.layers.0.feed_forward.up_proj.bias" in names


@pytest.mark.slow
@pytest.mark.parametrize("tied", few_of([False, True], True), ids=["untied", "tied"])
def test_weights_are_stored_once(request: pytest.FixtureRequest, tied: bool) -> None:
    bundle: Path = request.getfixturevalue("tied_bundle" if tied else "wide_bundle")
    weights = sum(p.numel() * 4 for p in make_wide(tied).parameters())
    positions = 64 * 64 * 4
    # Large tensors start at page boundaries.
    assert (bundle / WEIGHTS).stat().st_size < weights + positions + 4096 * 40
    tables = [
        onnx.numpy_helper.to_array(tensor)
        for path in bundle.glob("*.onnx")
        for tensor in onnx.load(str(path)).graph.initializer
        if {90, 110} & set(tensor.dims) and 64 in tensor.dims
    ]
    distinct = {min(t.tobytes(), t.T.tobytes()) for t in tables}
    assert len(distinct) == (1 if tied else 3)
    stored = {
        (entry.value, tuple(tensor.dims))
        for path in bundle.glob("*.onnx")
        for tensor in onnx.load(str(path), load_external_data=False).graph.initializer
        if {90, 110} & set(tensor.dims) and 64 in tensor.dims
        for entry in tensor.external_data
        if entry.key == "offset"
    }
    assert len(stored) == len(distinct)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.usefixtures("few_shapes")
def test_newer_opset_exports_and_is_equal(tmp_path: Path) -> None:
    model = build_transformer(TransformerConfig(**SIZES, activation="gelu"))
    result = export(model, tmp_path / "a.bundle", opset=23, portable=True)
    assert result.manifest.opset == {"": 23}
    assert result.manifest.minimum_onnxruntime == "1.23"
    assert result.report is not None
    assert result.report.passed


@pytest.mark.slow
@pytest.mark.usefixtures("few_shapes")
def test_oldest_opset_exports_and_is_equal(tmp_path: Path) -> None:
    model = build_transformer(TransformerConfig(**SIZES, activation="gelu"))
    path = tmp_path / "g.onnx"
    result = export(model, path, graph="generate", opset=18, portable=True)
    assert onnx.load(path).opset_import[0].version == 18
    assert result.report is not None
    assert result.report.passed


@pytest.mark.parametrize("opset", [13, 26])
def test_opset_that_the_exporter_would_silently_change_is_refused(
    tmp_path: Path, opset: int
) -> None:
    with pytest.raises(ConfigError, match=f"opset: {opset} is not one of 18 to 25"):
        export(build_transformer(TransformerConfig(**SIZES)), tmp_path / "a.bundle", opset=opset)


def test_fused_attention_needs_an_onnxruntime_that_computes_it_right(tmp_path: Path) -> None:
    model = build_transformer(TransformerConfig(**SIZES))
    with pytest.raises(ConfigError, match="need 22 or more, not 20; use a newer opset"):
        export(model, tmp_path / "a.bundle", opset=20)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("past", [0, 1, 5])
@pytest.mark.parametrize("target", [1, 2])
@pytest.mark.parametrize("source", [1, 6])
def test_no_axis_is_baked_in(
    tiny_bundle: Path, batch: int, past: int, target: int, source: int
) -> None:
    sizes = {"batch": batch, "past_length": past, "target_length": target, "source_length": source}
    sizes[graph_io.PRESENT] = past + target

    def shape(tensor: graph_io.TensorSpec) -> tuple[int, ...]:
        return tuple(sizes[axis] if isinstance(axis, str) else axis for axis in tensor.axes)

    for spec in (graph_io.encoder_graph(CACHE, 8), graph_io.decoder_graph(CACHE, 19)):
        feeds = {tensor.name: np.ones(shape(tensor), tensor.dtype) for tensor in spec.inputs}
        outputs = ort.InferenceSession(tiny_bundle / spec.filename).run(None, feeds)
        for value, tensor in zip(outputs, spec.outputs, strict=True):
            assert value.shape == shape(tensor)


def optimized(path: Path, folder: Path) -> onnx.GraphProto:
    """What onnxruntime makes of a graph."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 3
    ort.InferenceSession(path, options)
    return onnx.load(folder / "optimized.onnx", load_external_data=False).graph


def operators_of(graph: onnx.GraphProto) -> list[str]:
    """Of a graph and all graphs within it."""
    inner = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return [node.op_type for node in graph.node] + [op for g in inner for op in operators_of(g)]


def made_of_weights(graph: onnx.GraphProto) -> list[str]:
    """What a graph, and all graphs within it, makes of whole weights each time it runs."""
    inner = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    made = [
        node.op_type
        for node in graph.node
        if node.op_type in ("Transpose", "QuantizeLinear", "Pad") and "weight" in node.input[0]
    ]
    return made + [operator for g in inner for operator in made_of_weights(g)]


@pytest.mark.slow
@pytest.mark.usefixtures("few_shapes", "no_step_graph")
def test_a_large_tied_table_is_transposed_once(tmp_path: Path) -> None:
    bundle = tmp_path / "a.bundle"
    result = export(large(tied=True), bundle)
    assert result.report is not None
    assert {c.stage for c in result.report.comparisons} >= {"shortlist", "generate", "beam"}
    assert (bundle / WEIGHTS).stat().st_size < 1.5 * LARGE * 32 * 4
    for name in ("generate", "beam"):
        graph = optimized(bundle / f"{name}.onnx", tmp_path)
        (loop,) = [node for node in graph.node if node.op_type == "Loop"]
        (body,) = [attribute.g for attribute in loop.attribute if attribute.name == "body"]
        found = set(operators_of(body))
        assert "MatMul" in found
        assert ("MatMulIntegerToFloat" in found) == (name == "generate")
        assert not {"FusedMatMul", "MatMulInteger"} & found, name
        assert not made_of_weights(body), name


@pytest.mark.slow
@pytest.mark.parametrize("placement", few_of(["pre", "post"], "post"))
def test_onnxruntime_joins_no_residual_with_its_norm(
    placement: str, tmp_path: Path, tutorial_model: tutorial.TutorialModel
) -> None:
    model = pre_norm() if placement == "pre" else tutorial_model
    export(model, tmp_path / "generate.onnx", graph="generate", config=CONFIG, verify=False)
    operators = operators_of(optimized(tmp_path / "generate.onnx", tmp_path))
    assert "LayerNormalization" in operators
    assert "SkipLayerNormalization" not in operators
