"""Releasing physical memory of memory-mapped files."""

import ctypes
import mmap
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_MAPS = Path("/proc/self/maps")
_MAPPING = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \d+ *(.*)\n")
_MADV_PAGEOUT = 21  # Source: include/uapi/asm-generic/mman-common.h of Linux 5.4


def map_file(file: Path) -> mmap.mmap:
    """Map a file to read it; ``release_map`` releases what was read."""
    with file.open("rb") as opened:
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)


def release_map(mapped: mmap.mmap) -> None:
    """Release the pages of a map that ``map_file`` made; they are read again if needed."""
    if hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def release_mapped_pages(file: Path) -> None:
    """Release the pages of a file that some library of this process has mapped, on Linux.

    onnxruntime maps the weights, makes packed copies of most, and keeps the originals mapped: up to
    a quarter of the process' memory. Released pages are read again if they are needed.

    Another thread may unmap the file after this function has looked, and other memory may take its
    addresses: so the kernel is only asked to move the pages out, which never loses their content.
    It does so for files that this process may write or owns.

    Args:
        file: as it was opened; symbolic links are followed.
    """
    if sys.platform != "linux" or not _MAPS.exists():
        return
    madvise = ctypes.CDLL(None).madvise
    for start, end in _mappings(bytes(file.resolve())):
        madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_PAGEOUT)


def _mappings(path: bytes) -> Iterator[tuple[int, int]]:
    """Starts and ends of a file's mappings."""
    for line in _MAPS.read_bytes().splitlines(keepends=True):
        mapping = _MAPPING.fullmatch(line)
        if mapping is not None and mapping[3] == path:
            yield int(mapping[1], 16), int(mapping[2], 16)
