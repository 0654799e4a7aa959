"""One file for the weights of all graphs, every distinct tensor in it once."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from tfexport.bundle import WEIGHTS

# Smaller tensors (shapes, axes, scalars) stay inside the graph, where shape inference sees them.
_SMALLEST = 256


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


def share_transposed(models: Sequence[ir.Model]) -> None:
    """Turn a stored transpose of another stored table back into a Transpose of that table.

    The exporter folds the transpose in front of a projection into its weight, and so stores a
    table that the projection is tied to a second time. onnxruntime folds it again when it loads.
    """
    weights = [(model, *weight) for model in models for weight in _weights([model])]
    weights.sort(key=lambda weight: str(weight[1].name).endswith(".T"))  # the tables come first
    seen: set[str] = set()
    for model, value, tensor in weights:
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
        del model.graph.initializers[value.name or ""]
        ir.convenience.replace_all_uses_with(value, output)
        model.graph.register_initializer(table)
        model.graph.insert_before(model.graph[0], node)


def _weights(models: Sequence[ir.Model]) -> list[tuple[ir.Value, ir.TensorProtocol]]:
    return [
        (value, value.const_value)
        for model in models
        for value in model.graph.initializers.values()
        if value.const_value is not None and value.const_value.nbytes >= _SMALLEST
    ]


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
