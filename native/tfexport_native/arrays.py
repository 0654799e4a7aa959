"""Numpy arrays as the engine takes them."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tfexport_native.library import CSources, CTensor, NativeError

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
_LARGEST = np.iinfo(np.int32).max
# Ids for the encoder, or states (S, E) of an encoder elsewhere.
Source: TypeAlias = Sequence[int] | Floats


class Tensor(NamedTuple):
    """A weight in the orientation of its parameter; vectors are one row.

    Attributes:
        values: float32, or int8 with scales; at most two axes, any strides.
        scales: float32, one for each row; None for float32 values.
        mapped: ``values`` are a map of a file that nobody writes to, of which the engine gives
            back what it has packed, so that no weight is in memory twice.
    """

    values: NDArray[Any]
    scales: Floats | None = None
    mapped: bool = False


class Sources:
    """Sources as the engine takes them, all ids or all states; keeps their memory."""

    def __init__(self, sources: Sequence[Source], state_size: int) -> None:
        self.lengths = np.array([len(source) for source in sources], np.int32)
        self.ids: Ints | None = None
        self.states: Floats | None = None
        if any(isinstance(source, np.ndarray) and source.ndim == 2 for source in sources):
            self.states = _joined(sources, state_size)
        else:
            self.ids = as_ints([id_ for source in sources for id_ in source])
        self.c = CSources(
            address(self.ids), address(self.states), self.lengths.ctypes.data, len(sources)
        )


def _joined(sources: Sequence[Source], state_size: int) -> Floats:
    """States of all sources, one after another."""
    for i, source in enumerate(sources):
        shape: tuple[int, ...] = getattr(source, "shape", ())
        dtype = getattr(source, "dtype", "no array")
        if dtype != np.float32 or len(shape) != 2 or shape[1] != state_size:
            raise NativeError(
                f"source {i} is {dtype} {shape}; expected float32 states (S, {state_size})"
            )
    return np.ascontiguousarray(np.concatenate([np.asarray(source) for source in sources]))


def as_ints(values: Sequence[int] | NDArray[Any]) -> Ints:
    """As the engine takes them; what would wrap to other int32 values becomes the largest."""
    found = np.asarray(values)
    if found.size and found.dtype.kind not in "iu":
        raise NativeError(f"{found.dtype} values where integers are expected")
    # np.clip takes several times as long.
    return np.ascontiguousarray(np.minimum(np.maximum(found, -1), _LARGEST), np.int32)


def c_tensor(name: str, tensor: Tensor) -> CTensor:
    """A weight in the engine's form, whose memory it does not keep."""
    values, scales, mapped = tensor
    expected = np.int8 if scales is not None else np.float32
    if values.dtype != expected or values.ndim not in (1, 2):
        raise NativeError(
            f"{name!r} is {values.dtype} {values.shape}; expected {expected.__name__}"
        )
    two = values.reshape(1, -1) if values.ndim == 1 else values
    if scales is not None and (
        scales.dtype != np.float32 or scales.shape != two.shape[:1] or not scales.flags.c_contiguous
    ):
        raise NativeError(f"{name!r} has scales {scales.shape}; expected ({two.shape[0]},)")
    if any(step % values.itemsize for step in two.strides):
        raise NativeError(f"{name!r} has strides {two.strides} that are no whole values")
    strides = [step // values.itemsize for step in two.strides]
    return CTensor(
        name.encode(), two.ctypes.data, address(scales), *two.shape, *strides, int(mapped)
    )


def check(name: str, array: NDArray[Any] | None, dtype: type, shape: tuple[int, ...]) -> None:
    """Refuse an array that the engine would not read or write as it is; None passes."""
    if array is None:
        return
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        raise NativeError(f"{name} is {array.dtype} {array.shape}; expected {dtype} {shape}")


def flag_address(cancelled: Ints | None) -> int | None:
    """Where a whole search looks whether it is cancelled."""
    check("cancelled", cancelled, np.int32, (1,))
    return address(cancelled)


def address(array: NDArray[Any] | None) -> int | None:
    """Of an array's first value."""
    return None if array is None else array.ctypes.data


def spelt(value: object) -> str:
    """A value of the engine's config."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(int(value)) if isinstance(value, bool) else str(value)
