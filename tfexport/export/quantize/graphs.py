"""Graphs with int8 or int4 weights from graphs with float32 ones. Needs no torch.

int8: symmetric, one scale for each column of a matrix and each row of an embedding table;
activations are quantised as they come, by onnxruntime's DynamicQuantizeMatMul. int4: blocks of 32,
onnxruntime's MatMulNBits; embedding tables, and projections that are tied to one, stay int8.
Source: onnxruntime, docs/ContribOperators.md.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from tfexport.export.ir_tools.initializers import add_initializer, content_key
from tfexport.export.ir_tools.roles import EMBEDDING, PROJECTION, Role, read_role, reads_whole
from tfexport.export.ir_tools.rounding import BLOCK, Array, Floats, by_blocks, by_columns, by_rows
from tfexport.export.passes.int8_argmax import take_all

DOMAIN = "com.microsoft"
KINDS = ("int8", "int4")
SMALLEST = 32  # rows and columns of a matrix that is worth it
_PLACES = {"MatMul": 1, "Gather": 0}  # operator to the input that is the weight
_OF_WORDS = (EMBEDDING, PROJECTION)  # whose rows, or columns, are words of a vocabulary


@dataclass(frozen=True)
class Target:
    """One use of a weight that can be quantised.

    Attributes:
        role: which parameter it is.
        key: of its contents, by which graphs share it.
        node: the MatMul, the Gather, or what reads a table whole.
        weight: the initializer.
        transposed: the node takes it through a Transpose.
    """

    role: Role
    key: str
    node: ir.Node
    weight: ir.Value
    transposed: bool = False


def find_targets(model: ir.Model) -> Iterator[Target]:
    """Every weight that a MatMul multiplies by, and every table of a vocabulary."""
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        place = 0 if reads_whole(node) else _PLACES.get(node.op_type)
        if node.domain or place is None:
            continue
        value, turns = _behind_transposes(node.inputs[place])
        role = read_role(value) if value is not None and _is_matrix(value) else None
        if value is None or role is None:
            continue
        if node.op_type == "MatMul" or role.kind in _OF_WORDS:
            yield Target(role, _key(value), node, value, transposed=turns % 2 == 1)


def _behind_transposes(value: ir.Value | None) -> tuple[ir.Value | None, int]:
    """A matrix, and how often it is turned on its way to here."""
    turns = 0
    while value is not None and (node := value.producer()) is not None:
        if node.op_type != "Transpose":
            break
        value, turns = node.inputs[0], turns + 1
    return value, turns


def _is_matrix(value: ir.Value) -> bool:
    tensor = value.const_value
    return (
        value.is_initializer()
        and tensor is not None
        and tensor.dtype == ir.DataType.FLOAT
        and len(tensor.shape) == 2
        and min(tensor.shape.numpy()) >= SMALLEST
    )


def _array(value: ir.Value) -> Floats:
    assert value.const_value is not None
    array: Floats = value.const_value.numpy()
    return array


def _key(value: ir.Value) -> str:
    return content_key(_array(value))


def quantize_graphs(models: Sequence[ir.Model], kind: str, keep: Collection[str] = ()) -> set[str]:
    """Quantise the weights of graphs in place; what several use is quantised alike for all.

    Args:
        models: the graphs of a bundle, their weights readable.
        kind: "int8" or "int4".
        keep: names of parameters that stay float32.

    Returns:
        The names of those that were quantised.
    """
    for model in models:
        take_all(model, lambda table: _is_kept(table, keep))
    targets = [
        [target for target in find_targets(model) if target.role.parameter not in keep]
        for model in models
    ]
    # A table, which somebody gathers rows of or multiplies by after turning it, is quantised by
    # rows, for all who use it.
    uses = [target for found in targets for target in found]
    tables = {t.key for t in uses if (t.node.op_type == "MatMul") == t.transposed}
    for model, found in zip(models, targets, strict=True):
        store = _Store(model.graph)
        for target in found:
            if target.key in tables:
                _replace_target(target, *store.rows(target.weight), store)
            elif kind == "int8" or target.role.kind in _OF_WORDS:
                # Its columns are words, and a shortlist gathers some: blocks cannot be gathered.
                _replace_target(target, *store.columns(target.weight), store)
            else:
                shape = _array(target.weight).shape
                _replace_by_blocks(target.node, *store.blocks(target.weight), shape)
        RemoveUnusedNodesPass()(model)
        _remove_unused_weights(model)
        model.opset_imports.setdefault(DOMAIN, 1)
    return {target.role.parameter for target in uses}


def _is_kept(table: ir.Value, keep: Collection[str]) -> bool:
    role = read_role(table)
    return role is not None and role.parameter in keep


def _remove_unused_weights(model: ir.Model) -> None:
    """What the pass leaves: the weights of graphs within graphs."""
    for graph in model.graphs():
        for value in list(graph.initializers.values()):
            if not value.uses() and not value.is_graph_output():
                del graph.initializers[value.name or ""]


def _replace_target(target: Target, weight: ir.Value, scale: ir.Value, store: "_Store") -> None:
    if reads_whole(target.node):
        _replace_table(target.node, _transpose(target, weight), scale)
    elif target.node.op_type == "Gather":
        _replace_gather(target.node, _transpose(target, weight), scale, store.last_axis())
    else:
        _replace_matmul(target.node, _transpose(target, weight), scale)


class _Store:
    """Quantised weights of one graph, each made once."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._made: dict[tuple[str, str], tuple[ir.Value, ir.Value]] = {}

    def rows(self, weight: ir.Value) -> tuple[ir.Value, ir.Value]:
        """int8 with a scale for each row."""
        return self._get(weight, "int8", by_rows)

    def columns(self, weight: ir.Value) -> tuple[ir.Value, ir.Value]:
        """int8 with a scale for each column."""
        return self._get(weight, "int8", by_columns)

    def blocks(self, weight: ir.Value) -> tuple[ir.Value, ir.Value]:
        """int4 with a scale for each block."""
        return self._get(weight, "int4", by_blocks)

    def last_axis(self) -> ir.Value:
        """The axes input of an Unsqueeze that adds one at the end."""
        return add_initializer(self._graph, "quantized.last_axis", np.array([-1]))

    def _get(
        self, weight: ir.Value, kind: str, make: Callable[[Floats], tuple[Array, Floats]]
    ) -> tuple[ir.Value, ir.Value]:
        key = (weight.name or "", kind)
        if key not in self._made:
            values, scales = make(_array(weight))
            self._made[key] = (
                add_initializer(self._graph, f"{weight.name}.{kind}", values),
                add_initializer(self._graph, f"{weight.name}.scale", scales),
            )
        return self._made[key]


