"""Files of ``pickle.dump`` and ``torch.save``, parsed to data without loading tensors.

As in ``pickle_parser``, nothing is called, imported or allocated: an object of any class becomes a
``Call`` with its state; only the name of its class is known.
"""

import io
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tfexport.file_access import open_file
from tfexport.model_src.checkpoint.pickle_parser import Call, Global, Machine, PickleError

# ``torch.save`` has two formats. A zip archive holds ``name/data.pkl`` and a record for each
# storage, ``name/data/0``. The legacy format is five pickles in a row, then the storages.


ZIP_HEAD = b"PK\x03\x04"
MAX_PICKLE_BYTES = 2**25
_MAX_DIRECTORY_BYTES = 2**22
_MAX_INFLATION = 4  # torch.save deflates nothing, and weights hardly shrink
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C


class OtherArchiveError(PickleError):
    """A zip archive that is no checkpoint; ``names`` are those of its records."""

    def __init__(self, names: list[str]) -> None:
        super().__init__("a zip archive that torch.save did not write")
        self.names = names


@dataclass(frozen=True)
class Contents:
    """The parsed structure of a ``torch.save`` file.

    Attributes:
        value: what was saved; see ``pickle_parser``.
        records: bytes of every storage's record; None for a legacy file, whose storages are not
            listed anywhere.
        size: the size of the file in bytes.
        folder: for an archive, the common prefix of its records' names.
        storages_at: for a legacy file, the offset of the storages.
    """

    value: Any
    records: dict[str, int] | None
    size: int
    folder: str = ""
    storages_at: int = 0


def read_contents(path: Path, machine: Machine | None = None) -> Contents:
    """Parse a file's structure without loading its tensors.

    Args:
        path: the file.
        machine: the interpreter of its pickles; by default one with the limit of a checkpoint.

    Raises:
        PickleError: damaged, not of torch.save, or hostile.
        OSError: the file cannot be read.
    """
    size, machine = path.stat().st_size, machine or Machine()
    with path.open("rb") as file:
        if file.read(len(ZIP_HEAD)) == ZIP_HEAD:
            check_directory(file, size)
            return _read_archive(file, size, machine)
        file.seek(0)
        head = io.BytesIO(file.read(MAX_PICKLE_BYTES))
        value = _read_legacy(head, machine)
        return Contents(value, None, size, storages_at=head.tell())


