"""A bundle: one folder that holds everything decoding needs.

``manifest.json`` lists its files, each with its size and sha256, and ends with a digest of itself.
Writing is atomic: a process that is killed leaves the complete old bundle, the complete new one, or
the old one renamed, which the next error message names. Files are checked before they are used.
"""

import contextlib
import dataclasses
import hashlib
import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tfexport import atomic
from tfexport.errors import (
    BundleError,
    ConfigError,
    Message,
    Option,
    OutputExistsError,
    join_problems,
)
from tfexport.file_access import describe_content, describe_substitute, open_file, refuse_name
from tfexport.locks import check_unlocked
from tfexport.manifest import FORMAT as FORMAT
from tfexport.manifest import FORMAT_VERSION as FORMAT_VERSION
from tfexport.manifest import MANIFEST as MANIFEST
from tfexport.manifest import REEXPORT, FileEntry, parse_manifest
from tfexport.manifest import Limits as Limits
from tfexport.manifest import Manifest as Manifest
from tfexport.manifest import SpecialIds as SpecialIds
from tfexport.manifest import TokenizerEntry as TokenizerEntry

WEIGHTS = "weights.bin"
_LARGE = 4 << 20  # bytes of a file whose sha256 takes longer than to start a thread
_MAPPED = 64 << 20  # a thread of digests waits for the interpreter, up to 5 ms, between two
_ROUNDING = 2.0  # seconds; to so much some file systems round times
MAX_MANIFEST_BYTES = 4 << 20  # one of 10,000 parameters takes 1 MB


