"""One file for the weights of all graphs, every distinct tensor in it once."""

import hashlib
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from tfexport.bundle import WEIGHTS

# Smaller tensors (shapes, axes, scalars) stay inside the graph, where shape inference sees them.
_SMALLEST = 256
AGAIN = ".again"  # a name's end: the same table, in a graph within the graph


def share_weights(models: Sequence[ir.Model], folder: Path) -> None:
    """Move the graphs' weights to ``weights.bin`` in the folder; equal tensors share one place."""
    share_transposed(models)
    unique: dict[str, ir.TensorProtocol] = {}
    places: list[tuple[ir.Value, str]] = []
    for value, tensor in _weights(models):
        key = content_key(tensor.numpy())
        unique.setdefault(key, tensor)
        places.append((value, key))
    # Aligned to pages, so that the file can be mapped tensor by tensor on every system.
    stored = ir.external_data.convert_tensors_to_external(
        list(unique.values()), folder, WEIGHTS, alignment=4096
    )
    by_key = dict(zip(unique, stored, strict=True))
    for value, key in places:
        at = by_key[key]
        value.const_value = ir.ExternalTensor(
            at.location,
            at.offset,
            at.length,
            at.dtype,
            shape=at.shape,
            name=value.name or "",
            base_dir=at.base_dir,
        )
    for model in models:
        sink_weights(model)


def share_transposed(models: Sequence[ir.Model]) -> None:
    """Turn a stored transpose of another stored table back into a Transpose of that table.

    The exporter folds the transpose in front of a projection into its weight, and so stores a
    table that the projection is tied to a second time. onnxruntime folds it again when it loads.
    """
    weights = _weights(models)
    weights.sort(key=lambda weight: str(weight[0].name).endswith(".T"))  # the tables come first
    seen: set[str] = set()
    for value, tensor in weights:
        array = tensor.numpy()
        seen.add(key := content_key(array))
        if array.ndim != 2 or (other := content_key(array.T)) not in seen or other == key:
            continue
        table = ir.Value(
            name=f"{value.name}.table",
            const_value=ir.tensor(np.ascontiguousarray(array.T), name=f"{value.name}.table"),
        )
        node = ir.Node("", "Transpose", [table], [ir.AttrInt64s("perm", [1, 0])], num_outputs=1)
        (output,) = node.outputs
        output.name, output.shape, output.type = f"{value.name}.out", value.shape, value.type
        graph = value.graph
        assert isinstance(graph, ir.Graph)
        del graph.initializers[value.name or ""]
        ir.convenience.replace_all_uses_with(value, output)
        graph.register_initializer(table)
        graph.insert_before(graph[0], node)


def _weights(models: Sequence[ir.Model]) -> list[tuple[ir.Value, ir.TensorProtocol]]:
    return [
        (value, value.const_value)
        for model in models
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None and value.const_value.nbytes >= _SMALLEST
    ]


def sink_weights(model: ir.Model) -> None:
    """Move what only a loop within a loop reads into the graph between them.

    onnxruntime packs a weight ahead of time if it belongs to the node's own graph or to the one
    around that, and no further out. It is done last: whatever changes graphs finds all weights in
    the outermost.
    """
    for loop in [node for node in model.graph if node.op_type == "Loop"]:
        body = loop.attributes["body"].as_graph()
        if not any(node.op_type == "Loop" for node in body):
            continue
        inside = set(ir.traversal.RecursiveGraphIterator(body))
        for node in list(model.graph):
            if node.op_type == "Transpose" and _is_read_only_by(inside, node.outputs[0]):
                _sink_transposed(model.graph, body, node)
        inside = set(ir.traversal.RecursiveGraphIterator(body))
        for value in list(model.graph.initializers.values()):
            if _is_read_only_by(inside, value):
                del model.graph.initializers[value.name or ""]
                body.register_initializer(value)


def _is_read_only_by(nodes: Container[ir.Node], value: ir.Value) -> bool:
    uses = list(value.uses())
    return bool(uses) and not value.is_graph_output() and all(use.node in nodes for use in uses)


def _sink_transposed(graph: ir.Graph, body: ir.Graph, node: ir.Node) -> None:
    """Move the Transpose of a table; the table too, if it is in a file that both can refer to."""
    (table,) = node.inputs
    if table is None or table.const_value is None:
        return
    if len(list(table.uses())) > 1:
        if not isinstance(table.const_value, ir.ExternalTensor):
            return  # it would be stored twice
        own = ir.Value(name=f"{table.name}{AGAIN}", const_value=table.const_value)
        own.shape, own.type = table.shape, table.type
        body.register_initializer(own)
        node.replace_input_with(0, own)
    graph.remove(node)
    body.insert_before(body[0], node)


def add_initializer(graph: ir.Graph, name: str, array: NDArray[Any]) -> ir.Value:
    """Put a constant into a graph; if one of this name is there, that one is returned."""
    if name in graph.initializers:
        return graph.initializers[name]
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, const_value=tensor, shape=ir.Shape(array.shape))
    value.type = ir.TensorType(tensor.dtype)
    graph.register_initializer(value)
    return value


def content_key(array: NDArray[Any]) -> str:
    """Equal for equal arrays: same type, same shape, same values."""
    head = f"{array.dtype}{array.shape}".encode()
    return hashlib.sha256(head + np.ascontiguousarray(array).tobytes()).hexdigest()
