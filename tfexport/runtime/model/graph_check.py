"""Checks of a graph's inputs and outputs against the names, types and axes of its role."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnxruntime import InferenceSession

from tfexport.errors import BundleError, join_problems
from tfexport.graph_io import CROSS_ATTENTIONS, GENERATE, GraphSpec, TensorSpec
from tfexport.module_io import DTYPES

_TYPES = {
    dtype: f"tensor({ {'float32': 'float', 'float64': 'double'}.get(dtype, dtype) })"
    for dtype in DTYPES
}
_REMEDY = "It is not a graph of this bundle's model. Export the bundle again."


def check_graph(path: Path, session: InferenceSession, spec: GraphSpec) -> None:
    """Refuse a graph whose inputs or outputs are not those of its role.

    Args:
        path: the graph, for the message.
        session: it, opened.
        spec: what its role takes and gives.

    Raises:
        BundleError: naming every difference.
    """
    # generate.onnx gives attention only if it was exported so.
    optional = {CROSS_ATTENTIONS} if spec.name == GENERATE else set[str]()
    problems = [
        *_differences("input", spec.inputs, session.get_inputs()),
        *_differences("input", spec.optional_inputs, session.get_overridable_initializers()),
        *_differences("output", spec.outputs, session.get_outputs(), optional),
    ]
    if problems:
        raise BundleError(join_problems(str(path), problems, _REMEDY))


def _differences(
    kind: str,
    wanted: Sequence[TensorSpec],
    found: Sequence[Any],
    optional: Collection[str] = (),
) -> Iterator[str]:
    """Differences of onnxruntime's ``NodeArg``s from the tensors that were expected."""
    by_name = {value.name: value for value in found}
    known = {tensor.name for tensor in wanted}
    for name in by_name:
        if name not in known:
            yield f"{kind} {name!r} is not one that it should have"
    for tensor in wanted:
        value = by_name.get(tensor.name)
        if value is not None:
            yield from _tensor_differences(kind, tensor, value)
        elif tensor.name not in optional:
            yield f"{kind} {tensor.name!r} is missing"
    # Outputs are told apart by their place.
    order = [tensor.name for tensor in wanted if tensor.name in by_name]
    if kind == "output" and order != [name for name in by_name if name in known]:
        yield f"outputs are not in the order {', '.join(order)}"


def _tensor_differences(kind: str, wanted: TensorSpec, found: Any) -> Iterator[str]:
    where = f"{kind} {wanted.name!r}"
    if found.type != _TYPES[wanted.dtype]:
        yield f"{where} is a {found.type} instead of a {_TYPES[wanted.dtype]}"
    if len(found.shape) != len(wanted.axes):
        yield f"{where} has {len(found.shape)} axes instead of {len(wanted.axes)}"
        return
    for place, (axis, size) in enumerate(zip(wanted.axes, found.shape, strict=True)):
        if isinstance(axis, int) and size != axis:
            yield f"{where} has {size!r} on axis {place} instead of {axis}"
        if isinstance(axis, str) and isinstance(size, int):
            yield f"{where} is fixed at {size} on axis {place}, which is the {axis}"


def check_shapes(
    path: Path,
    spec: GraphSpec,
    feeds: Mapping[str, Sequence[int]],
    found: Mapping[str, Sequence[int]],
) -> None:
    """Refuse outputs whose shapes differ from those of the graph's role.

    onnxruntime only warns of them. Axes of one name have one size.

    Args:
        path: the graph, for the message.
        spec: what its role takes and gives.
        feeds: shapes of inputs, by name.
        found: shapes of outputs, by name.

    Raises:
        BundleError: naming the first output that differs.
    """
    sizes: dict[int | str, int] = {}
    for tensor in (*spec.inputs, *spec.outputs):
        shape = feeds.get(tensor.name, found.get(tensor.name))
        if shape is None:
            continue
        wanted = [axis if isinstance(axis, int) else sizes.get(axis) for axis in tensor.axes]
        if len(shape) != len(wanted) or any(
            size is not None and size != given for size, given in zip(wanted, shape, strict=True)
        ):
            raise BundleError(
                f"{path}: output {tensor.name!r} came as {tuple(shape)}, not as "
                f"{tuple(sizes.get(axis, axis) for axis in tensor.axes)}. {_REMEDY}"
            )
        sizes.update(zip(tensor.axes, shape, strict=True))


def check_range(path: Path, name: str, values: NDArray[np.int64], size: int) -> None:
    """Refuse outputs with indices outside 0 to ``size`` - 1.

    Raises:
        BundleError: naming the first that is not.
    """
    wrong = values[(values < 0) | (values >= size)]
    if wrong.size:
        raise BundleError(
            f"{path}: output {name!r} holds {wrong[0]}, not only 0 to {size - 1}. {_REMEDY}"
        )
