"""The decoder with an output projection onto chosen ids only, for decoding with a vocabulary map.

Made from the exported decoder: the rows of the projection are gathered before it is multiplied.
"""

import onnx_ir as ir

from tfexport import graph_io
from tfexport.errors import ExportError


def make_shortlist(decoder: ir.Model) -> ir.Model:
    """See ``graph_io.shortlist_graph``.

    Args:
        decoder: what ``export_decoder`` made; it is not changed.

    Raises:
        ExportError: its logits do not come from a projection.
    """
    model = decoder.clone()
    graph = model.graph
    candidates = ir.Value(
        name=graph_io.CANDIDATES,
        shape=ir.Shape([graph_io.CANDIDATES]),
        type=ir.TensorType(ir.DataType.INT64),
    )
    graph.inputs.append(candidates)
    logits = graph.outputs[0]
    node = logits.producer()
    if node is not None and node.op_type == "Add":
        bias = _insert(graph, node, _weight(node, 1), "Gather", candidates)
        node.replace_input_with(1, bias)
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    if node is None or node.op_type != "MatMul":
        raise ExportError("decoder.onnx: its logits do not come from a matrix product.")
    # Rows are gathered, not columns, whose values lie apart. onnxruntime turns the weight when it
    # loads it, and multiplies by what was gathered, turned back, without writing that down.
    rows = _tied_table(node) or _insert(graph, node, _weight(node, 1), "Transpose")
    gathered = _insert(graph, node, rows, "Gather", candidates)
    node.replace_input_with(1, _insert(graph, node, gathered, "Transpose"))
    for output in node.outputs:
        output.shape = None
    logits.shape = ir.Shape([graph_io.BATCH, graph_io.TARGET, graph_io.CANDIDATES])
    graph.name = graph_io.SHORTLIST
    return model


def _tied_table(node: ir.Node) -> ir.Value | None:
    """The table that a projection is tied to, where the exporter left it to be turned."""
    turn = node.inputs[1].producer() if node.inputs[1] is not None else None
    if turn is None or turn.op_type != "Transpose":
        return None
    return _weight(turn, 0)


def _weight(node: ir.Node, place: int) -> ir.Value:
    value = node.inputs[place]
    if value is None or not value.is_initializer():
        raise ExportError(f"decoder.onnx: input {place} of {node.op_type} is not a weight.")
    return value


def _insert(
    graph: ir.Graph, before: ir.Node, value: ir.Value, operator: str, ids: ir.Value | None = None
) -> ir.Value:
    """Gather rows of a value, or turn it."""
    inputs = [value] if ids is None else [value, ids]
    attribute = ir.AttrInt64("axis", 0) if ids is not None else ir.AttrInt64s("perm", [1, 0])
    name = f"{operator.lower()}_of_{value.name}"
    node = ir.Node("", operator, inputs, [attribute], num_outputs=1, name=name)
    node.outputs[0].name, node.outputs[0].type = name, value.type
    graph.insert_before(before, node)
    return node.outputs[0]
