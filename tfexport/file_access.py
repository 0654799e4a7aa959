"""Opening files without waiting, and describing what was found instead of a model's file.

Models are fetched by tools that leave something else where a file should be: a pointer of Git LFS,
the page of a failed download, an archive. Each is recognised by its first bytes.
"""

import errno
import os
import re
import stat
from pathlib import Path
from typing import BinaryIO

from tfexport.typing import PathLike

HEAD = 2**16  # bytes of the beginning of a file, which tell its form
_DESCRIBED = 1024
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_LFS = re.compile(rb"version https?://(git-lfs\.github\.com|hawser\.github\.com)/spec/v\d")
_LFS_SIZE = re.compile(rb"^size (\d{1,15})$", re.MULTILINE)
_ANNEX = re.compile(rb"(/annex/objects/|\.git/annex/objects/)")
_PAGE = re.compile(rb"<!doctype html|<html[ >].*<(head|body)", re.IGNORECASE | re.DOTALL)
_PACKED = (
    (b"\x1f\x8b\x08", "gzip"),
    (b"\xfd7zXZ\0", "xz"),
    (b"BZh", "bzip2"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"7z\xbc\xaf\x27\x1c", "7-Zip"),
    (b"Rar!\x1a\x07", "RAR"),
)
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_file(path: PathLike) -> BinaryIO:
    """Open a file for reading.

    Raises:
        OSError: there is no such file; or it is a folder, a named pipe, a device or a socket, where
            reading might never end. ``strerror`` states which.
    """
    return open(path, "rb", opener=_open_regular)


def refuse_name(path: PathLike, library: str) -> str | None:
    """Why a library that takes paths as UTF-8 cannot open this one; None if it can."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return f"its path is not UTF-8, which {library} requires. Rename the folder."
    return None


def _open_regular(path: str, flags: int) -> int:
    # O_NONBLOCK: a named pipe without a writer is opened at once, and recognised afterwards.
    try:
        descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        if error.errno == errno.ENXIO:  # of a socket
            raise OSError(error.errno, "it is a socket, and a file is expected", path) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "no file")
    raise OSError(errno.EINVAL, f"it is {kind}, and a file is expected", path)


def describe_substitute(path: PathLike) -> str | None:
    """Describe what was found instead of a model's file, as a sentence without its subject.

    A broken link is described too if git-annex made it, and a name of the Hugging Face hub.
    """
    path = Path(path)
    try:
        with open_file(path) as file:
            head = file.read(HEAD)
    except FileNotFoundError:
        return _describe_lost_link(path) or _describe_hub_name(path)
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "strerror", ""))
        return f"{reason.removeprefix('it is ')}." if reason.startswith("it is ") else None
    return describe_content(head)


def describe_content(head: bytes) -> str | None:
    """``describe_substitute`` of an open file, by its first bytes."""
    head = head[:_DESCRIBED]
    if _LFS.match(head):
        size = _LFS_SIZE.search(head)
        of = f", of a file of {int(size[1]):,} bytes that was not fetched" if size else ""
        return f"a Git LFS pointer{of}. Run 'git lfs pull' in the clone, or download the file."
    if _ANNEX.match(head.lstrip(b"./")) or _ANNEX.match(head):
        return _FETCH_ANNEX
    begin = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if _PAGE.match(begin):
        return (
            "a web page (HTML), such as one that a failed download or a login page leaves. "
            "Download the file itself."
        )
    if begin.startswith((b"<?xml", b"<Error>")):
        return "an XML document, such as a storage's error message. Download it again."
    for mark, name in _PACKED:
        if head.startswith(mark):
            return f"packed with {name}. Unpack it, and name what it holds."
    if head[257:262] == b"ustar":
        return "a tar archive. Unpack it, and name what it holds."
    return None


_FETCH_ANNEX = (
    "a pointer of git-annex, of a file that was not fetched. Run 'git annex get' in the clone."
)


def _describe_hub_name(path: Path) -> str | None:
    """Say how a model of the Hugging Face hub is fetched, if a missing path may be its name."""
    if not _HUB_NAME.fullmatch(path.as_posix()) or path.parent.exists():
        return None
    return (
        "no such file or folder. If it is a model of the Hugging Face hub, fetch it with "
        f"'hf download {path.as_posix()}', and name the folder that it prints."
    )


def _describe_lost_link(path: Path) -> str | None:
    try:
        target = str(path.readlink())
    except (OSError, ValueError):
        return None
    if "annex/objects/" in target:
        return _FETCH_ANNEX
    return f"a link to {target}, which is not there."
