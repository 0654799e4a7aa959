"""Locks that let only one process write an output at a time.

While an output is written, ``.OUTPUT.lock`` next to it is locked by the operating system and
contains the writer's process id. The operating system releases the lock when the process ends; a
lock file that a killed process left has no effect.
"""

import contextlib
import errno
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tfexport.errors import OutputExistsError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_FAR = 1 << 30  # the byte that is locked on Windows; locked bytes cannot be read, the id must be
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


@contextlib.contextmanager
def writing(output: Path) -> Iterator[None]:
    """Hold an output's lock for the block.

    On a file system without locks this does nothing.

    Raises:
        OutputExistsError: another process, or another thread, is writing it.
    """
    path = _lock_path(output)
    descriptor = _acquire(path, output)
    try:
        yield
    finally:
        _release(path, descriptor)


def check_unlocked(output: Path) -> None:
    """Refuse an output that is being written now, before any work is done for it.

    Raises:
        OutputExistsError: a process is writing it; the message names the process.
    """
    if os.path.lexists(_lock_path(output)):
        with writing(output):
            pass


def _lock_path(output: Path) -> Path:
    # By the resolved folder, so that different paths to an output share one lock.
    output = Path(os.path.realpath(output.parent), output.name)
    return output.with_name(f".{output.name}.lock")


def _acquire(path: Path, output: Path) -> int:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(output)) from error
        try:
            if not _try_lock(descriptor):
                raise OutputExistsError(
                    f"{output}: is being written by {_owner(descriptor)}. Wait until it has "
                    "ended, or name another output."
                )
            # The previous owner may have removed the file between our opening and our locking it.
            if _is_at(descriptor, path):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()}\n".encode())
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _release(path: Path, descriptor: int) -> None:
    if sys.platform == "win32":  # where an open file cannot be removed
        _unlock(descriptor)
        os.close(descriptor)
        with contextlib.suppress(OSError):
            path.unlink()
        return
    if _is_at(descriptor, path):
        with contextlib.suppress(OSError):
            path.unlink()
    # Unlock explicitly: after only closing, a child that was forked meanwhile would keep the lock.
    _unlock(descriptor)
    os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _owner(descriptor: int) -> str:
    """The process that holds the lock, for messages; waits until it has written its id."""
    for _ in range(20):
        os.lseek(descriptor, 0, os.SEEK_SET)
        text = os.read(descriptor, 32).decode("ascii", "replace").strip()
        if text.isascii() and text.isdigit():
            return "this process" if int(text) == os.getpid() else f"process {text}"
        time.sleep(0.01)
    return "another process"


if sys.platform == "win32":

    def _try_lock(descriptor: int) -> bool:
        os.lseek(descriptor, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)
        return True

    def _unlock(descriptor: int) -> None:
        os.lseek(descriptor, _FAR, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        return True

    def _unlock(descriptor: int) -> None:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
