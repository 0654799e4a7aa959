"""Releasing physical memory of memory-mapped files."""

import contextlib
import ctypes
import mmap
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

_MAPS, _PAGES = Path("/proc/self/maps"), Path("/proc/self/pagemap")
_MAPPING = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \d+ *(.*)\n")
# Bits of a page in pagemap. Source: Documentation/admin-guide/mm/pagemap.rst of Linux.
_IN_MEMORY, _OF_FILE = np.uint64(0b11 << 62), np.uint64(1 << 61)  # in memory or swapped out


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
    if sys.platform != "linux" or not _PAGES.exists():
        return 0
    madvise = ctypes.CDLL(None).madvise
    given = 0
    with contextlib.suppress(PermissionError):  # to read the table of pages
        for start, end in _unwritten(bytes(file.resolve())):
            size = end - start
            if madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), mmap.MADV_DONTNEED) == 0:
                given += size
    return given


def _unwritten(path: bytes) -> Iterator[tuple[int, int]]:
    """Starts and ends of a file's mappings, without those that were written to."""
    with _MAPS.open("rb") as maps:
        mappings = [_MAPPING.fullmatch(line) for line in maps if path in line]
    for mapping in mappings:
        if mapping is None or mapping[3] != path:
            continue
        start, end = int(mapping[1], 16), int(mapping[2], 16)
        # Of these pages only: smaps has sums, and counts the pages of the process for them.
        with _PAGES.open("rb") as pages:
            pages.seek(start // mmap.PAGESIZE * 8)
            of_pages = np.frombuffer(pages.read((end - start) // mmap.PAGESIZE * 8), np.uint64)
        written = (of_pages & _IN_MEMORY != 0) & (of_pages & _OF_FILE == 0)
        if len(of_pages) and not written.any():
            yield start, end
