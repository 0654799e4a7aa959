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
        _gather(graph, node, 1, candidates, axis=0)
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    if node is None or node.op_type != "MatMul":
        raise ExportError("decoder.onnx: its logits do not come from a matrix product.")
    weights = node.inputs[1]
    transposed = weights.producer() if weights is not None else None
    if transposed is None:
        _gather(graph, node, 1, candidates, axis=1)
    else:  # a tied table, which the embedding gathers rows of
        _gather(graph, transposed, 0, candidates, axis=0)
        transposed.outputs[0].shape = None
    for output in node.outputs:
        output.shape = None
    logits.shape = ir.Shape([graph_io.BATCH, graph_io.TARGET, graph_io.CANDIDATES])
    graph.name = graph_io.SHORTLIST
    return model


def _gather(graph: ir.Graph, node: ir.Node, place: int, ids: ir.Value, axis: int) -> None:
    """Let a node take chosen rows or columns of a weight instead of all."""
    weight = node.inputs[place]
    if weight is None or not weight.is_initializer():
        raise ExportError(f"decoder.onnx: input {place} of {node.op_type} is not a weight.")
    chosen = ir.Node(
        "", "Gather", [weight, ids], [ir.AttrInt64("axis", axis)], num_outputs=1,
        name=f"candidates_of_{node.name}",
    )  # fmt: skip
    chosen.outputs[0].name = f"candidates_of_{weight.name}"
    chosen.outputs[0].type = weight.type
    graph.insert_before(node, chosen)
    node.replace_input_with(place, chosen.outputs[0])
