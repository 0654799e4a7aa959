"""Files on any file system that pyarrow knows, and atomic writing."""

import gzip
import os
import uuid
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import fs

from tfexport.errors import ConfigError, InputError, join_some, shown
from tfexport.json_checks import is_unicode

Result = TypeVar("Result")
_HIDDEN = (".", "_")
BLOCK = 1 << 20  # bytes of one read or write
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".br": "brotli"}


def file_system(place: str) -> tuple[fs.FileSystem, str]:
    """The file system of a path or URI, and the path on it.

    Raises:
        ConfigError: a URI of a kind that pyarrow does not know, or a name that is not UTF-8.
    """
    if not is_unicode(place):
        raise ConfigError(f"{shown(place)}: is not UTF-8; rename it.")
    if "://" not in place:
        return fs.LocalFileSystem(), Path(place).resolve().as_posix()
    try:
        found, path = fs.FileSystem.from_uri(place)
    except (OSError, pa.ArrowException) as error:  # such as a missing library of Hadoop
        # The error may repeat the complete URI.
        why = f": {str(error).splitlines()[0]}" if place == public(place) else ""
        raise ConfigError(
            f"{public(place)}: no file system that pyarrow can open{why}. Give a path, or a "
            "URI such as s3://bucket/folder, gs://bucket/folder or hdfs://host/folder."
        ) from None
    return found, Path(path).resolve().as_posix() if local_path(found, path) else path


def public(place: str) -> str:
    """A path or URI without its secrets: user, password and query."""
    scheme, mark, rest = place.partition("://")
    if not mark:
        return place
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"


def local_path(system: fs.FileSystem, path: str) -> Path | None:
    """The path on this machine's disk; None on another file system."""
    return Path(path) if isinstance(system, fs.LocalFileSystem) else None


def files_in(system: fs.FileSystem, folder: str, output: str | None = None) -> list[fs.FileInfo]:
    """The files in a folder and its subfolders, by name, without hidden ones.

    Links are followed. A folder with several names is entered once: by its own name if it is in the
    folder, else by the first link to it.

    Args:
        system: the system with the folder.
        folder: the folder to look through.
        output: a path on the same system; no link of the folder may lead to it.

    Raises:
        ConfigError: a link leads to the output.
        InputError: a name is not UTF-8.
    """
    if local := local_path(system, folder):
        paths = sorted(_walk(local, None if output is None else Path(output)))
        if wrong := [shown(path) for path in paths if not is_unicode(path)]:
            raise InputError(f"{folder}: names are not UTF-8, rename them: {join_some(wrong)}")
        return list(system.get_file_info(paths))
    found = system.get_file_info(fs.FileSelector(folder, recursive=True, allow_not_found=True))
    return sorted(
        (info for info in found if info.type == fs.FileType.File and not _hidden(info, folder)),
        key=lambda info: info.path,
    )


def _walk(root: Path, output: Path | None) -> Iterator[str]:
    """The files in a folder and in linked folders; every folder once."""
    own, linked, entered, wrong = deque([root]), deque[Path](), set[str](), list[str]()
    while own or linked:
        folder = own.popleft() if own else linked.popleft()
        real = os.path.realpath(folder)
        if real in entered:
            continue
        entered.add(real)
        for path in sorted(folder.iterdir()):
            is_link = path.is_symlink()
            if path.name.startswith(_HIDDEN):
                continue
            if is_link and output is not None and _overlap(Path(os.path.realpath(path)), output):
                wrong.append(f"{shown(path.as_posix())} is a link to {os.path.realpath(path)}")
            elif path.is_dir():
                (linked if is_link else own).append(path)
            # A broken link fails when it is read; pipes and devices have no end.
            elif path.is_file() or (is_link and not path.exists()):
                yield path.as_posix()
    if wrong:
        raise ConfigError(
            f"{output}: the output is inside the input, through links: {join_some(wrong)}. Name "
            "another output, or remove them."
        )


