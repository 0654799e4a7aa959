"""Weights in the graph where onnxruntime makes the most of them."""

import onnx_ir as ir

# Folded by onnxruntime when it loads a graph, where these are applied to weights.
_FOLDED = ("Transpose", "QuantizeLinear", "Pad")


class PlaceWeights(ir.passes.InPlacePass):
    """Moves weights that only one graph inside a loop within a loop reads into that graph.

    onnxruntime packs a weight ahead of time if it belongs to the graph of the node that reads it or
    to the one around that; it folds a weight that belongs to any graph. It frees originals in the
    outermost graph only, so every other weight stays there. It is the last pass: all others find
    the weights in the outermost graph.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Place the weights of every loop that has a loop in it."""
        moved = False
        for loop in [node for node in model.graph if node.op_type == "Loop"]:
            body = loop.attributes["body"].as_graph()
            if any(node.op_type == "Loop" for node in body):
                _place_folded(model.graph, body)
                _place_read(model.graph, list(body.subgraphs()))
                moved = True
        return ir.passes.PassResult(model, moved)


def _place_read(graph: ir.Graph, inner: list[ir.Graph]) -> None:
    """Move each weight that one inner graph alone reads into that one."""
    for value in list(graph.initializers.values()):
        readers = {use.node.graph for use in value.uses()}
        if len(readers) == 1 and (reader := readers.pop()) in inner:
            assert isinstance(reader, ir.Graph)
            del graph.initializers[value.name or ""]
            reader.register_initializer(value)


def _place_folded(graph: ir.Graph, body: ir.Graph) -> None:
    """Move nodes that are folded, and are read inside the loop only, into its body."""
    inside = set(ir.traversal.RecursiveGraphIterator(body))
    for node in reversed(list(graph)):
        uses = [use.node for output in node.outputs for use in output.uses()]
        if node.op_type in _FOLDED and uses and inside.issuperset(uses):
            graph.remove(node)
            body.insert_before(body[0], node)
            inside.add(node)
