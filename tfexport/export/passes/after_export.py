"""Passes over graphs that torch exported: names and roles, packed projections, unfused sums."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from tfexport.export.ir_tools.nodes import (
    GROUP_QUERY_ATTENTION,
    MULTI_HEAD_ATTENTION,
    Array,
    Role,
    add_initializer,
    array_of,
    content_key,
    is_operator,
    new_node,
    read_role,
    rename_initializer,
    value_key,
    write_role,
)

_PARAMETERS = "tfexport.parameters"


class Parameter(NamedTuple):
    """A parameter or buffer of the module that a graph was exported from."""

    role: Role
    values: Array


def set_parameters(model: ir.Model, parameters: Mapping[str, Parameter]) -> None:
    """Give ``NameWeights`` a graph's parameters, by the exporter's names; they are not saved."""
    model.meta[_PARAMETERS] = parameters


class NumberOperators(ir.passes.InPlacePass):
    """Names every contrib operator after its type, with a number.

    The exporter gives all operators that torch lacks the same name.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Name the contrib operators of the outermost graph."""
        own = [node for node in model.graph if node.domain]
        for i, node in enumerate(own):
            node.name = f"{node.op_type}_{i}"
        return ir.passes.PassResult(model, bool(own))


class NameWeights(ir.passes.InPlacePass):
    """Gives weights the names of their parameters, and writes their roles.

    The exporter transposes matrices ahead of time, once for each use, and calls the results
    ``val_56``. They get the names of the parameters they came from, so that a graph viewer and
    messages show those, and copies of one matrix become one.
    """

    def requires(self, model: ir.Model) -> None:
        """``set_parameters`` was called."""
        if _PARAMETERS not in model.meta:
            raise ir.passes.PreconditionError("the model's parameters are not known")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Name the weights of the outermost graph."""
        graph = model.graph
        parameters: Mapping[str, Parameter] = model.meta.pop(_PARAMETERS)
        folded: dict[str, ir.Value] = {}
        for name, value in list(graph.initializers.items()):
            if name in parameters:
                _name(value, parameters[name].role)
            elif value.const_value is not None and value.const_value.size > 1:
                folded[name] = value
        roles = _roles_by_content(parameters, transposes=bool(folded))
        for name, value in folded.items():
            role = roles.get(value_key(value))
            if role is None:
                continue
            same = graph.initializers.get(_weight_name(role))
            if same is None:
                _name(value, role)
            else:
                ir.convenience.replace_all_uses_with(value, same)
                del graph.initializers[name]
        return ir.passes.PassResult(model, True)


def _roles_by_content(parameters: Mapping[str, Parameter], transposes: bool) -> dict[str, Role]:
    roles: dict[str, Role] = {}
    for role, values in parameters.values():
        roles.setdefault(content_key(values), role)
        if transposes and values.ndim == 2:
            roles.setdefault(content_key(values.T), replace(role, transposed=True))
    return roles


def _name(value: ir.Value, role: Role) -> None:
    write_role(value, role)
    rename_initializer(value, _weight_name(role))


def _weight_name(role: Role) -> str:
    return f"{role.parameter}.T" if role.transposed else role.parameter


# One large product is faster than three small ones. ``MultiHeadAttention`` adds the three biases
# itself; ``GroupQueryAttention`` splits the product itself.


_BIAS = 3  # the operator's input
_PARTS = ("q_proj", "k_proj", "v_proj")


class PackQKV(ir.passes.InPlacePass):
    """Packs the projections of every fused self-attention of a graph.

    It needs the roles of the weights, from which the packed weight gets its own.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Pack projections of the same value, if all three or none have a bias.

        Of projections that are packed already, the operator gets the bias.
        """
        packed = False
        for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
            for operator, put in _REPLACEMENTS.items():
                if is_operator(node, operator) and (found := _pack(model.graph, node)):
                    put(model.graph, node, found)
                    packed = True
            packed |= is_operator(node, MULTI_HEAD_ATTENTION) and _give_bias(node)
        if packed:
            RemoveUnusedNodesPass()(model)
        return ir.passes.PassResult(model, packed)


class _Projection(NamedTuple):
    """A product with a constant matrix, and the bias that is added to it."""

    x: ir.Value
    weight: ir.Value
    bias: ir.Value | None


class _Packed(NamedTuple):
    """Three projections of one value as one.

    Attributes:
        product: the product of the value and the packed matrix; not yet part of a graph.
        weight: the matrix.
        bias: the packed biases; None if there are none.
        widths: the widths of queries, keys and values.
    """

    product: ir.Node
    weight: ir.Value
    bias: ir.Value | None
    widths: Sequence[int]


