"""The partitions of a corpus: the files of INPUT, each with its place in OUTPUT."""

from dataclasses import dataclass
from pathlib import PurePosixPath

from pyarrow import fs

from tfexport.corpus.formats import FORMATS
from tfexport.corpus.pieces import Source
from tfexport.corpus.places import COMPRESSIONS, file_system, files_in, public, relative
from tfexport.errors import ConfigError, InputError, Message, Option, join_problems, join_some

_NOT_READ = (".xz", ".zip", ".7z", ".lzma", ".rar", ".tar", ".tgz")


@dataclass(frozen=True)
class Partition:
    """One file, and where its translation goes.

    Attributes:
        name: its path in INPUT, for messages.
        format: its name.
        source: the file.
        target: the file of OUTPUT; its folder may not exist.
        size: of the file in bytes; 0 of a link that leads nowhere.
    """

    name: str
    format: str
    source: Source
    target: Source
    size: int


def find_partitions(input_: str, output: str, file_format: str | None = None) -> list[Partition]:
    """The partitions of a file or folder.

    Args:
        input_: a path or URI.
        output: a path or URI: a file for a file, a folder for a folder.
        file_format: "text", "jsonl" or "parquet"; by default what a file's suffix says.

    Raises:
        InputError: there is no input, or naming every file whose suffix says nothing.
        ConfigError: output and input overlap, or differ in format.
    """
    system, root = file_system(input_)
    target_system, target_root = file_system(output)
    found = system.get_file_info(root)
    if found.type == fs.FileType.NotFound:
        raise InputError(f"{public(input_)}: no such file or folder.")
    if found.type == fs.FileType.Unknown:
        raise InputError(
            f"{public(input_)}: neither a file nor a folder; copy it into a file first."
        )
    one = found.type == fs.FileType.File
    same = system.equals(target_system)
    if same:
        _check_apart(input_, output, root, target_root)
    files = [found] if one else files_in(system, root, target_root if same else None)
    if not files:
        raise InputError(
            f"{public(input_)}: holds no file; hidden ones, whose name or folder begins with '.' "
            "or '_', do not count."
        )
    _check_output(public(output), target_system.get_file_info(target_root), one)
    partitions, problems = list[Partition](), list[str]()
    for info in files:
        name = PurePosixPath(root).name if one else relative(info.path, root)
        try:
            kind, compression = _kind(name, file_format)
            packing = compression
            path = target_root if one else f"{target_root}/{name}"
            if one:
                packing = _packing_of(output, kind, file_format)
        except InputError as error:
            problems.append(str(error))
            continue
        source = Source(system, info.path, compression)
        target = Source(target_system, path, packing)
        partitions.append(Partition(name, kind, source, target, info.size or 0))
    if problems:
        packed = ", ".join(COMPRESSIONS)
        remedy = Message(
            f"Suffixes: {_suffixes()}, and with a compression {packed}. ", Option("format"),
            " says it for all files.",
        )  # fmt: skip
        raise InputError(join_problems(public(input_), _few(problems), remedy))
    return partitions


def _few(problems: list[str]) -> list[str]:
    return problems if len(problems) <= 10 else [*problems[:10], f"{len(problems) - 10} more"]


def _suffixes() -> str:
    return ", ".join(suffix or "none" for kind in FORMATS.values() for suffix in kind.suffixes)


def _kind(name: str, file_format: str | None) -> tuple[str, str | None]:
    """Format and compression of a file.

    Raises:
        InputError: its suffix says nothing.
    """
    path = PurePosixPath(name)
    last = path.suffix.lower()
    if last in _NOT_READ:
        raise InputError(f"{name}: {last} is not read")
    compression = COMPRESSIONS.get(last)
    suffix = path.with_suffix("").suffix.lower() if compression else last
    kind = file_format or next(
        (kind.name for kind in FORMATS.values() if suffix in kind.suffixes), None
    )
    if kind is None:
        raise InputError(f"{name}: {suffix} says no format")
    if kind == "parquet" and compression:
        raise InputError(f"{name}: a Parquet file is compressed inside, not as a whole")
    return kind, compression


def _packing_of(output: str, kind: str, file_format: str | None) -> str | None:
    """The compression of an output file, whose format has to be the input's."""
    written, packing = _kind(PurePosixPath(output).name, file_format)
    if written != kind:
        raise ConfigError(
            f"{public(output)}: its name says {written}, and the input is {kind}: the output has "
            "the input's format."
        )
    return packing


def _check_output(output: str, found: fs.FileInfo, one: bool) -> None:
    """Refuse a file where a folder goes, and a folder where a file goes."""
    if one and found.type == fs.FileType.Directory:
        raise ConfigError(f"{output}: is a folder, and the input is one file; name a file.")
    if not one and found.type == fs.FileType.File:
        raise ConfigError(f"{output}: is a file, and the input is a folder; name a folder.")


def _check_apart(input_: str, output: str, root: str, target_root: str) -> None:
    """Refuse an output that is the input, or lies in it, or holds it."""
    one, other = PurePosixPath(root), PurePosixPath(target_root)
    if one == other or one in other.parents or other in one.parents:
        listed = join_some([public(input_), public(output)])
        raise ConfigError(f"{listed}: input and output lie in one another; name another output.")
