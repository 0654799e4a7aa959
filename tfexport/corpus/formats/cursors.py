"""Readers that stay open between pieces.

A worker is given pieces of a file in their order. Where one can be reached only by reading all that
lies before it, a reader that was opened anew for each would take the square of the time.
"""

from typing import Any, Protocol

from tfexport.corpus.pieces import Source

Key = tuple[Any, ...]


class Cursor(Protocol):
    """A reader that only goes forward.

    Attributes:
        position: that it has come to.
    """

    position: int

    def close(self) -> None:
        """Close the file."""
        ...


class Cursors:
    """Holds the reader of the last piece that was read."""

    def __init__(self) -> None:
        self._held: dict[Key, Any] = {}

    def take(self, key: Key, start: int) -> Any:
        """The reader, which the caller then owns; None if it is of another file, or beyond."""
        found = self._held.pop(key, None)
        if found is not None and found.position > start:
            found.close()
            return None
        return found

    def keep(self, key: Key, cursor: Cursor) -> None:
        """Hold a reader for the next piece, instead of any other."""
        while self._held:
            self._held.popitem()[1].close()
        self._held[key] = cursor


def key_of(source: Source, *more: int) -> Key:
    """Names a file by its content's size and time: a file that was changed is read anew."""
    info = source.system.get_file_info(source.path)
    return source.system.type_name, source.path, source.compression, info.size, info.mtime_ns, *more
