"""Atomic output: a crash never leaves an incomplete file or folder at the output path.

Files and folders are written under a hidden name next to their final path, flushed to disk, and
renamed. The path is locked until then; see ``locks``.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tfexport.errors import Message, Option, OutputExistsError, TfexportError
from tfexport.locks import check_unlocked, writing

PARTIAL, ASIDE = ".partial-", ".aside-"
_NO_ROOM = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


def check_free(path: Path, force: bool) -> None:
    """Refuse an output that exists, or whose parent folder does not.

    Raises:
        OutputExistsError: it exists and ``force`` is false, or its parent folder does not exist.
    """
    check_folder(path)
    if not force and (path.exists() or path.is_symlink()):
        raise OutputExistsError(
            Message(f"{path}: already exists. Use ", Option("force", True), " to replace it.")
        )


def check_folder(path: Path) -> None:
    """Refuse an output whose parent folder does not exist.

    Raises:
        OutputExistsError: the parent folder does not exist.
    """
    if not path.parent.is_dir():
        raise OutputExistsError(
            f"{path}: the folder {path.parent} does not exist. Create it first."
        )


def check_new_file(path: str | os.PathLike[str], force: bool) -> None:
    """Before any work, refuse an output file that cannot be written.

    Raises:
        OutputExistsError: it exists and ``force`` is false, is a folder, or is being written.
    """
    path = Path(path)
    _check_replaceable(path, force)
    check_unlocked(path)


def _check_replaceable(path: Path, force: bool) -> None:
    if path.is_dir():
        raise OutputExistsError(f"{path}: is a folder; name a file.")
    check_free(path, force)


@contextlib.contextmanager
def new_file(path: str | os.PathLike[str], force: bool = False) -> Iterator[Path]:
    """Yield the path of a temporary file, which is renamed to ``path`` when the block ends.

    If the block raises, the temporary file is deleted and an existing file is unchanged.

    Raises:
        OutputExistsError: see ``check_new_file``.
    """
    path = Path(path).absolute()
    _check_replaceable(path, force)
    with writing(path):
        folder = _hidden_folder(path, PARTIAL)
        try:
            with naming(path, folder):
                yield folder / path.name
            _flush(folder)
            # Check again: a program that ignores the lock may have written the file.
            _check_replaceable(path, force)
            (folder / path.name).replace(path)
            _flush_entries(path.parent)
        finally:
            _remove(folder)


@contextlib.contextmanager
def new_folder(path: Path, before_move: Callable[[], None]) -> Iterator[Path]:
    """Yield a temporary folder, which is renamed to ``path`` when the block ends.

    An existing folder is renamed to a hidden name first, and deleted after the new one is in place.
    If the block raises, the temporary folder is deleted and the existing one is unchanged.

    Args:
        path: the absolute path of the output.
        before_move: called before the folder is renamed; may raise to cancel.

    Raises:
        OutputExistsError: another process is writing the same output.
    """
    with writing(path):
        partial = _hidden_folder(path, PARTIAL)
        try:
            partial.chmod(0o755)  # mkdtemp sets 0700, which excludes other users
            with naming(path, partial):
                yield partial
            _flush(partial)
            before_move()
            _move_into_place(partial, path)
        except BaseException:
            _remove(partial)
            raise


@contextlib.contextmanager
def naming(output: Path | str, hidden: Path | None = None) -> Iterator[None]:
    """Replace the path in OSErrors of the block by the path of the output.

    The error for a full disk contains no path, and others may contain one in the ``hidden`` folder.
    Some writers (numpy, torch) do not report a full disk, so the free space is checked for them.
    """
    try:
        yield
    except TfexportError:
        raise
    except (OSError, RuntimeError) as error:
        if not isinstance(error, OSError) or error.errno is None:
            if hidden is not None and _lacks_room(hidden, error):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(output)) from error
            raise
        full = error.filename is None and error.errno in _NO_ROOM
        if full or (hidden is not None and str(error.filename).startswith(str(hidden))):
            raise OSError(error.errno, error.strerror, str(output)) from error
        raise


def _lacks_room(folder: Path, error: Exception) -> bool:
    if "free space" in str(error):  # numpy checks the free space before it writes
        return True
    import tempfile  # noqa: PLC0415

    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 16))
            file.flush()
    except OSError as found:
        return found.errno in _NO_ROOM
    return False


def _hidden_folder(path: Path, mark: str) -> Path:
    # Imported here, as below, because importing it takes time, and who only reads needs none.
    import tempfile  # noqa: PLC0415

    try:
        return Path(tempfile.mkdtemp(prefix=f".{path.name}{mark}", dir=path.parent))
    except OSError as error:  # its path would be that of the hidden folder
        raise OSError(error.errno, error.strerror, str(path)) from error


def _remove(folder: Path) -> None:
    """Delete a folder, as far as possible."""
    import shutil  # noqa: PLC0415

    shutil.rmtree(folder, ignore_errors=True)


def _move_into_place(partial: Path, path: Path) -> None:
    if not path.exists():
        partial.rename(path)
        _flush_entries(path.parent)
        return
    aside = _hidden_folder(path, ASIDE)
    aside.rmdir()  # on Windows a folder cannot be renamed to an existing path
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
        _remove(aside)


def _flush(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
    _flush_entries(folder)


def _flush_entries(folder: Path) -> None:
    if os.name == "nt":  # Windows cannot flush a folder
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