def _replace_matmul(node: ir.Node, weight: ir.Value, scale: ir.Value) -> None:
    inputs = [node.inputs[0], weight, scale, None]
    last, bias = _bias_behind(node)
    _replace(node, last, ir.Node(DOMAIN, "DynamicQuantizeMatMul", [*inputs, bias], num_outputs=1,
                                 name=f"{node.name}_int8"))  # fmt: skip


def _replace_by_blocks(
    node: ir.Node, weight: ir.Value, scale: ir.Value, shape: tuple[int, ...]
) -> None:
    attributes = {"K": shape[0], "N": shape[1], "bits": 4, "block_size": BLOCK, "accuracy_level": 4}
    made = ir.Node(
        DOMAIN, "MatMulNBits", [node.inputs[0], weight, scale],
        [ir.AttrInt64(name, value) for name, value in attributes.items()],
        num_outputs=1, name=f"{node.name}_int4",
    )  # fmt: skip
    _replace(node, node, made)


def _replace_gather(node: ir.Node, weight: ir.Value, scale: ir.Value, last_axis: ir.Value) -> None:
    """Gather int8 rows and their scales, and multiply."""
    ids = node.inputs[1]
    assert node.graph is not None
    values = _node("Gather", [weight, ids], f"{node.name}_int8")
    scales = _node("Gather", [scale, ids], f"{node.name}_scale")
    to = ir.AttrInt64("to", ir.DataType.FLOAT)
    as_float = _node("Cast", values.outputs, f"{node.name}_cast", to)
    widened = _node("Unsqueeze", [scales.outputs[0], last_axis], f"{node.name}_widened")
    node.graph.insert_before(node, [values, scales, as_float, widened])
    factors = [as_float.outputs[0], widened.outputs[0]]
    _replace(node, node, _node("Mul", factors, f"{node.name}_scaled"))


def _replace_table(node: ir.Node, weight: ir.Value, scale: ir.Value) -> None:
    """The whole table in float32."""
    axis = ir.AttrInt64("axis", 0)
    _replace(node, node, _node("DequantizeLinear", [weight, scale], f"{node.name}_float", axis))


def _node(
    operator: str, inputs: Sequence[ir.Value | None], name: str, *attributes: ir.Attr
) -> ir.Node:
    made = ir.Node("", operator, inputs, attributes, num_outputs=1, name=name)
    made.outputs[0].name = f"{name}.out"
    return made


def _transpose(target: Target, weight: ir.Value) -> ir.Value:
    if not target.transposed:
        return weight
    value = target.node.inputs[_PLACES.get(target.node.op_type, 0)]
    through = value.producer() if value is not None else None
    assert through is not None
    assert through.graph is not None
    order = ir.AttrInt64s("perm", [1, 0])
    made = _node("Transpose", [weight], f"{target.node.name}_transpose", order)
    through.graph.insert_before(through, made)
    return made.outputs[0]


def _bias_behind(node: ir.Node) -> tuple[ir.Node, ir.Value | None]:
    """An Add of a vector that alone takes the product, which the operator does as well."""
    (output,) = node.outputs
    users = list(output.uses())
    if len(users) == 1 and not output.is_graph_output():
        after = users[0].node
        if after.op_type == "Add" and after.graph is node.graph:
            others = [value for value in after.inputs if value is not output]
            bias = others[0] if others else None
            vector = bias.const_value if bias is not None and bias.is_initializer() else None
            if vector is not None and len(vector.shape) == 1:
                return after, bias
    return node, None


def _replace(node: ir.Node, last: ir.Node, made: ir.Node) -> None:
    """Put a node in place of one, or of a node and the last behind it."""
    assert last.graph is not None
    (old,), (new,) = last.outputs, made.outputs
    new.name, new.shape, new.type = old.name, old.shape, old.type
    last.graph.insert_before(last, made)
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    old.name = f"{old.name}.float"
    last.graph.remove(last, safe=True)
    if node is not last:
        assert node.graph is not None
        node.graph.remove(node, safe=True)
