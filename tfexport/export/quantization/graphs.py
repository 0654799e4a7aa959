"""Quantisation of float32 graphs to int8, int4 or bf16 weights. Needs no torch.

int8: symmetric, one scale for each column of a matrix and each row of an embedding table;
activations are quantised dynamically by onnxruntime's DynamicQuantizeMatMul. int4: blocks of 32,
onnxruntime's MatMulNBits; embedding tables, and projections that are tied to one, stay int8. bf16:
float32 values that bfloat16 holds; the native engine stores them so, and the graphs stay the same.
Source: onnxruntime, docs/ContribOperators.md.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from tfexport.export.ir_tools.nodes import (
    EMBEDDING,
    MICROSOFT,
    PROJECTION,
    Role,
    add_initializer,
    array_of,
    new_node,
    read_role,
    reads_table,
    value_key,
)
from tfexport.export.ir_tools.quantization import (
    BLOCK,
    Array,
    Floats,
    quantize_blockwise,
    quantize_per_column,
    quantize_per_row,
    round_to_bfloat16,
)
from tfexport.export.passes.int8_argmax import remove_preselection

KINDS = ("int8", "int4", "bf16")
SMALLEST = 32  # rows and columns; quantising a smaller matrix saves nothing
_WEIGHT_INPUTS = {"MatMul": 1, "Gather": 0}  # operator to the input that is the weight
_OF_VOCABULARY = (EMBEDDING, PROJECTION)  # whose rows, or columns, are tokens


@dataclass(frozen=True)
class WeightUse:
    """One use of a weight that can be quantised.

    Attributes:
        role: the role of the weight, with its parameter.
        key: a hash of the values, equal for weights that graphs share.
        node: the MatMul or Gather, or a node marked by ``mark_table_reader``.
        weight: the initializer.
        transposed: the node reads it through a Transpose.
    """

    role: Role
    key: str
    node: ir.Node
    weight: ir.Value
    transposed: bool = False

    @property
    def is_table(self) -> bool:
        """Whether the node gathers rows of the weight, or multiplies by its transpose."""
        return (self.node.op_type == "MatMul") == self.transposed


def find_weight_uses(models: Sequence[ir.Model]) -> list[list[WeightUse]]:
    """For each graph, every use of a weight by a MatMul, and of a table of tokens by other nodes.

    Tables are embeddings and projections, and matrices of which a graph gathers rows and one of
    the graphs multiplies: those of a module have no role of their own.
    """
    every = [list(_uses(model)) for model in models]
    multiplied = {use.key for uses in every for use in uses if use.node.op_type == "MatMul"}
    return [
        [use for use in uses if use.role.kind in _OF_VOCABULARY or use.key in multiplied]
        for uses in every
    ]


def _uses(model: ir.Model) -> Iterator[WeightUse]:
    """Every use of a matrix that has a role."""
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        index = 0 if reads_table(node) else _WEIGHT_INPUTS.get(node.op_type)
        if node.domain or index is None:
            continue
        value, transposed = _through_transposes(node.inputs[index])
        role = read_role(value) if value is not None and _is_matrix(value) else None
        if value is not None and role is not None:
            yield WeightUse(role, value_key(value), node, value, transposed)


def _through_transposes(value: ir.Value | None) -> tuple[ir.Value | None, bool]:
    """The value before any Transposes, and whether ``value`` is its transpose."""
    transposed = False
    while value is not None and (node := value.producer()) is not None:
        if node.op_type != "Transpose":
            break
        value, transposed = node.inputs[0], not transposed
    return value, transposed


def _is_matrix(value: ir.Value) -> bool:
    tensor = value.const_value
    return (
        value.is_initializer()
        and tensor is not None
        and tensor.dtype == ir.DataType.FLOAT
        and len(tensor.shape) == 2
        and min(tensor.shape.numpy()) >= SMALLEST
    )


def quantize_graphs(models: Sequence[ir.Model], kind: str, keep: Collection[str] = ()) -> set[str]:
    """Quantise the weights of graphs in place, a shared weight in the same way for all.

    Args:
        models: the graphs of a bundle, their weights readable.
        kind: "int8", "int4" or "bf16".
        keep: names of parameters that stay float32, in all graphs: one may have the same values
            by another name.

    Returns:
        The names of those that were quantised.
    """
    if kind == "bf16":
        return _round_graphs(models, keep)
    kept = _keys_of(models, keep)
    for model in models:
        remove_preselection(model, keeps=lambda table: value_key(table) in kept)
    by_model = [[use for use in uses if use.key not in kept] for uses in find_weight_uses(models)]
    every = [use for uses in by_model for use in uses]
    # A table is quantised per row for all uses of it.
    tables = {use.key for use in every if use.is_table}
    for model, uses in zip(models, by_model, strict=True):
        store = _Store(model.graph)
        for use in uses:
            if use.key in tables:
                _replace_use(use, *store.per_row(use.weight), store)
            elif kind == "int8" or use.role.kind in _OF_VOCABULARY:
                # Its columns are tokens; a shortlist gathers some, which int4 blocks do not allow.
                _replace_use(use, *store.per_column(use.weight), store)
            else:
                _replace_blockwise(use, *store.blockwise(use.weight))
        RemoveUnusedNodesPass()(model)
        _remove_unused_weights(model)
        model.opset_imports.setdefault(MICROSOFT, 1)
    return {use.role.parameter for use in every}


def _round_graphs(models: Sequence[ir.Model], keep: Collection[str]) -> set[str]:
    """Round the weights of graphs in place; see ``quantize_graphs``."""
    kept = _keys_of(models, keep)
    every = [use for uses in find_weight_uses(models) for use in uses]
    names = {use.role.parameter for use in every if use.key not in kept}
    for model in models:
        for graph in model.graphs():
            for value in graph.initializers.values():
                role = read_role(value) if _is_matrix(value) else None
                if role is not None and role.parameter in names:
                    value.const_value = ir.tensor(
                        round_to_bfloat16(array_of(value)), name=value.name
                    )
    return names


def _keys_of(models: Sequence[ir.Model], parameters: Collection[str]) -> set[str]:
    """The keys of the values of parameters."""
    return {
        use.key
        for uses in (find_weight_uses(models) if parameters else ())
        for use in uses
        if use.role.parameter in parameters
    }


def _remove_unused_weights(model: ir.Model) -> None:
    """Remove unused weights of subgraphs, which ``RemoveUnusedNodesPass`` leaves."""
    for graph in model.graphs():
        for value in list(graph.initializers.values()):
            if not value.uses() and not value.is_graph_output():
                del graph.initializers[value.name or ""]


class _Store:
    """A cache of the quantised weights of one graph: values and scales."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._made: dict[tuple[str, str], tuple[ir.Value, ir.Value]] = {}

    def per_row(self, weight: ir.Value) -> tuple[ir.Value, ir.Value]:
        """int8 with a scale for each row."""
        return self._get(weight, "int8", quantize_per_row)

    def per_column(self, weight: ir.Value) -> tuple[ir.Value, ir.Value]:
        """int8 with a scale for each column."""
        return self._get(weight, "int8", quantize_per_column)

    def blockwise(self, weight: ir.Value) -> tuple[ir.Value, ir.Value]:
        """int4 with a scale for each block."""
        return self._get(weight, "int4", quantize_blockwise)

    def last_axis(self) -> ir.Value:
        """The axes input of an Unsqueeze at the last axis."""
        return add_initializer(self._graph, "quantized.last_axis", np.array([-1]))

    def _get(
        self, weight: ir.Value, kind: str, quantize: Callable[[Floats], tuple[Array, Floats]]
    ) -> tuple[ir.Value, ir.Value]:
        key = (weight.name or "", kind)
        if key not in self._made:
            values, scales = quantize(array_of(weight))
            self._made[key] = (
                add_initializer(self._graph, f"{weight.name}.{kind}", values),
                add_initializer(self._graph, f"{weight.name}.scale", scales),
            )
        return self._made[key]


