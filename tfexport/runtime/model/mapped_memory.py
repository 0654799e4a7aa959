"""Releasing physical memory of memory-mapped files."""

import ctypes
import mmap
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_SMAPS = Path("/proc/self/smaps")
# Every mapping, with or without a file.
_MAPPING = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \d+ *(.*)\n")


def release_mapped_pages(file: Path) -> int:
    """Release the resident pages of a file that this process has mapped.

    onnxruntime maps the weights, makes packed copies of most, and keeps the originals mapped: up to
    a quarter of the process' memory. Released pages are read again if they are needed. Does nothing
    on systems other than Linux, and nothing to mappings that were written to, since their pages are
    not in the file.

    Args:
        file: as it was opened; symbolic links are followed.

    Returns:
        The bytes that were released.
    """
    if sys.platform != "linux" or not _SMAPS.exists():
        return 0
    madvise = ctypes.CDLL(None).madvise
    given = 0
    for start, end in _unwritten(bytes(file.resolve())):
        size = end - start
        if madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), mmap.MADV_DONTNEED) == 0:
            given += size
    return given


def _unwritten(path: bytes) -> Iterator[tuple[int, int]]:
    """Starts and ends of a file's mappings, without those that were written to."""
    where = None
    with _SMAPS.open("rb") as smaps:
        for line in smaps.readlines():
            if mapping := _MAPPING.fullmatch(line):
                where = mapping if mapping[3] == path else None
            elif where and line.startswith(b"Anonymous:") and int(line.split()[1]) == 0:
                yield int(where[1], 16), int(where[2], 16)
