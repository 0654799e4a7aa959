"""A pass that moves weights to the subgraphs where onnxruntime can prepack them."""

import onnx_ir as ir

# Operators on weights that onnxruntime folds to constants when it loads a graph.
_FOLDED = ("Transpose", "QuantizeLinear", "Pad")


class PlaceWeights(ir.passes.InPlacePass):
    """Moves weights into the inner of two nested loops, if only one of its graphs reads them.

    onnxruntime prepacks a weight that belongs to the graph of the node that reads it, or to the
    graph around that; it folds constants anywhere. It frees the original of a packed weight in the
    outermost graph only, so every other weight stays there. This is the last pass, since the others
    expect weights in the outermost graph.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Move the weights of every loop that contains a loop."""
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
    """Move foldable nodes that are read only inside the loop into its body."""
    inside = set(ir.traversal.RecursiveGraphIterator(body))
    for node in reversed(list(graph)):
        uses = [use.node for output in node.outputs for use in output.uses()]
        if node.op_type in _FOLDED and uses and inside.issuperset(uses):
            graph.remove(node)
            body.insert_before(body[0], node)
            inside.add(node)
