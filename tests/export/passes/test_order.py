"""Passes in their order, each on a graph that needs it."""

import numpy as np
import onnx_ir as ir
import pytest

from tfexport.export.ir_tools.nodes import (
    MATRIX,
    MICROSOFT,
    MULTI_HEAD_ATTENTION,
    Role,
    add_initializer,
    append_node,
    array_of,
    is_operator,
    new_node,
    read_role,
)
from tfexport.export.passes import AFTER_EXPORT
from tfexport.export.passes.after_export import (
    NameWeights,
    Parameter,
    UnfuseResidualNorm,
    set_parameters,
)

E = 4


def attention(
    parts: tuple[str, ...] = ("q_proj", "k_proj", "v_proj"),
) -> tuple[ir.Model, dict[str, Parameter]]:
    """Self-attention as torch exports it: folded matrices without a name, biases with theirs."""
    x = ir.val("x", ir.DataType.FLOAT, ["batch", "length", E])
    graph = ir.Graph([x], [], nodes=[], name="g", opset_imports={"": 22, MICROSOFT: 1})
    draw = np.random.default_rng(0)
    parameters, inputs = {}, []
    for i, part in enumerate(parts):
        weight = draw.normal(size=(E, E)).astype(np.float32)
        bias = draw.normal(size=E).astype(np.float32)
        parameters[f"model.{part}.weight"] = Parameter(Role(f"{part}.weight"), weight)
        parameters[f"model.{part}.bias"] = Parameter(Role(f"{part}.bias"), bias)
        matrix = add_initializer(graph, f"val_{i}", np.ascontiguousarray(weight.T))
        vector = add_initializer(graph, f"model.{part}.bias", bias)
        product = append_node(graph, "MatMul", [x, matrix], f"product_{i}")
        inputs.append(append_node(graph, "Add", [product, vector], f"sum_{i}"))
    node = new_node(
        "MultiHeadAttention", [*inputs, None], "symbolic", {"num_heads": 1}, domain=MICROSOFT
    )
    node.metadata_props["where"] = "/home/somebody/model.py"
    graph.append(node)
    graph.outputs.append(node.outputs[0])
    return ir.Model(graph, ir_version=10), parameters


def test_projections_of_an_exported_attention_are_named_and_packed() -> None:
    model, parameters = attention()
    set_parameters(model, parameters)
    AFTER_EXPORT(model)
    product, split, fused = model.graph
    assert is_operator(fused, MULTI_HEAD_ATTENTION)
    assert (product.name, split.name) == ("MultiHeadAttention_0_qkv", "MultiHeadAttention_0_split")
    assert not fused.metadata_props, "torch's notes are gone"
    weight = product.inputs[1]
    assert weight is not None
    assert weight.name == "qkv_proj.weight.T"
    assert read_role(weight) == Role("qkv_proj.weight", MATRIX, transposed=True)
    matrices = [p.values.T for p in parameters.values() if p.values.ndim == 2]
    np.testing.assert_array_equal(array_of(weight), np.concatenate(matrices, axis=1))


def test_packed_projections_of_other_names_have_all_three() -> None:
    model, parameters = attention(("linears.0", "linears.1", "linears.2"))
    set_parameters(model, parameters)
    AFTER_EXPORT(model)
    product = model.graph[0]
    assert product.inputs[1] is not None
    role = read_role(product.inputs[1])
    assert role is not None
    assert role.parameter == "linears.0.weight+linears.1.weight+linears.2.weight"


def packed_attention(axis: int) -> ir.Model:
    """Self-attention with one product, whose bias is added before it is split."""
    x = ir.val("x", ir.DataType.FLOAT, ["batch", "length", E])
    graph = ir.Graph([x], [], nodes=[], name="g", opset_imports={"": 22, MICROSOFT: 1})
    matrix = add_initializer(graph, "matrix", np.ones((E, 3 * E), np.float32))
    bias = add_initializer(graph, "bias", np.arange(3 * E, dtype=np.float32))
    product = append_node(graph, "MatMul", [x, matrix], "product")
    total = append_node(graph, "Add", [product, bias], "total")
    parts = [ir.val(f"part_{i}") for i in range(3)]
    graph.append(ir.node("Split", [total], {"axis": axis, "num_outputs": 3}, outputs=parts))
    fused = new_node(
        "MultiHeadAttention", [*parts, None], "fused", {"num_heads": 1}, domain=MICROSOFT
    )
    graph.append(fused)
    graph.outputs.append(fused.outputs[0])
    return ir.Model(graph, ir_version=10)


@pytest.mark.parametrize(("axis", "given"), [(-1, True), (2, True), (1, False)])
def test_an_attention_is_given_the_bias_of_a_packed_product(axis: int, given: bool) -> None:
    model = packed_attention(axis)
    set_parameters(model, {})
    AFTER_EXPORT(model)
    fused = model.graph[-1]
    assert (fused.inputs[3] is not None) == given
    assert ("Add" in [node.op_type for node in model.graph]) != given
    if given:
        assert fused.inputs[3] is model.graph.initializers["bias"]


def test_a_bias_that_others_need_too_stays_where_it_is() -> None:
    model = packed_attention(-1)
    key = next(node for node in model.graph if node.op_type == "Split").outputs[1]
    other = new_node("Relu", [key], "other")
    model.graph.append(other)
    model.graph.outputs.append(other.outputs[0])
    set_parameters(model, {})
    AFTER_EXPORT(model)
    assert "Add" in [node.op_type for node in model.graph]


def test_weights_cannot_be_named_before_the_parameters_are_known() -> None:
    model, _ = attention()
    with pytest.raises(ir.passes.PreconditionError, match="parameters are not known"):
        NameWeights()(model)


def test_only_a_sum_that_is_normalised_is_rewritten() -> None:
    x = ir.val("x", ir.DataType.FLOAT, ["batch", E])
    graph = ir.Graph([x], [], nodes=[], name="g", opset_imports={"": 22})
    scale = add_initializer(graph, "scale", np.ones(E, np.float32))
    other = append_node(graph, "Add", [x, scale], "other")
    residual = append_node(graph, "Add", [x, other], "residual")
    graph.outputs.append(append_node(graph, "LayerNormalization", [residual, scale], "norm"))
    result = UnfuseResidualNorm()(ir.Model(graph, ir_version=10))
    assert result.modified
    assert [node.op_type for node in graph] == ["Add", "Sum", "LayerNormalization"]
