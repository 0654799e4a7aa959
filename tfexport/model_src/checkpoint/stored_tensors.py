"""The tensors of a ``torch.save`` file, made from its bytes without unpickling anything.

For files that hold Python objects beside their weights, which ``torch.load`` would have to import.
"""

import io
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from tfexport.model_src.checkpoint import claims
from tfexport.model_src.checkpoint.archive import MAX_PICKLE_BYTES, Contents
from tfexport.model_src.checkpoint.pickled import Call, Machine, PickleError, StorageClaim

_DTYPES = {
    "Double": torch.float64, "Float": torch.float32, "Half": torch.float16,
    "BFloat16": torch.bfloat16, "Long": torch.int64, "Int": torch.int32, "Short": torch.int16,
    "Char": torch.int8, "Byte": torch.uint8, "Bool": torch.bool,
}  # fmt: skip
_STORAGES = {f"torch.{name}Storage": dtype for name, dtype in _DTYPES.items()}


def read_tensors(path: Path, contents: Contents, wanted: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors that some values of a parsed file stand for.

    Args:
        path: the file.
        contents: of the file, of which ``claims.survey`` has checked the sizes.
        wanted: names to values; those that stand for no tensor are left out.

    Raises:
        PickleError: a tensor is sparse, quantized or the like, or its bytes are not there.
        OSError: the file cannot be read.
    """
    calls = {name: _innermost(value) for name, value in wanted.items() if claims.is_tensor(value)}
    for name, call in calls.items():
        if not claims.is_plain_tensor(call):
            raise PickleError(f"{name} is no plain dense tensor")
    needed: dict[str, StorageClaim] = {}
    for name, call in calls.items():
        claim = call.args[0]
        if not claims.is_known(claim):
            raise PickleError(f"{name} holds values of {claim.kind}, which no weight has")
        needed.setdefault(claim.key, claim)
    stored = dict(_read_storages(path, contents, needed))
    return {name: _view(name, call, stored) for name, call in calls.items()}


def _innermost(value: Call) -> Call:
    """The tensor inside a parameter."""
    for _ in range(4):
        inner: Any = value.args[0] if isinstance(value.args, tuple) and value.args else None
        if not claims.is_tensor(inner):
            break
        value = inner
    return value


def _view(name: str, call: Call, stored: Mapping[str, Tensor]) -> Tensor:
    claim, offset, shape, strides = call.args[:4]
    dtype = claims.dtype_of(call) if call.path.endswith("_v3") else _STORAGES.get(claim.kind)
    if dtype is None:
        raise PickleError(f"{name} holds values of {claim.kind}, which no weight has")
    octets = stored[claim.key]
    try:
        flat = octets[: len(octets) - len(octets) % dtype.itemsize].view(dtype)
        return torch.as_strided(flat, shape, strides, offset)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        reason = str(error).splitlines()[0][:200]
        raise PickleError(f"{name} is described in an unknown way: {reason}") from None


def _read_storages(
    path: Path, contents: Contents, needed: Mapping[str, StorageClaim]
) -> Iterator[tuple[str, Tensor]]:
    """The bytes of storages, by their keys."""
    with path.open("rb") as file:
        if contents.records is None:
            yield from _legacy_storages(file, contents, needed)
            return
        with zipfile.ZipFile(file) as archive:
            order = archive.NameToInfo.get(f"{contents.folder}byteorder")
            if order is not None and archive.read(order) != b"little":
                raise PickleError("its values are stored with the highest byte first")
            for key, claim in needed.items():
                data = archive.read(f"{contents.folder}data/{key}")
                yield key, _octets(data, claims.size_of(claim), key)


def _legacy_storages(
    file: BinaryIO, contents: Contents, needed: Mapping[str, StorageClaim]
) -> Iterator[tuple[str, Tensor]]:
    """Behind the pickles: a pickle of keys, then each storage's length in values and its bytes."""
    file.seek(contents.storages_at)
    head = io.BytesIO(file.read(MAX_PICKLE_BYTES))
    keys = Machine().read(head)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise PickleError("its storages are listed in an unknown way")
    sizes = claims.survey(contents).storages
    file.seek(contents.storages_at + head.tell())
    found = set()
    for key in keys:
        if key not in sizes or key in found:
            raise PickleError("its storages are listed in an unknown way")
        found.add(key)
        if len(count := file.read(8)) < 8:
            raise PickleError("it ends before its tensors do")
        if key not in needed:
            file.seek(sizes[key], 1)
            continue
        if struct.unpack("<q", count) != (needed[key].size,):
            raise PickleError("one storage has two sizes")
        yield key, _octets(file.read(sizes[key]), sizes[key], key)
    if missing := [key for key in needed if key not in found]:
        raise PickleError(f"the values of storage {missing[0]} are missing")


def _octets(data: bytes, size: int, key: str) -> Tensor:
    if len(data) < size:
        raise PickleError(f"the values of storage {key} are cut off")
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(data[:size]), dtype=torch.uint8)