def _replace_use(use: WeightUse, weight: ir.Value, scale: ir.Value, store: _Store) -> None:
    weight = _transpose(use, weight) if use.transposed else weight
    if reads_table(use.node):
        _replace_table_reader(use.node, weight, scale)
    elif use.node.op_type == "Gather":
        _replace_gather(use.node, weight, scale, store.last_axis())
    else:
        _replace_matmul(use.node, weight, scale)


def _transpose(use: WeightUse, weight: ir.Value) -> ir.Value:
    """Insert a Transpose of the quantised weight before that of the original."""
    value = use.node.inputs[_WEIGHT_INPUTS.get(use.node.op_type, 0)]
    through = value.producer() if value is not None else None
    assert through is not None
    assert through.graph is not None
    made = _node("Transpose", [weight], f"{use.node.name}_transpose", {"perm": [1, 0]})
    through.graph.insert_before(through, made)
    return made.outputs[0]


def _replace_matmul(node: ir.Node, weight: ir.Value, scale: ir.Value) -> None:
    bias_add, bias = _bias_after(node)
    made = new_node(
        "DynamicQuantizeMatMul",
        [node.inputs[0], weight, scale, None, bias],
        f"{node.name}_int8",
        domain=MICROSOFT,
    )
    _replace([node] if bias_add is None else [bias_add, node], [made])


