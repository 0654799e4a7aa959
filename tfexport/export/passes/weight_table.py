"""The table of a bundle's parameters, found among its stored tensors by their values.

Exporting transposes, packs and shares tensors. A parameter that no stored tensor holds, such as a
vector so small that it is inside a graph, is put behind the others.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from tfexport.bundle import WEIGHTS
from tfexport.export.ir_tools.initializers import Array, content_key
from tfexport.export.ir_tools.rounding import quantize_per_row
from tfexport.weight_table import StoredWeight, write_weight_table

_ALIGNMENT = 64
_PACKED = 3  # parts of a product that gives queries, keys and values


def record_weights(
    models: Sequence[ir.Model],
    folder: Path,
    parameters: Mapping[str, Array],
    quantized: bool = False,
) -> None:
    """Write ``weights.json``, and what is missing behind the end of ``weights.bin``.

    Args:
        models: the graphs of the bundle, whose weights are stored.
        folder: of the bundle.
        parameters: name to values of all parameters and buffers; those that are not float32, or
            have more than two axes, are left out.
        quantized: parameters may be stored as int8 instead.
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
                (store.find_rounded(array) if quantized and array.ndim == 2 else None)
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

    def find_rounded(self, array: Array) -> StoredWeight | None:
        """Where these values are stored as int8; None if they are not."""
        values, scales = quantize_per_row(array)
        place = self.find(values)
        if place is None:
            return None
        at = self.find(scales) or self.append(scales)  # few scales are inside the graphs
        return replace(place, scales=at.offset)

    def append(self, array: Array) -> StoredWeight:
        """Put values behind the others."""
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
