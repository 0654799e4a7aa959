"""Queries, keys and values of a self-attention in one product instead of three.

Small products cost a call each, however little they compute; and the attention operator adds all
three biases itself.
"""

from dataclasses import replace

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from tfexport.export.graphs.fused_attention import OPERATOR
from tfexport.export.ir_tools.roles import read_role, write_role
from tfexport.export.passes.share_weights import add_initializer

DOMAIN, ATTENTION = OPERATOR.split("::")
BIAS = 3  # the operator's input
PARTS = ("q_proj", "k_proj", "v_proj")


def pack_projections(model: ir.Model) -> None:
    """Pack the projections of every fused self-attention of a graph."""
    nodes = list(ir.traversal.RecursiveGraphIterator(model.graph))
    fused = [node for node in nodes if node.op_type == ATTENTION and node.domain == DOMAIN]
    for node in fused:
        _pack(model.graph, node)
    if fused:
        RemoveUnusedNodesPass()(model)


def _pack(graph: ir.Graph, attention: ir.Node) -> None:
    products, biases = [], []
    for value in attention.inputs[:3]:
        product, bias = _projection(value)
        products.append(product)
        biases.append(bias)
    given = [bias is not None for bias in biases]
    if any(product is None for product in products) or any(given) != all(given):
        return
    sources = {id(product.inputs[0]) for product in products if product is not None}
    if len(sources) != 1 or products[0] is None or attention.graph is None:
        return
    values = [product.inputs[1] for product in products if product is not None]
    weights = [_array(value) for value in values]
    role = read_role(values[0]) if values[0] is not None else None
    if role is None:
        return
    packed = replace(role, parameter=role.parameter.replace(PARTS[0], "qkv_proj"))
    weight = add_initializer(graph, f"{packed.parameter}.T", np.concatenate(weights, axis=1))
    write_role(weight, packed)
    product = ir.Node("", "MatMul", [products[0].inputs[0], weight], num_outputs=1,
                      name=f"{attention.name}_qkv")  # fmt: skip
    sizes = add_initializer(graph, f"{weight.name}.sizes", np.array([w.shape[1] for w in weights]))
    axis = ir.AttrInt64("axis", -1)
    split = ir.Node("", "Split", [product.outputs[0], sizes], [axis], num_outputs=3,
                    name=f"{attention.name}_split")  # fmt: skip
    product.outputs[0].name = f"{product.name}.out"
    for part, output in zip(PARTS, split.outputs, strict=True):
        output.name = f"{attention.name}_{part}"
    attention.graph.insert_before(attention, [product, split])
    for place, output in enumerate(split.outputs):
        attention.replace_input_with(place, output)
    if all(given):
        vectors = np.concatenate([_array(bias) for bias in biases])
        bias = add_initializer(graph, f"{weight.name}.bias", vectors)
        attention.replace_input_with(BIAS, bias)


def _projection(value: ir.Value | None) -> tuple[ir.Node | None, ir.Value | None]:
    """The product with a constant matrix that a value is, and the bias that is added to it."""
    node, bias = value.producer() if value is not None else None, None
    if node is not None and node.op_type == "Add":
        bias = node.inputs[1]
        if bias is None or not bias.is_initializer():
            return None, None
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    if node is None or node.op_type != "MatMul":
        return None, None
    weight = node.inputs[1]
    return (node, bias) if weight is not None and weight.is_initializer() else (None, None)


def _array(value: ir.Value | None) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    assert value is not None
    assert value.const_value is not None
    return value.const_value.numpy()
