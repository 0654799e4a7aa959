"""Rows of a module's inputs: checked, and made a batch of."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfexport import graph_io
from tfexport.errors import shown
from tfexport.graph_io import TensorSpec

Array = NDArray[Any]
Row = Mapping[str, Array]


def read_row(inputs: Sequence[TensorSpec], row: Any) -> tuple[dict[str, Array], list[str]]:
    """Convert one row to arrays of the inputs' types.

    Args:
        inputs: of the module.
        row: input to array, without the batch axis. A missing ``attention_mask`` is all 1.

    Returns:
        The arrays, and every problem of the row.
    """
    if not isinstance(row, Mapping):
        return {}, [f"{shown(row)} is not a mapping of input to array"]
    given, problems, sizes = dict(row), list[str](), dict[str, int]()
    found: dict[str, Array] = {}
    if graph_io.INPUT_IDS in given:
        given.setdefault(
            graph_io.ATTENTION_MASK, np.ones(np.shape(given[graph_io.INPUT_IDS]), bool)
        )
    for tensor in inputs:
        if tensor.name not in given:
            problems.append(f"{tensor.name!r} is missing")
            continue
        try:
            array = np.asarray(given[tensor.name])
        except (ValueError, TypeError) as error:
            problems.append(f"{tensor.name!r} is not an array: {error}")
            continue
        if problem := _problem(tensor, array, sizes):
            problems.append(f"{tensor.name!r} {problem}")
        else:
            found[tensor.name] = np.ascontiguousarray(array.astype(tensor.dtype))
    known = {tensor.name for tensor in inputs} | {graph_io.ATTENTION_MASK}
    problems += [f"{shown(name)} is not an input" for name in given if name not in known]
    return found, problems


def _problem(tensor: TensorSpec, array: Array, sizes: dict[str, int]) -> str | None:
    """The problem of an array; ``sizes`` collects those of named axes."""
    wanted = tensor.axes[1:]
    if array.ndim != len(wanted):
        return (
            f"has {array.ndim} axes, not the {len(wanted)} of {_shape(wanted)}; a row has no "
            "batch axis"
        )
    for axis, size in zip(wanted, array.shape, strict=True):
        if size != (axis if isinstance(axis, int) else sizes.setdefault(axis, size)):
            expected = axis if isinstance(axis, int) else sizes[axis]
            return f"has shape {array.shape}, not {_shape(wanted)}: {size} instead of {expected}"
        if size == 0:
            return f"is empty: it has shape {array.shape}"
    mask = tensor.name == graph_io.ATTENTION_MASK
    if array.dtype == object or not (mask or np.can_cast(array.dtype, tensor.dtype, "same_kind")):
        return f"is {array.dtype}, not {tensor.dtype}"
    if array.dtype.kind in "iu" and array.size:
        bounds = np.iinfo(tensor.dtype) if np.dtype(tensor.dtype).kind in "iu" else None
        if bounds and not bounds.min <= array.min() <= array.max() <= bounds.max:
            return f"holds numbers that are not {tensor.dtype}"
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return "holds NaN or infinity"
    return None


def _shape(axes: Sequence[int | str]) -> str:
    return f"({', '.join(map(str, axes))}{',' if len(axes) == 1 else ''})"


def stack_rows(rows: Sequence[Row], pad_id: int = 0) -> dict[str, Array]:
    """Make a batch of rows; those of unequal length are padded on the right.

    Args:
        rows: of one shape, but for the length of ``input_ids`` and ``attention_mask``.
        pad_id: fills ``input_ids``; masks are filled with 0.
    """
    stacked = {}
    for name in rows[0]:
        arrays = [row[name] for row in rows]
        if any(array.shape != arrays[0].shape for array in arrays):
            longest = max(len(array) for array in arrays)
            fill = pad_id if name == graph_io.INPUT_IDS else 0
            arrays = [
                np.pad(array, (0, longest - len(array)), constant_values=fill) for array in arrays
            ]
        stacked[name] = np.stack(arrays)
    return stacked


def shape_key(row: Row, padded: bool) -> tuple[Any, ...]:
    """Rows of equal keys may share a batch.

    Args:
        row: input to array.
        padded: rows of ids may have unequal lengths.
    """
    free = (graph_io.INPUT_IDS, graph_io.ATTENTION_MASK) if padded else ()
    return tuple(row[name].shape for name in sorted(row) if name not in free)