def _pack(graph: ir.Graph, attention: ir.Node) -> _Packed | None:
    found = [_projection(value) for value in attention.inputs[: len(_PARTS)]]
    parts = [part for part in found if part is not None]
    if len(parts) < len(_PARTS) or any(part.x is not parts[0].x for part in parts):
        return None
    biases = [part.bias for part in parts if part.bias is not None]
    role = read_role(parts[0].weight)
    if role is None or len(biases) not in (0, len(_PARTS)):
        return None
    weights = [array_of(part.weight) for part in parts]
    packed = replace(role, parameter=_packed_name(parts))
    weight = add_initializer(graph, f"{packed.parameter}.T", np.concatenate(weights, axis=1))
    write_role(weight, packed)
    bias = None
    if biases:
        vectors = np.concatenate([array_of(bias) for bias in biases])
        bias = add_initializer(graph, f"{weight.name}.bias", vectors)
    name = f"{attention.name}_qkv"
    product = new_node("MatMul", [parts[0].x, weight], name, output=f"{name}.out")
    return _Packed(product, weight, bias, [array.shape[1] for array in weights])


def _packed_name(parts: Sequence[_Projection]) -> str:
    """``qkv_proj`` in place of ``q_proj``, or all three names of a user's own."""
    names = [role.parameter for part in parts if (role := read_role(part.weight)) is not None]
    if _PARTS[0] in names[0]:
        return names[0].replace(_PARTS[0], "qkv_proj")
    return "+".join(dict.fromkeys(names))


def _split(graph: ir.Graph, attention: ir.Node, packed: _Packed) -> None:
    """Make the inputs of an attention the parts of the product."""
    name = attention.name
    sizes = add_initializer(graph, f"{packed.weight.name}.sizes", np.array(packed.widths))
    split = ir.node(
        "Split",
        [packed.product.outputs[0], sizes],
        {"axis": -1},
        outputs=[ir.val(f"{name}_{part}") for part in _PARTS],
        name=f"{name}_split",
    )
    assert attention.graph is not None
    attention.graph.insert_before(attention, [packed.product, split])
    for place, output in enumerate(split.outputs):
        attention.replace_input_with(place, output)
    if packed.bias is not None:
        if len(attention.inputs) <= _BIAS:  # nothing is masked
            attention.resize_inputs(_BIAS + 1)
        attention.replace_input_with(_BIAS, packed.bias)


def _give_bias(attention: ir.Node) -> bool:
    """Give an attention the bias that was added to its inputs before they were split."""
    parts = attention.inputs[: len(_PARTS)]
    split = parts[0].producer() if parts[0] is not None else None
    if split is None or split.op_type != "Split" or list(split.outputs) != list(parts):
        return False
    if any(len(list(each.uses())) != 1 or each.is_graph_output() for each in split.outputs):
        return False  # others need the bias too
    of_others = split.attributes.get_int("axis", 0) not in (-1, 2)
    packed = _projection(split.inputs[0])
    if of_others or packed is None or packed.bias is None:
        return False
    if len(attention.inputs) <= _BIAS or attention.inputs[_BIAS] is not None:
        return False
    add = split.inputs[0].producer() if split.inputs[0] is not None else None
    if add is None or len(list(add.outputs[0].uses())) != 1 or array_of(packed.bias).ndim != 1:
        return False
    split.replace_input_with(0, add.inputs[0])
    attention.replace_input_with(_BIAS, packed.bias)
    return True


def _hand_over(_graph: ir.Graph, attention: ir.Node, packed: _Packed) -> None:
    """Make the product, with its bias, the only input of an attention that is projected."""
    nodes = [packed.product]
    if packed.bias is not None:
        name = f"{attention.name}_qkv_bias"
        nodes.append(new_node("Add", [packed.product.outputs[0], packed.bias], name))
    assert attention.graph is not None
    attention.graph.insert_before(attention, nodes)
    attention.replace_input_with(0, nodes[-1].outputs[0])
    for place in range(1, len(_PARTS)):
        attention.replace_input_with(place, None)


_REPLACEMENTS = {MULTI_HEAD_ATTENTION: _split, GROUP_QUERY_ATTENTION: _hand_over}


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


# onnxruntime fuses ``Add`` and ``LayerNormalization`` into an operator without vector instructions:
# at 32 rows it takes three times as long as the two. ``Sum`` computes the same as ``Add`` and is
# not fused. The fused operator of RMSNorm is faster than its parts, and is kept.


_NORM = "LayerNormalization"


class UnfuseResidualNorm(ir.passes.InPlacePass):
    """Writes every addition that a layer normalisation takes as ``Sum``."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite a graph and the graphs in it."""
        changed = False
        for node in ir.traversal.RecursiveGraphIterator(model.graph):
            if node.op_type == _NORM and node.inputs[0] is not None:
                before = node.inputs[0].producer()
                if before is not None and before.op_type == "Add" and not before.domain:
                    before.op_type = "Sum"
                    changed = True
        return ir.passes.PassResult(model, changed)
