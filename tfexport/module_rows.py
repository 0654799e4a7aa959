"""Checking rows of a module's inputs, and making a batch of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfexport import graph_io
from tfexport.errors import shown
from tfexport.graph_io import TensorSpec

Array = NDArray[Any]
Row = Mapping[str, Array]


def read_row(
    inputs: Sequence[TensorSpec],
    row: Any,
    below: Mapping[str, int] | None = None,
    longest: Mapping[str, int] | None = None,
) -> tuple[dict[str, Array], list[str]]:
    """Convert one row to arrays of the inputs' types.

    Args:
        inputs: the inputs of the module.
        row: input to array, without the batch axis. A missing ``attention_mask`` is all 1.
        below: for each input that holds ids, the smallest number that is too large.
        longest: the largest size of axes that have one, by name.

    Returns:
        The arrays, and every problem of the row.
    """
    if not isinstance(row, Mapping):
        return {}, [f"{shown(row)} is not a mapping of input to array"]
    problems, sizes, found = list[str](), dict[str, int](), dict[str, Array]()
    for tensor in inputs:
        given = row.get(tensor.name)
        if given is None and tensor.name == graph_io.ATTENTION_MASK:
            ids = found.get(graph_io.INPUT_IDS)
            if ids is None and problems:  # of the ids, whose shape it has
                continue
            given = None if ids is None else np.ones(ids.shape, bool)
        if given is None:
            problems.append(f"{tensor.name!r} is missing")
            continue
        try:
            array = np.asarray(given)
        except (ValueError, TypeError, RuntimeError) as error:  # ragged; a tensor with gradients
            problems.append(f"{tensor.name!r} is not an array: {error}")
            continue
        if problem := _problem(tensor, array, sizes) or _number_problem(tensor, array, below or {}):
            problems.append(f"{tensor.name!r} {problem}")
        else:
            found[tensor.name] = array.astype(tensor.dtype, order="C")
    problems += [
        f"{axis} is {sizes[axis]}, of at most {most}"
        for axis, most in (longest or {}).items()
        if sizes.get(axis, 0) > most
    ]
    known = {tensor.name for tensor in inputs}
    problems += [f"{shown(name)} is not an input" for name in row if name not in known]
    return found, problems


def unmasked_ids(row: Row) -> list[int]:
    """The ids of a row of ``SOURCE_INPUTS`` that its mask keeps."""
    kept: list[int] = row[graph_io.INPUT_IDS][row[graph_io.ATTENTION_MASK] != 0].tolist()
    return kept


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
    return None


def _number_problem(tensor: TensorSpec, array: Array, below: Mapping[str, int]) -> str | None:
    mask = tensor.name == graph_io.ATTENTION_MASK
    if array.dtype == object or not (mask or np.can_cast(array.dtype, tensor.dtype, "same_kind")):
        return f"is {array.dtype}, not {tensor.dtype}"
    wanted = np.dtype(tensor.dtype)
    if array.dtype.kind in "iu" and wanted.kind in "iu":
        least, most = np.iinfo(wanted).min, np.iinfo(wanted).max
        if tensor.name in below:
            least, most = 0, below[tensor.name] - 1
        if not least <= int(array.min()) <= int(array.max()) <= most:
            return f"holds numbers that are not from {least} to {most}"
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            if not np.isfinite(array.astype(wanted)).all():
                return f"holds NaN or infinity as {tensor.dtype}"
    return None


def _shape(axes: Sequence[int | str]) -> str:
    return f"({', '.join(map(str, axes))}{',' if len(axes) == 1 else ''})"


def stack_rows(rows: Sequence[Row], pad_id: int = 0) -> dict[str, Array]:
    """Make a batch of rows; those of unequal length are padded on the right.

    Args:
        rows: equal shapes, except for the length of ``input_ids`` and ``attention_mask``.
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
