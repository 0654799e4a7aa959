"""The decoder with logits of some ids only, for decoding with a vocabulary map.

It is made from the exported decoder: rows of the output projection are gathered, and the decoder's
states are multiplied by those.
"""

import onnx_ir as ir

from tfexport import graph_io
from tfexport.errors import ExportError
from tfexport.export.ir_tools.nodes import new_node


def make_shortlist(decoder: ir.Model) -> ir.Model:
    """See ``graph_io.shortlist_graph``.

    Args:
        decoder: the graph of ``export_decoder``; it is not changed.

    Raises:
        ExportError: its logits do not come from a projection.
    """
    model = decoder.clone()
    graph = model.graph
    candidates = ir.val(graph_io.CANDIDATES, ir.DataType.INT64, [graph_io.CANDIDATES])
    graph.inputs.append(candidates)
    logits = graph.outputs[0]
    node = logits.producer()
    if node is not None and node.op_type == "Add":
        node.replace_input_with(1, _gathered(graph, node, _weight(node, 1), candidates))
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    if node is None or node.op_type != "MatMul":
        raise ExportError("decoder.onnx: its logits do not come from a matrix product.")
    # Rows are gathered, since the values of a column are scattered in memory. onnxruntime
    # transposes the weight at load time, and fuses the second Transpose into the product.
    rows = _tied_table(node) or _transposed(graph, node, _weight(node, 1))
    gathered = _gathered(graph, node, rows, candidates)
    node.replace_input_with(1, _transposed(graph, node, gathered))
    for output in node.outputs:
        output.shape = None
    logits.shape = ir.Shape([graph_io.BATCH, graph_io.TARGET, graph_io.CANDIDATES])
    graph.name = graph_io.SHORTLIST
    return model


def _tied_table(node: ir.Node) -> ir.Value | None:
    """The embedding table of a tied projection, if the exporter left its Transpose in the graph."""
    transpose = node.inputs[1].producer() if node.inputs[1] is not None else None
    if transpose is None or transpose.op_type != "Transpose":
        return None
    return _weight(transpose, 0)


def _weight(node: ir.Node, place: int) -> ir.Value:
    value = node.inputs[place]
    if value is None or not value.is_initializer():
        raise ExportError(f"decoder.onnx: input {place} of {node.op_type} is not a weight.")
    return value


def _gathered(graph: ir.Graph, before: ir.Node, value: ir.Value, ids: ir.Value) -> ir.Value:
    """Insert a Gather of rows."""
    name = f"gather_of_{value.name}"
    return _insert(graph, before, new_node("Gather", [value, ids], name, {"axis": 0}), value)


def _transposed(graph: ir.Graph, before: ir.Node, value: ir.Value) -> ir.Value:
    """Insert a Transpose."""
    name = f"transpose_of_{value.name}"
    return _insert(graph, before, new_node("Transpose", [value], name, {"perm": [1, 0]}), value)


def _insert(graph: ir.Graph, before: ir.Node, node: ir.Node, like: ir.Value) -> ir.Value:
    (output,) = node.outputs
    output.type = like.type
    graph.insert_before(before, node)
    return output
