"""Constants of a graph, added and compared by their contents."""

import hashlib
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

Array = NDArray[Any]


def array_of(value: ir.Value) -> Array:
    """The contents of an initializer."""
    assert value.const_value is not None
    return value.const_value.numpy()


def add_initializer(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    """Put a constant into a graph; if the same is there under this name, that one is returned.

    If the name stands for something else, the constant gets another one.
    """
    wanted, number = name, 1
    while (taken := graph.initializers.get(name)) is not None:
        if taken.const_value is not None and _is_same(taken.const_value, array):
            return taken
        name, number = f"{wanted}.{number}", number + 1
    value = ir.val(name, const_value=ir.tensor(array, name=name))
    graph.register_initializer(value)
    return value


def share_initializer(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    """``add_initializer``, unless one with the same content is there under any name."""
    for value in graph.initializers.values():
        if value.const_value is not None and _is_same(value.const_value, array):
            return value
    return add_initializer(graph, name, array)


def rename_initializer(value: ir.Value, name: str) -> None:
    """Rename an initializer and the tensor in it."""
    assert value.const_value is not None
    value.name = value.const_value.name = name


def content_key(array: Array) -> str:
    """Equal for equal arrays: same type, same shape, same values."""
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
