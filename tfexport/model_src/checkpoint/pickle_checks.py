"""Tensors of ``torch.save`` files: checked before any is allocated, made without unpickling."""

import io
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from tfexport.errors import join_some, shown
from tfexport.model_src.checkpoint.pickle_files import MAX_PICKLE_BYTES, Contents
from tfexport.model_src.checkpoint.pickle_parser import (
    Call,
    DeclaredStorage,
    Global,
    Machine,
    PickleError,
)

# Tensors may share a storage (tied tables, one layer under many names), and narrow types upcast,
# so in float32 all tensors together may take more bytes than are stored. In honest files it is a
# few times as many, or a small number in all.
MAX_GROWTH = 8
ALWAYS_ALLOWED = 2**27

_VALUE_BYTES = {
    "Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1,
    "Byte": 1, "Bool": 1, "ComplexDouble": 16, "ComplexFloat": 8, "QInt8": 1, "QUInt8": 1,
    "QInt32": 4,
}  # fmt: skip
_STORAGES = {f"torch.{name}Storage": size for name, size in _VALUE_BYTES.items()}
_STORAGES["torch.storage.UntypedStorage"] = 1
_PLAIN = {f"torch._utils._rebuild_tensor{version}": version for version in ("", "_v2", "_v3")}
_PARAMETERS = {f"torch._utils._rebuild_parameter{suffix}" for suffix in ("", "_with_state")}
_UNUSUAL = {
    "torch._utils._rebuild_meta_tensor_no_storage": "a meta tensor, which has no values",
    "torch._utils._rebuild_qtensor": "a quantized tensor",
    "torch._utils._rebuild_sparse_tensor": "a sparse tensor",
    "torch._utils._rebuild_nested_tensor": "a nested tensor",
    "torch._utils._rebuild_wrapper_subclass": "a tensor of a subclass",
    "torch._tensor._rebuild_from_type_v2": "a tensor of a subclass",
    "torch._utils._rebuild_device_tensor_from_numpy": "a tensor of a foreign device",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": "a tensor of a foreign device",
}
_HARMLESS = (
    "torch.Size", "torch.device", "torch.serialization._get_layout",
    "builtins.set", "builtins.complex", "builtins.bytearray", "_codecs.encode",
)  # fmt: skip
_SCALARS = (str, int, float, bool, bytes, type(None))


@dataclass(frozen=True)
class Survey:
    """The tensors, storages and other objects that a file declares.

    Attributes:
        tensors: number of values of every plain tensor, by the keys that lead to it.
        storages: the size of every storage in bytes, by key.
        unusual: sparse, quantized and other special tensors: their keys to their kinds.
        objects: dotted paths of Python objects that loading would have to import.
    """

    tensors: dict[str, int]
    storages: dict[str, int]
    unusual: dict[str, str]
    objects: list[str]


def is_tensor(value: Any) -> bool:
    """Whether a value of ``Contents`` is a tensor."""
    return isinstance(value, Call) and (
        value.path in _PLAIN or value.path in _PARAMETERS or value.path in _UNUSUAL
    )


def is_plain_tensor(value: Any) -> bool:
    """Whether a value of ``Contents`` is a dense tensor, outside a parameter."""
    return isinstance(value, Call) and value.path in _PLAIN


def is_known(declared: DeclaredStorage) -> bool:
    """Whether a storage is of a kind whose values have a known size."""
    return declared.kind in _STORAGES


def size_of(declared: DeclaredStorage) -> int:
    """The bytes of a storage of a known kind."""
    return declared.size * _STORAGES[declared.kind]


def dtype_of(call: Call) -> torch.dtype | None:
    """The type of a tensor that names its own, next to its storage."""
    found = _dtype(call.args[6].path)
    return found if isinstance(found, torch.dtype) else None


