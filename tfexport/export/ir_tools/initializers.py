"""Initializers of a graph: added, renamed, and compared by their values."""

import hashlib
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

Array = NDArray[Any]


def array_of(value: ir.Value) -> Array:
    """The values of an initializer."""
    assert value.const_value is not None
    return value.const_value.numpy()


def add_initializer(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    """Add an initializer to a graph.

    An initializer of that name with equal values is reused. If its values differ, a number is added
    to the name.
    """
    wanted, number = name, 1
    while (existing := graph.initializers.get(name)) is not None:
        if existing.const_value is not None and _is_same(existing.const_value, array):
            return existing
        name, number = f"{wanted}.{number}", number + 1
    value = ir.val(name, const_value=ir.tensor(array, name=name))
    graph.register_initializer(value)
    return value


def share_initializer(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    """Reuse an initializer with equal values under any name, or add one."""
    for value in graph.initializers.values():
        if value.const_value is not None and _is_same(value.const_value, array):
            return value
    return add_initializer(graph, name, array)


def rename_initializer(value: ir.Value, name: str) -> None:
    """Rename an initializer and its tensor."""
    assert value.const_value is not None
    value.name = value.const_value.name = name


def content_key(array: Array) -> str:
    """A hash of type, shape and values."""
    key = hashlib.sha256(f"{array.dtype}{array.shape}".encode())
    key.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return key.hexdigest()


def value_key(value: ir.Value) -> str:
    """``content_key`` of an initializer."""
    return content_key(array_of(value))


def _is_same(tensor: ir.TensorProtocol, array: Array) -> bool:
    if tensor.nbytes != array.nbytes:
        return False
    return content_key(tensor.numpy()) == content_key(array)