def mentions(path: Path, word: bytes) -> bool:
    """Whether a file's pickles, which may be too long to be parsed, hold a word.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(MAX_PICKLE_BYTES)  # of an archive too: its pickle is its first record
    return word in head


def check_directory(file: BinaryIO, size: int) -> None:
    """Refuse an archive with a longer list of names than a model has, before it is read.

    Raises:
        PickleError: too long, or there is none.
    """
    # zipfile reads all of the directory, so its size is looked up first: at 12 of the record at the
    # end, or, where that holds 0xffffffff, at 40 of the 64-bit record before it.
    file.seek(max(0, size - 2**16 - 512))
    tail = file.read()
    place = tail.rfind(b"PK\x05\x06")
    if place < 0 or len(tail) < place + 22:
        raise PickleError("its archive has no end")
    (length,) = struct.unpack_from("<I", tail, place + 12)
    wide = tail.rfind(b"PK\x06\x06", 0, place)
    if length == 2**32 - 1 and 0 <= wide <= len(tail) - 56:
        (length,) = struct.unpack_from("<Q", tail, wide + 40)
    if length > _MAX_DIRECTORY_BYTES:
        raise PickleError(f"its archive lists {length} bytes of names, more than a model has")


def _read_archive(file: BinaryIO, size: int, machine: Machine) -> Contents:
    try:
        with zipfile.ZipFile(file) as archive:
            sizes = {info.filename: info.file_size for info in archive.infolist()}
            check_records(archive, sizes, size)
            pickles = [name for name in sizes if name.partition("/")[2] == "data.pkl"]
            if len(pickles) != 1:
                raise OtherArchiveError(list(sizes))
            name = pickles[0]
            if sizes[name] > MAX_PICKLE_BYTES:
                raise PickleError(f"{sizes[name]} bytes of pickle, more than {MAX_PICKLE_BYTES}")
            value = machine.read(io.BytesIO(archive.read(name)))
    except PickleError:
        raise
    except (
        zipfile.BadZipFile, zipfile.LargeZipFile, struct.error, EOFError, OSError, ValueError,
        NotImplementedError,  # an unknown way to deflate
        RuntimeError,  # encrypted
    ) as error:  # fmt: skip
        raise PickleError(f"damaged archive: {error}") from None
    folder = name.removesuffix("data.pkl")
    start = folder + "data/"
    records = {
        key.removeprefix(start): length for key, length in sizes.items() if key.startswith(start)
    }
    return Contents(value, records, size, folder)


def check_records(archive: zipfile.ZipFile, sizes: dict[str, int], size: int) -> None:
    """Refuse records that would inflate to much more than the file, or share a name.

    Args:
        archive: the open archive.
        sizes: the sizes of its records in bytes, by name.
        size: the size of the file in bytes.

    Raises:
        PickleError: there is such a record; the message names it.
        OtherArchiveError: a TorchScript program.
    """
    if any(name.endswith("/constants.pkl") for name in sizes):  # a TorchScript program
        raise OtherArchiveError(list(sizes))
    if len({name.lower() for name in sizes}) < len(archive.infolist()):
        raise PickleError("its archive has two records with the same name")
    inflated = sum(info.file_size for info in archive.infolist())
    if inflated > _MAX_INFLATION * size + 2**20:
        raise PickleError(f"its records would inflate to {inflated} bytes, of a file of {size}")


def _read_legacy(file: BinaryIO, machine: Machine) -> Any:
    if machine.read(file) != LEGACY_MAGIC:
        raise PickleError("a pickle that torch.save did not write")
    machine.read(file)  # the format's version
    machine.read(file)  # about the machine that wrote it
    return machine.read(file)


# A vocabulary of torchtext 0.6 takes seven for each word, and others three.
MAX_INSTRUCTIONS = 2_000_000


def read_pickle(path: Path) -> Any:
    """The value of a pickle, or of a file of ``torch.save``, without its tensors.

    Raises:
        PickleError: neither of them, damaged, or too large.
        OSError: the file cannot be read.
    """
    machine = PlainMachine(MAX_INSTRUCTIONS)
    with open_file(path) as file:
        content = file.read(MAX_PICKLE_BYTES + 1)
    if content.startswith(ZIP_HEAD):
        return read_contents(path, machine).value
    if len(content) > MAX_PICKLE_BYTES:
        raise PickleError(f"more than {MAX_PICKLE_BYTES} bytes of pickle")
    value = machine.read(io.BytesIO(content))
    if type(value) is int and value == LEGACY_MAGIC:  # torch.save's format before 1.6
        return read_contents(path, machine).value
    return value


class PlainMachine(Machine):
    """An interpreter that also knows the instructions of protocols 0, 1, 3, 4 and 5."""

    def _follow(self, name: str, argument: Any) -> None:
        if name in _TEXTS:
            self._stack.append(argument)
        elif name in _INSTRUCTIONS:
            _INSTRUCTIONS[name](self, argument)
        else:
            super()._follow(name, argument)

    def _memoize(self, _: Any) -> None:
        self._put(len(self._memo))

    def _stack_global(self, _: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise PickleError("the name of an imported object is not a string")
        self._stack.append(Global(f"{module}.{name}"))

    def _dict(self, _: Any) -> None:
        items = self._since_mark()
        self._stack.append({})
        self._set(items)

    def _list(self, _: Any) -> None:
        items = self._since_mark()
        self._stack.append(items)

    def _drop_members(self, _: Any) -> None:
        self._since_mark()  # of a set, which holds no vocabulary: its order is not defined

    def _frozenset(self, _: Any) -> None:
        self._since_mark()
        self._stack.append(Call("builtins.frozenset", ()))

    def _new_with_keywords(self, _: Any) -> None:
        self._stack.pop()
        self._call(None)

    def _call(self, _: Any) -> None:
        function = self._stack[-2]
        if isinstance(function, Global) and function.path == "collections.defaultdict":
            del self._stack[-2:]
            self._stack.append({})  # its items follow; its factory is not needed
        else:
            super()._call(None)


_TEXTS = (
    "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "STRING", "SHORT_BINBYTES", "BINBYTES",
    "BINBYTES8", "BYTEARRAY8", "INT", "LONG", "FLOAT",
)  # fmt: skip
_INSTRUCTIONS: dict[str, Callable[[PlainMachine, Any], None]] = {
    "FRAME": lambda machine, _: None,
    "MEMOIZE": PlainMachine._memoize,
    "PUT": Machine._put,
    "GET": Machine._get,
    "STACK_GLOBAL": PlainMachine._stack_global,
    "DICT": PlainMachine._dict,
    "LIST": PlainMachine._list,
    "ADDITEMS": PlainMachine._drop_members,
    "FROZENSET": PlainMachine._frozenset,
    "NEWOBJ_EX": PlainMachine._new_with_keywords,
    # The base class's table holds functions, not names of methods.
    "REDUCE": PlainMachine._call,
    "NEWOBJ": PlainMachine._call,
}
