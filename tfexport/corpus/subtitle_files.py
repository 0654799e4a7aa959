"""Files of subtitles, one of each sound of a folder: ``talks/one.mp3`` gives ``talks/one.srt``.

They are written before the row of their sound is, so a row that is done has its files. A folder of
subtitles holds a mark, by which a later run knows that it may replace what is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from pyarrow import fs

from tfexport.corpus.filesystem import exists, file_system, public, write_atomically
from tfexport.corpus.partitions import check_apart
from tfexport.errors import (
    ConfigError,
    InputError,
    Message,
    Option,
    OutputExistsError,
    Problem,
    join_problems,
    join_some,
    shown,
)
from tfexport.runtime.speech.subtitles import FORMATS
from tfexport.runtime.speech.transcription import Transcription

KINDS = ("srt", "vtt")
_MARK = ".tfexport-subtitles"


def claim_folders(
    folders: Mapping[str, str], apart: Sequence[str], names: Sequence[str] | None, force: bool
) -> None:
    """Before any work, make the folders of subtitles, or refuse them.

    Args:
        folders: a path or URI of each format.
        apart: the input and the output, which have other folders.
        names: the sounds of a folder; None if rows name them.
        force: take a folder that holds something, and that no run has written.

    Raises:
        ConfigError: a format is unknown, a folder is not apart, or sounds are not of a folder.
        InputError: two sounds would have one file.
        OutputExistsError: a folder holds files that no run has written.
    """
    if not folders:
        return
    if unknown := [kind for kind in folders if kind not in KINDS]:
        text = f"{shown(unknown[0])} is not one of {', '.join(map(repr, KINDS))}"
        raise ConfigError(join_problems("corpus", [Problem("subtitles", text)]))
    if names is None:
        text = "subtitles are written for a folder of sounds, and this input is a file of rows"
        raise ConfigError(join_problems("corpus", [Problem(kind, text) for kind in folders]))
    _check_apart_from_each_other(names)
    for folder in folders.values():
        system, root = file_system(folder)
        for place in apart:
            other, path = file_system(place)
            if other.equals(system):
                check_apart(place, folder, path, root)
    for folder in folders.values():
        _check_free(folder, force)
    for folder in folders.values():
        system, root = file_system(folder)
        _write(system, f"{root}/{_MARK}", b"")


def _check_apart_from_each_other(names: Sequence[str]) -> None:
    first = dict[str, str]()
    for name in names:
        if (other := first.setdefault(_stem(name), name)) != name:
            raise InputError(
                f"{join_some([shown(other), shown(name)])} would have the same file of subtitles; "
                "rename one of them"
            )


def _check_free(folder: str, force: bool) -> None:
    system, root = file_system(folder)
    kind = system.get_file_info(root).type
    if kind == fs.FileType.File:
        raise OutputExistsError(f"{public(folder)}: is a file; name a folder for subtitles.")
    entered = force or kind == fs.FileType.NotFound or exists(system, f"{root}/{_MARK}")
    if not entered and system.get_file_info(fs.FileSelector(root)):
        raise OutputExistsError(
            Message(
                f"{public(folder)}: holds files that no run has written. Name another folder, or "
                "use ", Option("force", True), " to write subtitles into it.",
            )
        )  # fmt: skip


def _write(system: fs.FileSystem, path: str, content: bytes) -> None:
    write_atomically(system, path, lambda sink: sink.write(content))


def _stem(name: str) -> str:
    return str(PurePosixPath(name).with_suffix(""))


class SubtitleFiles:
    """Writes the subtitles of sounds."""

    def __init__(self, folders: Mapping[str, str]) -> None:
        """Name a folder, as a path or URI, of each format."""
        self._folders = {kind: file_system(folder) for kind, folder in folders.items()}

    def write(self, name: str, found: Transcription) -> None:
        """Write those of one sound, by its path in its folder.

        Raises:
            InputError: a file cannot be written.
        """
        for kind, (system, root) in self._folders.items():
            path = f"{root}/{_stem(name)}.{kind}"
            try:
                _write(system, path, FORMATS[kind](found).encode())
            except OSError as error:
                raise InputError(f"{public(path)}: cannot be written: {error}") from None
