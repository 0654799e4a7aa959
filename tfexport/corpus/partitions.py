"""The partitions of a corpus: the files of INPUT, each with its path in OUTPUT."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from pyarrow import fs

from tfexport.corpus.filesystem import COMPRESSIONS, file_system, files_in, public, relative
from tfexport.corpus.formats import FORMATS
from tfexport.corpus.pieces import SourceFile
from tfexport.errors import ConfigError, InputError, Message, Option, join_problems, join_some

_NOT_READ = (".xz", ".zip", ".7z", ".lzma", ".rar", ".tar", ".tgz")


@dataclass(frozen=True)
class Partition:
    """One file, and the path of its translation.

    Attributes:
        name: its path in INPUT, for messages.
        format: its name.
        source: the file.
        target: the file of OUTPUT; its folder may not exist.
        size: the size of the file in bytes; 0 for a broken link.
    """

    name: str
    format: str
    source: SourceFile
    target: SourceFile
    size: int


def find_partitions(
    input_: str, output: str, file_format: str | None = None, include: Sequence[str] = ()
) -> tuple[list[Partition], list[str]]:
    """The partitions of a file or folder.

    Args:
        input_: a path or URI.
        output: a path or URI: a file for a file, a folder for a folder.
        file_format: the format of all files; by default that of a file's suffix.
        include: shell patterns of the files in a folder that are translated, by name or by path in
            the folder; by default all whose suffix is that of a format.

    Returns:
        The partitions, and the files that are passed over: those of a folder whose suffix is not
        that of a format, each with its problem.

    Raises:
        InputError: there is no input, or no file whose suffix is that of a format; or naming every
            included file, or the input file, with another suffix.
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
    one, same = found.type == fs.FileType.File, system.equals(target_system)
    if same:
        check_apart(input_, output, root, target_root)
    check_output(public(output), target_system.get_file_info(target_root), one)
    if one:
        if include:
            text = f": {public(input_)} is one file; this option only applies to folders."
            raise ConfigError(Message(Option("include"), text))
        kind, compression = kind_of(input_, file_format)
        written, packing = kind_of(output, file_format)
        if written != kind:
            raise ConfigError(
                f"{public(output)}: the output has the format {written}, but the input has {kind}. "
                "Both must have the same format."
            )
        source = SourceFile(system, root, compression)
        target = SourceFile(target_system, target_root, packing)
        name = PurePosixPath(root).name
        return [Partition(name, kind, source, target, found.size or 0)], []
    taken = {
        relative(info.path, root): info
        for info in files_in(system, root, target_root if same else None)
    }
    if include:
        taken = {name: info for name, info in taken.items() if is_included(name, include)}
    if not taken:
        like = f" whose name is like {join_some([*map(repr, include)])}" if include else ""
        raise InputError(
            f"{public(input_)}: contains no file{like}. Hidden files, whose name or folder starts "
            "with '.' or '_', do not count."
        )
    target = SourceFile(target_system, target_root)
    made, unknown, problems = _partitions(SourceFile(system, root), target, taken, file_format)
    if include or not made:
        problems += unknown
    if problems:
        raise InputError(join_problems(public(input_), _few(problems), _remedy()))
    return made, unknown


def _partitions(
    folder: SourceFile,
    output: SourceFile,
    files: Mapping[str, fs.FileInfo],
    file_format: str | None,
) -> tuple[list[Partition], list[str], list[str]]:
    """The partitions of files, the files with an unknown suffix, and all other problems."""
    made, unknown, problems = list[Partition](), list[str](), list[str]()
    for name, info in files.items():
        try:
            kind, compression = _kind(name, file_format)
        except _SuffixError as error:
            unknown.append(f"{name}: {error}")
        except InputError as error:
            problems.append(f"{name}: {error}")
        else:
            source = SourceFile(folder.system, info.path, compression)
            target = SourceFile(output.system, f"{output.path}/{name}", compression)
            made.append(Partition(name, kind, source, target, info.size or 0))
    return made, unknown, problems


def is_included(name: str, patterns: Sequence[str]) -> bool:
    """Whether a path in a folder, or its last part, is like one of the patterns."""
    last = name.rpartition("/")[2]
    return any(fnmatchcase(last, one) or fnmatchcase(name, one) for one in patterns)


def kind_of(place: str, file_format: str | None) -> tuple[str, str | None]:
    """The format and the compression of a file, by its suffixes.

    Raises:
        InputError: they are unknown.
    """
    try:
        return _kind(PurePosixPath(public(place)).name, file_format)
    except InputError as error:
        raise InputError(join_problems(public(place), [str(error)], _remedy())) from None


def _remedy() -> Message:
    packed, last = ", ".join(COMPRESSIONS), Option("include")
    return Message(
        f"Suffixes: {_suffixes()}, and with a compression {packed}. ", Option("format"),
        " sets the format of all files; ", last, " chooses files of a folder.",
    )  # fmt: skip


class _SuffixError(InputError):
    """A suffix without a known format or compression."""


def _few(problems: list[str]) -> list[str]:
    return problems if len(problems) <= 10 else [*problems[:10], f"{len(problems) - 10} more"]


def _suffixes() -> str:
    return ", ".join(suffix or "none" for kind in FORMATS.values() for suffix in kind.suffixes)


def _kind(name: str, file_format: str | None) -> tuple[str, str | None]:
    path = PurePosixPath(name)
    last = path.suffix.lower()
    if last in _NOT_READ:
        raise _SuffixError(f"{last} files are not supported")
    compression = COMPRESSIONS.get(last)
    suffix = path.with_suffix("").suffix.lower() if compression else last
    kind = file_format or next(
        (kind.name for kind in FORMATS.values() if suffix in kind.suffixes), None
    )
    if kind is None:
        raise _SuffixError(f"{suffix} is not a known suffix")
    if kind == "parquet" and compression:
        raise InputError("Parquet files are compressed internally; remove the suffix")
    return kind, compression


def check_output(output: str, found: fs.FileInfo, one: bool) -> None:
    """Refuse a file if a folder is written, and a folder if a file is written."""
    if one and found.type == fs.FileType.Directory:
        raise ConfigError(f"{output}: is a folder, and the input is one file; name a file.")
    if not one and found.type == fs.FileType.File:
        raise ConfigError(f"{output}: is a file, and the input is a folder; name a folder.")


def check_apart(input_: str, output: str, root: str, target_root: str) -> None:
    """Refuse an output that is the input, is inside it, or contains it."""
    one, other = PurePosixPath(root), PurePosixPath(target_root)
    if one == other or one in other.parents or other in one.parents:
        listed = join_some([public(input_), public(output)])
        raise ConfigError(f"{listed}: one contains the other; name another output.")
