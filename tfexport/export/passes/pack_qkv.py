"""A pass that computes queries, keys and values of a self-attention in one product.

One large product is faster than three small ones, and the attention operator adds the three biases
itself.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from tfexport.export.ir_tools.initializers import Array, add_initializer, array_of
from tfexport.export.ir_tools.nodes import new_node
from tfexport.export.ir_tools.operators import MULTI_HEAD_ATTENTION, is_operator
from tfexport.export.ir_tools.roles import read_role, write_role

_BIAS = 3  # the operator's input
_PARTS = ("q_proj", "k_proj", "v_proj")


class PackQKV(ir.passes.InPlacePass):
    """Packs the projections of every fused self-attention of a graph.

    It needs the roles of the weights, from which the packed weight gets its own.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Pack projections of the same value, if all three or none have a bias."""
        nodes = list(ir.traversal.RecursiveGraphIterator(model.graph))
        fused = [node for node in nodes if is_operator(node, MULTI_HEAD_ATTENTION)]
        packed = [_pack(model.graph, node) for node in fused]
        if fused:
            RemoveUnusedNodesPass()(model)
        return ir.passes.PassResult(model, any(packed))


class _Projection(NamedTuple):
    """A product with a constant matrix, and the bias that is added to it."""

    x: ir.Value
    weight: ir.Value
    bias: ir.Value | None


def _pack(graph: ir.Graph, attention: ir.Node) -> bool:
    found = [_projection(value) for value in attention.inputs[: len(_PARTS)]]
    parts = [part for part in found if part is not None]
    if len(parts) < len(_PARTS) or any(part.x is not parts[0].x for part in parts):
        return False
    biases = [part.bias for part in parts if part.bias is not None]
    role = read_role(parts[0].weight)
    if role is None or len(biases) not in (0, len(_PARTS)):
        return False
    weights = [array_of(part.weight) for part in parts]
    packed = replace(role, parameter=role.parameter.replace(_PARTS[0], "qkv_proj"))
    weight = add_initializer(graph, f"{packed.parameter}.T", np.concatenate(weights, axis=1))
    write_role(weight, packed)
    _split_product(graph, attention, parts[0].x, weight, weights)
    if biases:
        vectors = np.concatenate([array_of(bias) for bias in biases])
        bias = add_initializer(graph, f"{weight.name}.bias", vectors)
        attention.replace_input_with(_BIAS, bias)
    return True


def _split_product(
    graph: ir.Graph, attention: ir.Node, x: ir.Value, weight: ir.Value, weights: Sequence[Array]
) -> None:
    """Make the inputs of an attention the parts of x @ weight, the concatenation of ``weights``."""
    name = attention.name
    product = new_node("MatMul", [x, weight], f"{name}_qkv", output=f"{name}_qkv.out")
    sizes = add_initializer(graph, f"{weight.name}.sizes", np.array([w.shape[1] for w in weights]))
    split = ir.node(
        "Split",
        [product.outputs[0], sizes],
        {"axis": -1},
        outputs=[ir.val(f"{name}_{part}") for part in _PARTS],
        name=f"{name}_split",
    )
    assert attention.graph is not None
    attention.graph.insert_before(attention, [product, split])
    for place, output in enumerate(split.outputs):
        attention.replace_input_with(place, output)


def _projection(value: ir.Value | None) -> _Projection | None:
    node, bias = value.producer() if value is not None else None, None
    if node is not None and node.op_type == "Add":
        bias = node.inputs[1]
        if bias is None or not bias.is_initializer():
            return None
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    if node is None or node.op_type != "MatMul":
        return None
    x, weight = node.inputs
    if x is None or weight is None or not weight.is_initializer():
        return None
    return _Projection(x, weight, bias)