def _overlap(one: Path, other: Path) -> bool:
    return one == other or one in other.parents or other in one.parents


def _hidden(info: fs.FileInfo, folder: str) -> bool:
    return any(part.startswith(_HIDDEN) for part in relative(info.path, folder).split("/"))


def relative(path: str, folder: str) -> str:
    """The path inside a folder, with forward slashes."""
    return path.removeprefix(folder).strip("/")


def exists(system: fs.FileSystem, path: str) -> bool:
    """Whether there is a file."""
    return bool(system.get_file_info(path).type == fs.FileType.File)


@contextmanager
def opened(system: fs.FileSystem, path: str, compression: str | None = None) -> Iterator[Any]:
    """A stream of a file's bytes, decompressed."""
    with open_stream(system, path, compression) as stream:
        yield stream


def open_stream(system: fs.FileSystem, path: str, compression: str | None) -> Any:
    """The same stream, which the caller closes."""
    if compression == "gzip":  # Arrow's reader refuses zeros after the end, which tapes and tar add
        return _Gzip(system.open_input_stream(path, compression=None, buffer_size=BLOCK))
    return system.open_input_stream(path, compression=compression, buffer_size=BLOCK)


class _Gzip(gzip.GzipFile):
    """Closes its file, and raises only OSErrors."""

    def __init__(self, file: Any) -> None:
        super().__init__(fileobj=file, mode="rb")
        self._compressed = file

    def read(self, size: int | None = -1) -> bytes:
        try:
            return super().read(size)
        except (EOFError, zlib.error) as error:
            raise OSError(f"damaged gzip: {error}") from error

    def close(self) -> None:
        super().close()
        self._compressed.close()


def write_atomically(
    system: fs.FileSystem,
    path: str,
    write: Callable[[Any], Result],
    *,
    folder: str | None = None,
    compression: str | None = None,
    before_move: Callable[[str], object] = lambda partial: None,
) -> Result:
    """Write a temporary file, and rename it when it is complete.

    If another program removes the folder meanwhile, it is written once more.

    Args:
        system: the system with the file.
        path: the path of the file, which is replaced if it exists.
        write: called with a stream of bytes.
        folder: of of the temporary file; by default that of the file.
        compression: the compression of the bytes.
        before_move: called with the temporary path of the complete file.

    Raises:
        OSError: it cannot be written; then nothing is left.
    """

    def attempt() -> Result:
        parent = path.rpartition("/")[0]
        with _partial(system, folder or parent) as partial:
            system.create_dir(parent, recursive=True)
            with system.open_output_stream(
                partial, compression=compression, buffer_size=BLOCK
            ) as stream:
                result = write(stream)
            if local := local_path(system, partial):
                with local.open("rb+") as file:
                    os.fsync(file.fileno())
            before_move(partial)
            system.move(partial, path)
        return result

    try:
        return attempt()
    except FileNotFoundError:
        return attempt()


@contextmanager
def _partial(system: fs.FileSystem, folder: str) -> Iterator[str]:
    """Yield a temporary path of fixed length; the file is removed if the block raises."""
    partial = f"{folder}/.{uuid.uuid4().hex[:12]}"
    system.create_dir(folder, recursive=True)
    try:
        yield partial
    except BaseException:
        if exists(system, partial):
            system.delete_file(partial)
        raise


def read_small_file(system: fs.FileSystem, path: str) -> bytes | None:
    """The content of a small file; None if there is none."""
    if not exists(system, path):
        return None
    with opened(system, path) as stream:
        content: bytes = stream.read(1 << 24)
    return content


def remove_folder(system: fs.FileSystem, path: str) -> None:
    """Remove an unused folder if possible: another process may still write into it."""
    with suppress(OSError):
        if system.get_file_info(path).type == fs.FileType.Directory:
            system.delete_dir(path)
