"""Weights of all graphs: placed for prepacking, stored once, listed as parameters."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from tfexport.bundle import WEIGHTS
from tfexport.export.ir_tools.nodes import Array, content_key, read_role, write_role
from tfexport.export.ir_tools.quantization import quantize_per_row, round_to_bfloat16
from tfexport.weight_table import StoredWeight, write_weight_table

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


# Smaller tensors (shapes, axes, scalars) stay inside the graph, where shape inference sees them.
_SMALLEST = 256  # bytes


class _WrittenTensor(ir.Tensor[Any]):
    """Written by the file object, whose errors name a full disk; numpy's do not."""

    def tofile(self, file: Any) -> None:
        """See ``ir.Tensor``."""
        file.write(np.ascontiguousarray(self.numpy()).reshape(-1).view(np.uint8))


def share_weights(models: Sequence[ir.Model], folder: Path) -> None:
    """Move the graphs' weights to ``weights.bin`` in the folder; equal tensors are stored once."""
    share_transposed(models)
    unique: dict[str, ir.TensorProtocol] = {}
    places: list[tuple[ir.Value, str]] = []
    for value, tensor in _weights(models):
        key = content_key(tensor.numpy())
        unique.setdefault(key, tensor)
        places.append((value, key))
    # Odd numbers of bytes, such as masks, come last: no float may lie unaligned behind them.
    unique = dict(sorted(unique.items(), key=lambda each: -math.gcd(each[1].nbytes, 4)))
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


# The table of a bundle's parameters finds each among the stored tensors by its values, because
# exporting transposes, packs and shares tensors. A parameter that no stored tensor holds, such as a
# vector so small that it is inside a graph, is appended.


_ALIGNMENT = 64
_PACKED = 3  # parts of a product that gives queries, keys and values


def record_weights(
    models: Sequence[ir.Model],
    folder: Path,
    parameters: Mapping[str, Array],
    quantized: str | None = None,
) -> None:
    """Write ``weights.json``, and append what is missing to ``weights.bin``.

    Args:
        models: the graphs of the bundle, whose weights are stored.
        folder: the folder of the bundle.
        parameters: name to values of all parameters and buffers; those that are not float32, or
            have more than two axes, are left out.
        quantized: "int8" or "bf16": matrices may be stored so instead.
    """
    wanted = {
        name: np.ascontiguousarray(array)
        for name, array in parameters.items()
        if array.dtype == np.float32 and array.ndim in (1, 2) and array.size
    }
    with _Store(models, folder, wanted.values()) as store:
        table = {}
        for name, array in wanted.items():
            table[name] = (
                (store.find_rounded(array, quantized) if quantized and array.ndim == 2 else None)
                or store.find(array)
                or store.append(array)
            )
    write_weight_table(folder, table)


class _Store:
    """The tensors of ``weights.bin``, by their values."""

    def __init__(self, models: Sequence[ir.Model], folder: Path, arrays: Iterable[Array]) -> None:
        shapes = {array.shape for array in arrays} | {array.shape[:1] for array in arrays}
        self._places: dict[str, StoredWeight] = {}
        for tensor in _stored(models):
            for view in _views(tensor):
                if view[0].shape in shapes:
                    self._add(*view)
        self._file = (folder / WEIGHTS).open("ab")

    def __enter__(self) -> "_Store":
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def find(self, array: Array) -> StoredWeight | None:
        """Where these values are stored, in any layout."""
        return self._places.get(content_key(array))

    def find_rounded(self, array: Array, kind: str) -> StoredWeight | None:
        """Where these values are stored as int8, or rounded to bf16; None if they are not."""
        if kind == "bf16":
            return self.find(round_to_bfloat16(array))
        values, scales = quantize_per_row(array)
        place = self.find(values)
        if place is None:
            return None
        at = self.find(scales) or self.append(scales)  # few scales are inside the graphs
        return place._replace(scales=at.offset)

    def append(self, array: Array) -> StoredWeight:
        self._file.write(b"\0" * (-self._file.tell() % _ALIGNMENT))
        offset = self._file.tell()
        self._file.write(array.tobytes())
        steps = (1,) if array.ndim == 1 else (array.shape[1], 1)
        place = StoredWeight(str(array.dtype), offset, array.shape, steps)
        self._places[content_key(array)] = place
        return place

    def _add(self, array: Array, offset: int) -> None:
        steps = tuple(step // array.itemsize for step in array.strides)
        place = StoredWeight(str(array.dtype), offset, array.shape, steps)
        self._places.setdefault(content_key(array), place)


def _stored(models: Sequence[ir.Model]) -> Iterator[ir.ExternalTensor]:
    """Every tensor of ``weights.bin`` once."""
    seen: set[int | None] = set()
    for model in models:
        for graph in model.graphs():
            for value in graph.initializers.values():
                tensor = value.const_value
                if isinstance(tensor, ir.ExternalTensor) and tensor.offset not in seen:
                    seen.add(tensor.offset)
                    yield tensor


def _views(tensor: ir.ExternalTensor) -> Iterator[tuple[Array, int]]:
    """A tensor's values, its transpose, and the parts of a packed product; with their offsets."""
    array = tensor.numpy()
    if array.dtype not in (np.float32, np.int8) or array.ndim not in (1, 2) or not array.size:
        return
    width, first = array.shape[-1], tensor.offset or 0
    parts = _PACKED if width % _PACKED == 0 else 1
    whole = [(array, first)]
    if parts > 1:
        each = width // parts
        whole += [
            (array[..., i * each : (i + 1) * each], first + i * each * array.itemsize)
            for i in range(parts)
        ]
    for view, offset in whole:
        yield view, offset
        if view.ndim == 2:
            yield view.T, offset
