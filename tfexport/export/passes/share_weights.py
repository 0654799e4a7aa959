"""One file for the weights of all graphs, which stores equal tensors once."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from tfexport.bundle import WEIGHTS
from tfexport.export.ir_tools.initializers import content_key
from tfexport.export.ir_tools.roles import read_role, write_role
from tfexport.export.passes.place_weights import PlaceWeights

# Smaller tensors (shapes, axes, scalars) stay inside the graph, where shape inference sees them.
_SMALLEST = 256  # bytes


class _WrittenTensor(ir.Tensor[Any]):
    """Written by the file, whose errors say that the disk is full; numpy's do not."""

    def tofile(self, file: Any) -> None:
        """See ``ir.Tensor``."""
        file.write(np.ascontiguousarray(self.numpy()).reshape(-1).view(np.uint8))


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
        [_WrittenTensor(t.numpy(), t.dtype, name=t.name) for t in unique.values()],
        folder,
        WEIGHTS,
        alignment=4096,
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
        PlaceWeights()(model)


def share_transposed(models: Sequence[ir.Model]) -> None:
    """Replace the stored transpose of another stored table by a Transpose of that table.

    The exporter folds the Transpose of a projection into its weight, so a tied table is stored
    twice. onnxruntime folds the Transpose again when it loads the graph.
    """
    weights = _weights(models)
    weights.sort(key=lambda weight: _is_transposed(weight[0]))  # transposes last
    seen: set[str] = set()
    for value, tensor in weights:
        array = tensor.numpy()
        seen.add(key := content_key(array))
        if array.ndim != 2 or (other := content_key(array.T)) not in seen or other == key:
            continue
        name = f"{value.name}.table"
        tensor = ir.tensor(np.ascontiguousarray(array.T), name=name)
        table = ir.Value(name=name, const_value=tensor)
        if role := read_role(value):
            write_role(table, replace(role, transposed=False))
        output = ir.val(f"{value.name}.out", shape=value.shape, type=value.type)
        node = ir.node("Transpose", [table], {"perm": [1, 0]}, outputs=[output])
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
