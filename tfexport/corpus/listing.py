"""A folder of sounds or pictures as a list of their names, which is then an ordinary partition.

The list is a file next to the output while a run lasts: all machines see it, and no process keeps
it in memory.
"""

import csv
import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pyarrow import fs

from tfexport.corpus.filesystem import (
    file_system,
    files_in,
    public,
    relative,
    write_atomically,
)
from tfexport.corpus.partitions import (
    Partition,
    check_apart,
    check_output,
    is_included,
    kind_of,
)
from tfexport.corpus.pieces import SourceFile
from tfexport.errors import ConfigError, InputError, join_problems, join_some, shown
from tfexport.preprocessing import AUDIO, IMAGE

# Suffixes of files that soundfile and Pillow read; others are named by patterns.
SUFFIXES = {
    AUDIO: (
        ".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".aifc", ".au", ".snd",
        ".caf", ".w64", ".rf64",
    ),
    IMAGE: (
        ".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".gif", ".bmp", ".ppm", ".pgm", ".pbm",
        ".pnm", ".avif", ".jp2",
    ),
}  # fmt: skip
FORMATS = ("jsonl", "csv", "tsv")  # of the output: lines with a column of names


@dataclass(frozen=True)
class Listing:
    """The files of a folder, by name.

    Attributes:
        partition: the list.
        passed_over: the other files, each with its problem.
        digest: of names, sizes and times of change of all files.
        names: of the files, in their order.
    """

    partition: Partition
    passed_over: list[str]
    digest: str
    names: Sequence[str]
    _lines: bytes

    def write(self) -> None:
        """Write the list.

        Raises:
            OSError: it cannot be written.
        """
        source = self.partition.source
        write_atomically(source.system, source.path, lambda sink: sink.write(self._lines))

    def remove(self) -> None:
        """Remove the list, if it is there."""
        source = self.partition.source
        with suppress(OSError):
            source.system.delete_file(source.path)


def is_folder(place: str) -> bool:
    """Whether a path or URI is one of a folder."""
    system, path = file_system(place)
    return bool(system.get_file_info(path).type == fs.FileType.Directory)


def folder_of(place: str) -> str:
    """The folder that relative names in an input are of: a folder itself, or that of a file."""
    if "://" in place:
        path, mark, query = place.partition("?")
        return place if is_folder(place) else path.rpartition("/")[0] + mark + query
    path_of = Path(place).absolute()
    return str(path_of if is_folder(place) else path_of.parent)


def list_folder(
    folder: str, output: str, media: str, column: str, include: Sequence[str] = ()
) -> Listing:
    """List the sounds or pictures of a folder, in the order of their names.

    Args:
        folder: a path or URI.
        output: a path or URI of the file to write, whose suffix is that of its format.
        media: "audio" or "image".
        column: the column of names.
        include: shell patterns of the files, by name or by path in the folder; by default all whose
            suffix is that of a file of sound, or of a picture.

    Raises:
        ConfigError: the output is of another format, or one contains the other.
        InputError: there is no such file, or a name cannot be written.
    """
    system, root = file_system(folder)
    target_system, target_root = file_system(output)
    same = system.equals(target_system)
    if same:
        check_apart(folder, output, root, target_root)
    check_output(public(output), target_system.get_file_info(target_root), one=True)
    kind, packing = _kind(output)
    names, passed_over, digest = list[str](), list[str](), hashlib.sha256()
    for info in files_in(system, root, target_root if same else None):
        name = relative(info.path, root)
        if not (is_included(name, include) if include else _is_of(name, media)):
            if not include:
                suffix = PurePosixPath(name).suffix
                passed_over.append(f"{name}: {suffix or 'no suffix'} is not that of {_NOUN[media]}")
            continue
        names.append(name)
        digest.update(json.dumps([name, info.size, info.mtime_ns]).encode())
    if not names:
        like = f"like {join_some([*map(repr, include)])}" if include else ", ".join(SUFFIXES[media])
        raise InputError(
            f"{public(folder)}: contains no file of {_NOUN[media]} ({like}). Hidden files, whose "
            "name or folder starts with '.' or '_', do not count."
        )
    lines = b"".join(_lines(names, kind, column, public(folder)))
    where, _, last = target_root.rpartition("/")
    source = SourceFile(target_system, f"{where}/.{last[:100]}.files")
    target = SourceFile(target_system, target_root, packing)
    partition = Partition(last, kind, source, target, len(lines))
    return Listing(partition, passed_over, digest.hexdigest(), names, lines)


_NOUN = {AUDIO: "sound", IMAGE: "a picture"}


def _is_of(name: str, media: str) -> bool:
    return PurePosixPath(name).suffix.lower() in SUFFIXES[media]


def _kind(output: str) -> tuple[str, str | None]:
    try:
        kind, packing = kind_of(output, None)
    except InputError:
        kind, packing = "", None
    if kind not in FORMATS:
        raise ConfigError(
            f"{public(output)}: the output of a folder of files is a file of lines with their "
            f"names; its suffix has to be {', '.join('.' + name for name in FORMATS)}, or one of "
            "these with a compression."
        )
    return kind, packing


def _lines(names: Sequence[str], kind: str, column: str, folder: str) -> Iterator[bytes]:
    """The lines of a list; a header comes first, except in JSON lines."""
    if kind == "jsonl":
        for name in names:
            yield f"{json.dumps({column: name}, ensure_ascii=False)}\n".encode()
        return
    if kind == "tsv":
        if wrong := [shown(name) for name in names if set(name) & {"\t", "\n", "\r"}]:
            text = f"names with tabs or line breaks: {join_some(wrong, 3)}"
            raise InputError(join_problems(folder, [text], "Write .jsonl, which can hold them."))
        yield from (f"{name}\n".encode() for name in (column, *names))
        return
    sink = io.StringIO()
    writer: Any = csv.writer(sink, lineterminator="\n")
    for name in (column, *names):
        writer.writerow([name])
        yield sink.getvalue().encode()
        sink.seek(0)
        sink.truncate()
