"""One file for the weights of all graphs, every distinct tensor in it once."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from tfexport.bundle import WEIGHTS

# Smaller tensors (shapes, axes, scalars) stay inside the graph, where shape inference sees them.
_SMALLEST = 256


def share_weights(models: Sequence[ir.Model], folder: Path) -> None:
    """Move the graphs' weights to ``weights.bin`` in the folder; equal tensors share one place."""
    unique: dict[str, ir.TensorProtocol] = {}
    places: list[tuple[ir.Value, str]] = []
    for model in models:
        for value in model.graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and tensor.nbytes >= _SMALLEST:
                key = _content(tensor)
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


def _content(tensor: ir.TensorProtocol) -> str:
    head = f"{tensor.dtype}{tuple(tensor.shape)}".encode()
    return hashlib.sha256(head + tensor.tobytes()).hexdigest()
