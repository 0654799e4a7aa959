"""The memory that the bodies of all requests have together."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

FREE = 64 << 10  # bytes of each body that do not count: so long ones keep no short ones out


class BodyMemory:
    """Bytes for bodies, from their arrival to the end of their requests."""

    def __init__(self, most: int) -> None:
        self._left = most

    @contextmanager
    def held(self) -> Iterator[Callable[[int], bool]]:
        """Give a function that takes a body's bytes so far, and says whether there is room."""
        taken = 0

        def hold(size: int) -> bool:
            nonlocal taken
            more = max(size - FREE, 0) - taken
            if more > self._left:
                return False
            self._left -= more
            taken += more
            return True

        try:
            yield hold
        finally:
            self._left += taken
