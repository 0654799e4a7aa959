"""Tensors of KServe's protocol: in JSON, and in its binary extension."""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfexport.serve.failures import wrong

BYTES, INT64 = "BYTES", "INT64"
_MOST_ELEMENTS = 1 << 24
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class Tensor:
    """A tensor.

    Attributes:
        name: in the request or response.
        shape: of all its axes.
        values: a list of strings, or an array of integers; flat.
    """

    name: str
    shape: tuple[int, ...]
    values: list[str] | NDArray[np.int64]

    @property
    def datatype(self) -> str:
        """As the protocol names it."""
        return BYTES if isinstance(self.values, list) else INT64


def read_tensor(
    name: str, datatype: str, shape: Sequence[int], data: Any, raw: bytes | None
) -> Tensor:
    """Check a tensor of a request.

    Args:
        name: of the tensor.
        datatype: that the model has; the request's is known to be the same.
        shape: as given.
        data: of JSON, nested or flat; None if there is ``raw``.
        raw: of the binary extension.

    Raises:
        RequestError: naming what is wrong with it.
    """
    # Each axis for itself, too: as many rows of no length have no elements at all.
    if not all(0 <= size <= _MOST_ELEMENTS for size in shape):
        raise wrong(f"{name}: {shown(shape)} is not a shape of a batch")
    count = math.prod(shape)
    if count > _MOST_ELEMENTS or (not count and shape[0]):
        raise wrong(f"{name}: {shown(shape)} is not a shape of a batch")
    values: list[str] | NDArray[np.int64]
    if raw is not None:
        values = _strings(name, raw) if datatype == BYTES else _integers(name, raw)
    else:
        flat = _flat(name, data)
        values = _as_strings(name, flat) if datatype == BYTES else _as_integers(name, flat)
    if len(values) != count:
        raise wrong(f"{name}: {shown(shape)} has {count} elements, the data {len(values)}")
    return Tensor(name, tuple(shape), values)


def shown(shape: Sequence[int]) -> str:
    """A shape for a message, however long its numbers are."""
    return f"shape [{', '.join(str(size)[:20] for size in shape[:8])}]"


def pack(tensor: Tensor) -> bytes:
    """The binary form of a tensor."""
    if isinstance(tensor.values, list):
        encoded = [text.encode() for text in tensor.values]
        return b"".join(_LENGTH.pack(len(text)) + text for text in encoded)
    return tensor.values.astype("<i8").tobytes()


def described(tensor: Tensor, binary: bytes | None) -> dict[str, Any]:
    """A tensor in the JSON of a response.

    Args:
        tensor: to describe.
        binary: its binary form, which follows the JSON; None to put the data into it.
    """
    values: dict[str, Any] = {
        "name": tensor.name, "shape": list(tensor.shape), "datatype": tensor.datatype,
    }  # fmt: skip
    if binary is not None:
        return {**values, "parameters": {"binary_data_size": len(binary)}}
    data = tensor.values if isinstance(tensor.values, list) else tensor.values.tolist()
    return {**values, "data": data}


def split_body(body: bytes, length: bytes) -> tuple[bytes, bytes]:
    """The JSON of a request, and the binary tensors behind it.

    Args:
        body: of the request.
        length: of the JSON, as its header says; empty if there is no such header.

    Raises:
        RequestError: the header does not fit.
    """
    if not length:
        return body, b""
    if not length.isdigit() or int(length[:18]) > len(body):
        raise wrong("Inference-Header-Content-Length: is not the length of a part of the body")
    size = int(length[:18])
    return body[:size], body[size:]


def take_raw(raw: bytes, sizes: Mapping[str, int]) -> dict[str, bytes]:
    """Cut binary data into tensors.

    Args:
        raw: all binary data of a request.
        sizes: of the tensors that are binary, in their order.

    Raises:
        RequestError: the sizes are not those of the data.
    """
    if any(size < 0 for size in sizes.values()) or sum(sizes.values()) != len(raw):
        raise wrong(
            f"binary_data_size: the sizes of all tensors are {sum(sizes.values())} bytes together, "
            f"and {len(raw)} follow the JSON"
        )
    found, end = {}, 0
    for name, size in sizes.items():
        found[name], end = raw[end : end + size], end + size
    return found


def _strings(name: str, raw: bytes) -> list[str]:
    texts, place = list[str](), 0
    while place < len(raw):
        begin = place + _LENGTH.size
        if begin > len(raw):
            raise wrong(f"{name}: ends within the length of text {len(texts)}")
        end = begin + _LENGTH.unpack_from(raw, place)[0]
        if end > len(raw):
            raise wrong(f"{name}: ends within text {len(texts)}")
        try:
            texts.append(raw[begin:end].decode())
        except UnicodeDecodeError:
            raise wrong(f"{name}: text {len(texts)} is not UTF-8") from None
        place = end
    return texts


def _integers(name: str, raw: bytes) -> NDArray[np.int64]:
    if len(raw) % 8:
        raise wrong(f"{name}: {len(raw)} bytes are not a multiple of 8, the size of INT64")
    return np.frombuffer(raw, "<i8").astype(np.int64)


def _flat(name: str, data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise wrong(f"{name}: has no data")
    flat = list[Any]()
    waiting = [iter(data)]
    while waiting:
        for value in waiting[-1]:
            if isinstance(value, list):
                waiting.append(iter(value))
                break
            flat.append(value)
        else:
            waiting.pop()
    return flat


def _as_strings(name: str, flat: list[Any]) -> list[str]:
    if not all(isinstance(value, str) for value in flat):
        raise wrong(f"{name}: BYTES are texts in JSON, and not all of the data is text")
    return flat


def _as_integers(name: str, flat: list[Any]) -> NDArray[np.int64]:
    if not all(isinstance(value, int) and not isinstance(value, bool) for value in flat):
        raise wrong(f"{name}: not all of the data are integers")
    try:
        return np.array(flat, np.int64)
    except OverflowError:
        raise wrong(f"{name}: holds a number that is no INT64") from None
