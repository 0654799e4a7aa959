"""Binary files of Marian-NMT, as Firefox and Bergamot ship them: recognised, and not read.

Source: marian-nmt/marian-dev, src/common/binary.cpp and src/data/shortlist.h; numbers are
little-endian. A model begins with its version, the number of its items, and for each item four
numbers: the lengths of its name and its shape, its type between them, and its bytes.
"""

import re
import struct
import zlib
from pathlib import Path

from tfexport.errors import join_some
from tfexport.file_access import HEAD, open_file

_VERSION, _MOST_ITEMS, _LONGEST_NAME, _MOST_AXES = 1, 2**16, 4096, 16
_ITEM = struct.Struct("<4Q")
_SHORTLIST = struct.pack("<Q", 0xF11A48D5013417F5)
_GZIP = b"\x1f\x8b\x08"
# The class of a type is in its second byte; its first one is the size of a value.
_KINDS, _INTGEMM, _PACKED = 0x0700, 0x4000, 0x3800
_MOST_FILES = 64  # of a folder that are opened

_MODEL = (
    "the form of Firefox's and Bergamot's students, which is not supported yet. Of Marian-NMT a "
    "model.npz is read, if its decoder has self-attention (docs/families/marian-nmt.md); that of "
    "a student has SSRU. What a student computes can be exported as a module in PyTorch "
    "(docs/modules.md)."
)
_LIST = "a binary shortlist of Marian-NMT, as Firefox's and Bergamot's students have it: no model."
# Files that are packed in a way that the standard library does not unpack.
_NAMED = re.compile(r"model\..*intgemm.*\.bin\.\w+")


def describe_marian(head: bytes) -> str | None:
    """Describe a binary file of Marian-NMT by its first bytes; None for any other file.

    A file that gzip has packed is described by what is in it.

    Args:
        head: ``HEAD`` bytes, or all of a smaller file.
    """
    begin, packed = _unpacked(head)
    if begin.startswith(_SHORTLIST):
        return _LIST
    weights = _weights_of(begin)
    if weights is None:
        return None
    also = " (packed with gzip)" if packed else ""
    return f"a binary model of Marian-NMT{also}, {weights}, {_MODEL}"


def describe_marian_folder(folder: Path) -> str | None:
    """Describe a folder with a binary model of Marian-NMT; None if there is none."""
    files = sorted(it for it in folder.iterdir() if ".bin" in it.suffixes)[:_MOST_FILES]
    for path in files:
        text = describe_marian(_head_of(path))
        if text is not None and text != _LIST:
            return f"holds {path.name}, {text}"
    if named := [path.name for path in files if _NAMED.fullmatch(path.name)]:
        return f"holds {join_some(named, 3)}: by the name a binary model of Marian-NMT, {_MODEL}"
    return None


def _head_of(path: Path) -> bytes:
    """The first bytes of a file; none of what cannot be read."""
    try:
        with open_file(path) as file:
            return file.read(HEAD)
    except OSError:
        return b""


def _unpacked(head: bytes) -> tuple[bytes, bool]:
    """The first bytes of a file, and whether they were packed."""
    if not head.startswith(_GZIP):
        return head, False
    try:
        return zlib.decompressobj(wbits=31).decompress(head, HEAD), True
    except zlib.error:
        return b"", False


def _weights_of(begin: bytes) -> str | None:
    """The form of the weights of a model; None if the bytes do not begin one."""
    if len(begin) < 16 + _ITEM.size:
        return None
    version, count = struct.unpack_from("<QQ", begin)
    if version != _VERSION or not 0 < count <= _MOST_ITEMS:
        return None
    types = set[int]()
    seen = min(count, (len(begin) - 16) // _ITEM.size)
    for number in range(seen):
        name, kind, axes, size = _ITEM.unpack_from(begin, 16 + number * _ITEM.size)
        known = kind < 0x10000 and kind & _KINDS | kind & _PACKED
        if not (0 < name <= _LONGEST_NAME and 0 < axes <= _MOST_AXES and known and size):
            return None
        types.add(kind)
    if any(kind & _INTGEMM for kind in types):
        return "with weights in int8 (intgemm)"
    packed = any(kind & _PACKED for kind in types)
    return "with weights packed for a processor" if packed else "with weights in floating point"
