"""One file for the weights of all graphs, every distinct tensor in it once."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from tfexport.bundle import WEIGHTS
from tfexport.export.ir_tools.roles import read_role, write_role

# Smaller tensors (shapes, axes, scalars) stay inside the graph, where shape inference sees them.
_SMALLEST = 256
# What onnxruntime folds when it loads a graph, where it is applied to weights.
_FOLDED = ("Transpose", "QuantizeLinear", "Pad")


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
    weights.sort(key=lambda weight: _is_transposed(weight[0]))  # the tables come first
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
        if role := read_role(value):
            write_role(table, replace(role, transposed=False))
        node = ir.Node("", "Transpose", [table], [ir.AttrInt64s("perm", [1, 0])], num_outputs=1)
        (output,) = node.outputs
        output.name, output.shape, output.type = f"{value.name}.out", value.shape, value.type
        graph = value.graph
        assert isinstance(graph, ir.Graph)
        del graph.initializers[value.name or ""]
        ir.convenience.replace_all_uses_with(value, output)
        graph.register_initializer(table)
        graph.insert_before(graph[0], node)


def _is_transposed(value: ir.Value) -> bool:
    role = read_role(value)
    return role is not None and role.transposed


def _weights(models: Sequence[ir.Model]) -> list[tuple[ir.Value, ir.TensorProtocol]]:
    return [
        (value, value.const_value)
        for model in models
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None and value.const_value.nbytes >= _SMALLEST
    ]


def sink_weights(model: ir.Model) -> None:
    """Move what only one graph inside a loop within a loop reads into it.

    onnxruntime packs a weight ahead of time if it belongs to the graph of the node that reads it or
    to the one around that; what it folds, if it belongs to any. It lets go of originals in the
    outermost graph only, so nothing goes in that need not. It is done last: whatever changes graphs
    finds all weights in the outermost.
    """
    for loop in [node for node in model.graph if node.op_type == "Loop"]:
        body = loop.attributes["body"].as_graph()
        if not any(node.op_type == "Loop" for node in body):
            continue
        _sink_folded(model.graph, body)
        inner = list(body.subgraphs())
        for value in list(model.graph.initializers.values()):
            readers = {use.node.graph for use in value.uses()}
            if len(readers) == 1 and (reader := readers.pop()) in inner:
                assert isinstance(reader, ir.Graph)
                del model.graph.initializers[value.name or ""]
                reader.register_initializer(value)


def _sink_folded(graph: ir.Graph, body: ir.Graph) -> None:
    """Move what only gives folded weights to an inner graph into the one around that."""
    inside = set(ir.traversal.RecursiveGraphIterator(body))
    for node in reversed(list(graph)):
        uses = [use.node for output in node.outputs for use in output.uses()]
        if node.op_type in _FOLDED and uses and inside.issuperset(uses):
            graph.remove(node)
            body.insert_before(body[0], node)
            inside.add(node)


def add_initializer(graph: ir.Graph, name: str, array: NDArray[Any]) -> ir.Value:
    """Put a constant into a graph; if the same is there under this name, that one is returned.

    If the name stands for something else, the constant gets another one.
    """
    wanted, number = name, 1
    while (taken := graph.initializers.get(name)) is not None:
        if taken.const_value is not None and _is_same(taken.const_value, array):
            return taken
        name, number = f"{wanted}.{number}", number + 1
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, const_value=tensor, shape=ir.Shape(array.shape))
    value.type = ir.TensorType(tensor.dtype)
    graph.register_initializer(value)
    return value


def share_initializer(graph: ir.Graph, name: str, array: NDArray[Any]) -> ir.Value:
    """``add_initializer``, unless one with the same content is there under any name."""
    for value in graph.initializers.values():
        if value.const_value is not None and _is_same(value.const_value, array):
            return value
    return add_initializer(graph, name, array)


def _is_same(tensor: ir.TensorProtocol, array: NDArray[Any]) -> bool:
    if tensor.nbytes != array.nbytes:
        return False
    return content_key(tensor.numpy()) == content_key(array)


def content_key(array: NDArray[Any]) -> str:
    """Equal for equal arrays: same type, same shape, same values."""
    key = hashlib.sha256(f"{array.dtype}{array.shape}".encode())
    key.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return key.hexdigest()