def _sha256(path: Path) -> str:
    """Of a file that is mapped: a copy in memory would take longer than the digest."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        for start in range(0, size, _MAPPED):
            length = min(_MAPPED, size - start)
            with mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ, offset=start) as part:
                digest.update(part)
    return digest.hexdigest()


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """Read a bundle's manifest, without looking at its other files.

    Raises:
        BundleError: there is no bundle, or its manifest is invalid.
    """
    folder = Path(folder)
    path = folder / MANIFEST
    try:
        with open_file(path) as file:
            content = file.read(MAX_MANIFEST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise BundleError(_no_bundle(folder)) from None
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror}.") from None
    except ValueError as error:  # a null byte, or half of a surrogate pair
        raise BundleError(f"{str(path)!r}: not the name of a file: {error}.") from None
    if (other := describe_content(content)) is not None:
        raise BundleError(f"{path}: {other}")
    if len(content) > MAX_MANIFEST_BYTES:
        raise BundleError(f"{path}: has more than {MAX_MANIFEST_BYTES} bytes. {REEXPORT}")
    try:
        return Manifest.from_json(content.decode(), path)
    except UnicodeDecodeError:
        raise BundleError(f"{path}: not UTF-8 text. {REEXPORT}") from None


def _no_bundle(folder: Path) -> str:
    set_aside = (
        sorted(folder.parent.glob(f".{folder.name}{atomic.ASIDE}*")) if not folder.exists() else []
    )
    if set_aside:
        return (
            f"{folder}: no such bundle; an export was interrupted, and the previous bundle is "
            f"complete at {set_aside[-1]}. Rename it back to {folder}, or export again."
        )
    if not folder.exists():
        return f"{folder}: no such file or folder. Make a bundle with 'tfexport onnx'."
    if (part := find_part(folder)) is not None:
        return f"{folder}: {part.what} of the bundle {part.bundle}. Pass the bundle's folder."
    return f"{folder}: not a bundle: it contains no {MANIFEST}. Make one with 'tfexport onnx'."


class BundlePart(NamedTuple):
    """A file of a bundle.

    Attributes:
        bundle: the folder of the bundle.
        manifest: the manifest of the bundle; whether its files are sound is not checked.
        graph: the role of a graph; None for a file of another kind.
    """

    bundle: Path
    manifest: Manifest
    graph: str | None

    @property
    def what(self) -> str:
        """A phrase that names the kind of the file."""
        return "a file" if self.graph is None else f"the graph {self.graph!r}"


def find_part(path: str | os.PathLike[str]) -> BundlePart | None:
    """The bundle that a file belongs to, by its folder; None if it belongs to none."""
    path = Path(path)
    try:
        folder = path.parent if path.parent.name else path.absolute().parent
        if not path.is_file() or not is_bundle(folder):
            return None
        manifest = read_manifest(folder)
    except (BundleError, OSError, ValueError):
        return None
    if path.name not in (MANIFEST, *manifest.files):
        return None
    roles = [role for role, file in manifest.graphs.items() if file == path.name]
    return BundlePart(folder, manifest, roles[0] if roles else None)


def open_bundle(folder: str | os.PathLike[str]) -> Manifest:
    """Read a bundle's manifest and check the size and sha256 of every file.

    Raises:
        BundleError: files are missing or were changed; all are listed.
    """
    check = BundleCheck(Path(folder), {})
    check.finish()
    return check.manifest


@contextlib.contextmanager
def opening_bundle(
    folder: str | os.PathLike[str], check: "BundleCheck | None" = None
) -> Iterator[Manifest]:
    """Check a bundle as ``open_bundle`` does, its large files while the block opens them.

    Large files that ``noting`` has noted are not read. Nothing that the block makes may be used
    before its end, which raises if a file was changed, whatever the block raises.

    Args:
        folder: the bundle.
        check: of ``check_ahead`` for this bundle.

    Raises:
        BundleError: files are missing or were changed; all are listed.
    """
    check = check or BundleCheck(Path(folder), read_note(Path(folder)))
    try:
        yield check.manifest
    finally:
        check.finish()


def check_ahead(folder: str | os.PathLike[str]) -> "BundleCheck | None":
    """Start to check a bundle's large files, for a later ``opening_bundle``.

    For a program that knows the folder before it has imported what opens it. None if the bundle is
    damaged, which that call reports.
    """
    try:
        return BundleCheck(Path(folder), read_note(Path(folder)))
    except BundleError:
        return None


class BundleCheck:
    """A check of a bundle's files: the small ones at once, the large ones in a thread.

    Attributes:
        manifest: the manifest of the bundle.
    """

    def __init__(self, folder: Path, noted: dict[str, Any]) -> None:
        self.manifest, self._folder = read_manifest(folder), folder
        problems, large, unknown = list[str](), list[Path](), list[str]()
        for name, entry in self.manifest.files.items():
            # Sizes first: what is mapped must not end before its file does.
            if entry.size <= _LARGE or _size(folder / name) != entry.size:
                problems += _problem(folder, name, entry)
                continue
            large.append(folder / name)
            known = _note_of(folder / name, entry.sha256)
            if known is None or noted.get(name) != known:
                unknown.append(name)
        if problems:
            raise BundleError(join_problems(str(folder), problems + self._of(unknown), REEXPORT))
        self._stamps = FileStamps(*large)
        self._found: list[str] | BaseException = []
        # A daemon: those of an executor are joined when the interpreter ends, even after Ctrl-C.
        self._thread = threading.Thread(
            target=self._run, args=(unknown,), name="tfexport-digests", daemon=True
        )
        self._thread.start()

    def _of(self, names: Iterable[str]) -> list[str]:
        entries = self.manifest.files
        return [text for name in names for text in _problem(self._folder, name, entries[name])]

    def _run(self, names: Iterable[str]) -> None:
        try:
            self._found = self._of(names)
        except BaseException as error:
            self._found = error

    def finish(self) -> None:
        """Wait for the digests; raise what is wrong."""
        self._thread.join()
        if isinstance(self._found, BaseException):
            raise self._found
        if self._found:
            raise BundleError(join_problems(str(self._folder), self._found, REEXPORT)) from None
        self._stamps.check()


def _problem(folder: Path, name: str, entry: FileEntry) -> list[str]:
    """The problems of a file; none if it is the one of the manifest."""
    path = folder / name
    try:
        if not path.is_file():
            return [f"{name} is {describe_substitute(path) or 'missing'}"]
        if (size := path.stat().st_size) != entry.size:
            has = f"has {size} bytes instead of {entry.size}"
            other = describe_substitute(path)
            return [f"{name} is {other}" if other else f"{name} {has}"]
        if _sha256(path) != entry.sha256:
            return [f"{name} was changed: its sha256 is not the manifest's"]
    except OSError as error:
        return [f"{name} cannot be read: {error.strerror}"]
    return []


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def large_files(manifest: Manifest) -> list[str]:
    """The files of a bundle that take long to check, by name."""
    return [name for name, entry in manifest.files.items() if entry.size > _LARGE]


def note_file(folder: Path) -> Path:
    """The path of the note of ``noting``."""
    return folder.parent / f"{folder.name}.checked"


@contextlib.contextmanager
def noting(folder: Path) -> Iterator[Manifest]:
    """Check a bundle as ``open_bundle`` does, and note that its large files have their sha256.

    They are then not read again to check it. The note is next to the bundle, and written when the
    block ends without an error. It is good for files of the same inode, size and times: the time of
    the last change is the system's, and no program sets it.

    Raises:
        BundleError: see ``open_bundle``; or a large file was changed while the block ran.
        OSError: the note cannot be written.
    """
    manifest = read_manifest(folder)
    large = large_files(manifest)
    stamps = FileStamps(*(folder / name for name in large))
    before = {name: _note_of(folder / name, manifest.files[name].sha256) for name in large}
    # Systems round times. A change while files are read has to have another time than the last one.
    newest = max((times[-1] for times in before.values() if times is not None), default=0)
    time.sleep(min(max(0.0, _ROUNDING - (time.time() - newest / 1e9)), _ROUNDING))
    open_bundle(folder)
    yield manifest
    stamps.check()
    after = {name: _note_of(folder / name, manifest.files[name].sha256) for name in large}
    if after == before and None not in after.values() and newest / 1e9 < time.time():
        with atomic.new_file(note_file(folder), force=True) as file:
            file.write_text(json.dumps(after), encoding="utf-8")


def read_note(folder: Path) -> dict[str, Any]:
    """The note of ``noting``; empty if there is none, or if it cannot be read."""
    try:
        with open_file(note_file(folder)) as file:
            content = file.read(MAX_MANIFEST_BYTES + 1)
        found = json.loads(content) if len(content) <= MAX_MANIFEST_BYTES else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _note_of(path: Path, sha256: str) -> list[Any] | None:
    """The note of a file: its digest and stamps; None if the system has no time of changes."""
    found = _stamp(path)
    if found is None or sys.platform == "win32":
        return None
    return [sha256, *found, path.stat().st_ctime_ns]


class FileStamps:
    """The files of an open bundle, to see later whether they are still the same."""

    def __init__(self, *files: Path) -> None:
        self._stamps = {file: _stamp(file) for file in files}

    def check(self) -> None:
        """Refuse to continue reading a bundle that was replaced.

        Raises:
            BundleError: a file was replaced or changed.
        """
        for file, before in self._stamps.items():
            if _stamp(file) != before:
                raise BundleError(
                    f"{file}: was replaced or changed since the bundle was opened. Open it again."
                )


def _stamp(file: Path) -> tuple[int, ...] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@contextlib.contextmanager
def without_links(folder: Path, names: Iterable[str]) -> Iterator[Path]:
    """Give a folder in which none of a bundle's files is a link: its own, or a temporary copy.

    ONNX's libraries refuse weights that are symbolic or hard links, since a link may lead to any
    file. The files of a bundle are checked by their sha256, so links do no harm; ``cp -al``,
    installers and the caches of model hubs make them.

    Args:
        folder: the folder of the bundle.
        names: the names of the files that are needed; those that are missing are left out.

    Raises:
        BundleError: there is no room for the copy.
    """
    # Imported here, because importing them takes time, and few bundles need it.
    import shutil  # noqa: PLC0415
    import tempfile  # noqa: PLC0415

    files = [folder / name for name in names if (folder / name).exists()]
    if not any(file.is_symlink() or file.stat().st_nlink > 1 for file in files):
        yield folder
        return
    # On Windows a file that is mapped cannot be removed, and stays.
    with tempfile.TemporaryDirectory(prefix="tfexport-", ignore_cleanup_errors=True) as name:
        copy = Path(name)
        try:
            for file in files:
                place = copy / file.relative_to(folder)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, place)
        except OSError as error:
            raise BundleError(
                f"{folder}: its files are links, which onnxruntime does not follow, and they "
                f"cannot be copied to {copy.parent}: {error.strerror}. Free space there, name "
                "another folder in the environment variable TMPDIR, or copy the bundle once "
                "without links: cp -rL."
            ) from None
        yield copy


def is_bundle(path: str | os.PathLike[str]) -> bool:
    """Whether a folder holds the manifest of a tfexport bundle, valid or not."""
    try:
        with open_file(Path(path) / MANIFEST) as file:
            content = file.read(MAX_MANIFEST_BYTES + 1)
        parse_manifest(content.decode(), Path(path))
    except (OSError, ValueError):
        return False
    return True


def check_output(path: str | os.PathLike[str], force: bool) -> None:
    """Refuse an output path that cannot be written, before the export starts.

    Raises:
        OutputExistsError: it exists and ``force`` is false, it is not a bundle, or another process
            writes it.
        ConfigError: its name is not UTF-8.
    """
    path = Path(path)
    if (reason := refuse_name(path.absolute(), "onnxruntime")) is not None:
        raise ConfigError(f"{path}: {reason}")
    _check_replaceable(path, force)
    check_unlocked(path)


def _check_replaceable(path: Path, force: bool) -> None:
    atomic.check_free(path, force)
    exists = path.exists() or path.is_symlink()
    if exists and not is_bundle(path) and not (path.is_dir() and not any(path.iterdir())):
        replaces = Message(Option("force", True), " replaces bundles only. Choose another output.")
        raise OutputExistsError(Message(f"{path}: exists and is not a bundle; ", replaces))


@contextlib.contextmanager
def new_bundle(path: str | os.PathLike[str], force: bool = False) -> Iterator[Path]:
    """Give a temporary folder to fill; it becomes the bundle at ``path`` when the block ends.

    If the block raises, the folder is deleted and an existing bundle is unchanged.

    Raises:
        OutputExistsError: see ``check_output``.
    """
    path = Path(path).absolute()
    _check_replaceable(path, force)
    # Checked again at the end: a program that ignores the lock may have written there meanwhile.
    with atomic.new_folder(path, before_move=lambda: _check_replaceable(path, force)) as folder:
        yield folder


def write_manifest(folder: Path, manifest: Manifest) -> Manifest:
    """Write ``manifest.json``, with every other file of the folder listed in it.

    It must be the last file that is written, because a folder with a manifest is a bundle.
    """
    files = {
        path.relative_to(folder).as_posix(): FileEntry(path.stat().st_size, _sha256(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / MANIFEST
    }
    manifest = dataclasses.replace(manifest, files=files)
    with (folder / MANIFEST).open("w", encoding="utf-8", newline="\n") as file:
        file.write(manifest.to_json())
    return manifest