def _replace_blockwise(use: WeightUse, weight: ir.Value, scale: ir.Value) -> None:
    rows, columns = array_of(use.weight).shape
    made = new_node(
        "MatMulNBits",
        [use.node.inputs[0], weight, scale],
        f"{use.node.name}_int4",
        {"K": rows, "N": columns, "bits": 4, "block_size": BLOCK, "accuracy_level": 4},
        domain=MICROSOFT,
    )
    _replace([use.node], [made])


def _replace_gather(node: ir.Node, weight: ir.Value, scale: ir.Value, last_axis: ir.Value) -> None:
    """Gather int8 rows and their scales, and multiply."""
    ids = node.inputs[1]
    values = _node("Gather", [weight, ids], f"{node.name}_int8")
    scales = _node("Gather", [scale, ids], f"{node.name}_scale")
    as_float = _node("Cast", values.outputs, f"{node.name}_cast", {"to": ir.DataType.FLOAT})
    widened = _node("Unsqueeze", [scales.outputs[0], last_axis], f"{node.name}_widened")
    factors = [as_float.outputs[0], widened.outputs[0]]
    product = _node("Mul", factors, f"{node.name}_scaled")
    _replace([node], [values, scales, as_float, widened, product])


def _replace_table_reader(node: ir.Node, weight: ir.Value, scale: ir.Value) -> None:
    """Dequantize all of the table to float32."""
    made = _node("DequantizeLinear", [weight, scale], f"{node.name}_float", {"axis": 0})
    _replace([node], [made])


def _node(
    operator: str,
    inputs: Sequence[ir.Value | None],
    name: str,
    attributes: dict[str, int | list[int]] | None = None,
) -> ir.Node:
    return new_node(operator, inputs, name, attributes, output=f"{name}.out")


def _bias_after(node: ir.Node) -> tuple[ir.Node | None, ir.Value | None]:
    """The Add of a bias that is the only user of the product, and the bias; else None for both."""
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
    return None, None


def _replace(old: Sequence[ir.Node], new: Sequence[ir.Node]) -> None:
    """Replace nodes: the output of the first old one becomes that of the last new one."""
    first = old[0]
    assert first.graph is not None
    ir.convenience.replace_nodes_and_values(
        first.graph, first, old, new, first.outputs, new[-1].outputs
    )