def survey(contents: Contents) -> Survey:
    """Collect the declarations of a file and check their sizes.

    Raises:
        PickleError: a tensor reaches beyond its storage, a storage beyond its record, or all
            together declare more values than a file of this size can hold.
    """
    found = Survey({}, {}, {}, [])
    for where, value in _walk(contents.value):
        if isinstance(value, Global):
            if not _is_torchs(value.path):
                found.objects.append(value.path)
        elif isinstance(value, DeclaredStorage):
            _note_storage(value, found)
        elif value.path in _PLAIN:
            found.tensors[where] = found.tensors.get(where, 0) + _count_values(value, where)
        elif value.path in _UNUSUAL:
            found.unusual[where] = _UNUSUAL[value.path]
        elif value.path not in _PARAMETERS:
            _note_call(value, found)
    _check_sums(found, contents)
    return found


def _walk(value: Any) -> Iterator[tuple[str, Any]]:
    """Every call, global and storage, with the keys that lead to it."""
    left, seen = [("", value)], set()
    while left:
        where, value = left.pop()
        if isinstance(value, Call | Global | DeclaredStorage):
            if id(value) in seen:
                continue
            seen.add(id(value))
            yield where, value
        inside: list[tuple[str, Any]] = []
        if isinstance(value, dict):
            if id(value) not in seen:
                inside = [(_join(where, key), item) for key, item in value.items()]
                inside += [(where, key) for key in value if isinstance(key, Call | Global)]
        elif isinstance(value, list | tuple):
            if id(value) not in seen:
                inside = [(where, item) for item in value]
        elif isinstance(value, Call):
            inside = [(where, value.args), (where, value.state)]
        seen.add(id(value))
        left += reversed(inside)


def _join(where: str, key: Any) -> str:
    name = key[:512] if isinstance(key, str) else type(key).__name__
    return name if len(where) > 512 or not where else f"{where}.{name}"


def _is_torchs(path: str) -> bool:
    known = (*_STORAGES, *_HARMLESS, *_PLAIN, *_PARAMETERS, *_UNUSUAL)
    return path in known or isinstance(_dtype(path), torch.dtype | torch.layout | torch.qscheme)


def _dtype(path: str) -> Any:
    module, _, name = path.partition(".")
    return getattr(torch, name, None) if module == "torch" and name.isidentifier() else None


def _note_storage(declared: DeclaredStorage, found: Survey) -> None:
    if declared.kind not in _STORAGES:
        found.objects.append(declared.kind)
        return
    size = size_of(declared)
    if found.storages.setdefault(declared.key, size) != size:
        raise PickleError("one storage has two sizes")


def _note_call(call: Call, found: Survey) -> None:
    """Note a call that makes no tensor; harmless ones that make a small plain value are allowed."""
    plain = isinstance(call.args, tuple) and all(map(_is_plain, call.args))
    if call.path not in _HARMLESS or not plain:
        found.objects.append(call.path or "a call of something computed")
    elif call.path == "builtins.bytearray" and any(isinstance(item, int) for item in call.args):
        found.objects.append(call.path)  # bytearray(n) is n bytes, whatever n
    elif call.path == "_codecs.encode" and call.args[1:] != ("latin1",):
        found.objects.append(call.path)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(item, _SCALARS) for item in value)
    return isinstance(value, _SCALARS) or (isinstance(value, Call) and value.path in _HARMLESS)


def _count_values(call: Call, where: str) -> int:
    """The number of values of a plain tensor, which are within its storage."""
    try:
        storage, offset, shape, strides = call.args[:4]
        size = _STORAGES.get(storage.kind, 1)
        if call.path.endswith("_v3"):
            size = _dtype(call.args[6].path).itemsize
        if len(shape) != len(strides) or min((offset, *shape, *strides)) < 0:
            raise PickleError(f"{where} has an invalid shape")
        last = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
        stored = storage.size * _STORAGES.get(storage.kind, 1)
        if prod(shape) and (offset + last + 1) * size > stored:
            raise PickleError(f"{where} extends beyond the stored values")
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        if isinstance(error, PickleError):
            raise
        raise PickleError(f"{where} has an unknown format") from None
    return prod(shape)


