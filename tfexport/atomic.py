"""Output that appears whole or not at all, whatever is killed when.

Files and folders are filled under a hidden name beside their place, flushed to disk with the folder
that holds them, and renamed. While one is written its place is locked; see ``locks``.
"""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tfexport.errors import Message, Option, OutputExistsError, TfexportError
from tfexport.locks import check_unlocked, writing

PARTIAL, ASIDE = ".partial-", ".aside-"
_NO_ROOM = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


def check_free(path: Path, force: bool) -> None:
    """Refuse an output that exists, or that has no folder to be in.

    Raises:
        OutputExistsError: it exists and ``force`` is false, or its folder does not.
    """
    check_folder(path)
    if not force and (path.exists() or path.is_symlink()):
        raise OutputExistsError(
            Message(f"{path}: already exists. Use ", Option("force", True), " to replace it.")
        )


def check_folder(path: Path) -> None:
    """Refuse an output that has no folder to be in.

    Raises:
        OutputExistsError: naming the folder.
    """
    if not path.parent.is_dir():
        raise OutputExistsError(
            f"{path}: the folder {path.parent} does not exist. Create it first."
        )


def check_new_file(path: str | os.PathLike[str], force: bool) -> None:
    """Refuse an output file that stands in the way, before any work is done for it.

    Raises:
        OutputExistsError: it exists and ``force`` is false, is a folder, or is being written.
    """
    path = Path(path)
    _check_place(path, force)
    check_unlocked(path)


def _check_place(path: Path, force: bool) -> None:
    if path.is_dir():
        raise OutputExistsError(f"{path}: is a folder; name a file.")
    check_free(path, force)


@contextlib.contextmanager
def new_file(path: str | os.PathLike[str], force: bool = False) -> Iterator[Path]:
    """A file to write, which becomes the one at ``path`` when the block ends well.

    If the block raises, nothing is left behind and an old file stays as it was.

    Raises:
        OutputExistsError: see ``check_new_file``.
    """
    path = Path(path).absolute()
    _check_place(path, force)
    with writing(path):
        folder = _hidden_folder(path, PARTIAL)
        try:
            with naming(path, folder):
                yield folder / path.name
            _flush(folder)
            # Looked at again: a program that knows no locks may have written it meanwhile.
            _check_place(path, force)
            (folder / path.name).replace(path)
            _flush_entries(path.parent)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def new_folder(path: Path, before_move: Callable[[], None]) -> Iterator[Path]:
    """A folder to fill, which becomes the one at ``path`` when the block ends well.

    One that is there steps aside under a hidden name, and is deleted when the new one is in place.
    If the block raises, nothing is left behind and the old folder stays as it was.

    Args:
        path: absolute.
        before_move: raises if the folder may not be put there after all.

    Raises:
        OutputExistsError: another process is writing it.
    """
    with writing(path):
        partial = _hidden_folder(path, PARTIAL)
        try:
            partial.chmod(0o755)  # mkdtemp's 0700 would keep other users out
            with naming(path, partial):
                yield partial
            _flush(partial)
            before_move()
            _move_into_place(partial, path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


@contextlib.contextmanager
def naming(output: Path | str, hidden: Path | None = None) -> Iterator[None]:
    """Let the system's errors name the output that is written in the block.

    A full disk names no file, and a file in the ``hidden`` folder is nobody's business.
    """
    try:
        yield
    except TfexportError:
        raise
    except OSError as error:
        full = error.filename is None and error.errno in _NO_ROOM
        if full or (hidden is not None and str(error.filename).startswith(str(hidden))):
            raise OSError(error.errno, error.strerror, str(output)) from error
        raise


def _hidden_folder(path: Path, mark: str) -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix=f".{path.name}{mark}", dir=path.parent))
    except OSError as error:  # which would name the hidden one
        raise OSError(error.errno, error.strerror, str(path)) from error


def _move_into_place(partial: Path, path: Path) -> None:
    if not path.exists():
        partial.rename(path)
        _flush_entries(path.parent)
        return
    aside = _hidden_folder(path, ASIDE)
    aside.rmdir()  # only its name is wanted: a folder cannot be renamed onto one on Windows
    path.rename(aside)
    try:
        partial.rename(path)
    except BaseException:
        aside.rename(path)
        raise
    _flush_entries(path.parent)
    if aside.is_symlink():
        aside.unlink()
    else:
        shutil.rmtree(aside, ignore_errors=True)


def _flush(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
    _flush_entries(folder)


def _flush_entries(folder: Path) -> None:
    if os.name == "nt":  # Windows has no handle on a folder to flush
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