def _check_sums(found: Survey, contents: Contents) -> None:
    for key, size in found.storages.items():
        if contents.records is not None and size > contents.records.get(key, -1):
            raise PickleError(f"record {key} is missing, or shorter than its {size} bytes")
    stored = sum(found.storages.values())
    if contents.records is None and stored > contents.size:
        raise PickleError(f"it ends before the {stored} bytes of its tensors")
    values = sum(found.tensors.values())
    if 4 * values > max(ALWAYS_ALLOWED, MAX_GROWTH * stored):
        largest = sorted(found.tensors, key=lambda key: -found.tensors[key])
        raise PickleError(
            f"it claims far more values than it holds: {shown(values)} in {stored} stored bytes; "
            f"the largest: {join_some(largest, 3)}"
        )


# Tensors made from the bytes of a ``torch.save`` file without unpickling. For files that also hold
# Python objects, for which ``torch.load`` would import their classes.


_DTYPES = {
    "Double": torch.float64, "Float": torch.float32, "Half": torch.float16,
    "BFloat16": torch.bfloat16, "Long": torch.int64, "Int": torch.int32, "Short": torch.int16,
    "Char": torch.int8, "Byte": torch.uint8, "Bool": torch.bool,
}  # fmt: skip
_STORAGE_CLASSES = {f"torch.{name}Storage": dtype for name, dtype in _DTYPES.items()}


def read_tensors(path: Path, contents: Contents, wanted: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors that some values of a parsed file describe.

    Args:
        path: the file.
        contents: the contents of the file, whose sizes ``survey`` has checked.
        wanted: names to values; those that are no tensors are left out.

    Raises:
        PickleError: a tensor is sparse, quantized or the like, or its bytes are not there.
        OSError: the file cannot be read.
    """
    calls = {name: _innermost(value) for name, value in wanted.items() if is_tensor(value)}
    for name, call in calls.items():
        if not is_plain_tensor(call):
            raise PickleError(f"{name} is not a plain dense tensor")
    needed: dict[str, DeclaredStorage] = {}
    for name, call in calls.items():
        declared = call.args[0]
        if not is_known(declared):
            raise PickleError(f"{name} holds values of {declared.kind}, which no weight has")
        needed.setdefault(declared.key, declared)
    stored = dict(_read_storages(path, contents, needed))
    return {name: _view(name, call, stored) for name, call in calls.items()}


def _innermost(value: Call) -> Call:
    """The tensor inside a parameter."""
    for _ in range(4):
        inner: Any = value.args[0] if isinstance(value.args, tuple) and value.args else None
        if not is_tensor(inner):
            break
        value = inner
    return value


def _view(name: str, call: Call, stored: Mapping[str, Tensor]) -> Tensor:
    declared, offset, shape, strides = call.args[:4]
    dtype = dtype_of(call) if call.path.endswith("_v3") else _STORAGE_CLASSES.get(declared.kind)
    if dtype is None:
        raise PickleError(f"{name} holds values of {declared.kind}, which no weight has")
    octets = stored[declared.key]
    try:
        flat = octets[: len(octets) - len(octets) % dtype.itemsize].view(dtype)
        return torch.as_strided(flat, shape, strides, offset)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        reason = str(error).splitlines()[0][:200]
        raise PickleError(f"{name} has an unknown format: {reason}") from None


def _read_storages(
    path: Path, contents: Contents, needed: Mapping[str, DeclaredStorage]
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
            for key, declared in needed.items():
                data = archive.read(f"{contents.folder}data/{key}")
                yield key, _octets(data, size_of(declared), key)


def _legacy_storages(
    file: BinaryIO, contents: Contents, needed: Mapping[str, DeclaredStorage]
) -> Iterator[tuple[str, Tensor]]:
    """After the pickles: a pickle of keys, then each storage's length in values and its bytes."""
    file.seek(contents.storages_at)
    head = io.BytesIO(file.read(MAX_PICKLE_BYTES))
    keys = Machine().read(head)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise PickleError("its storages have an unknown format")
    sizes = survey(contents).storages
    file.seek(contents.storages_at + head.tell())
    found = set()
    for key in keys:
        if key not in sizes or key in found:
            raise PickleError("its storages have an unknown format")
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
