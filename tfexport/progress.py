"""The progress callback that long work reports to: the same for exporting and decoding."""

from collections.abc import Callable
from typing import TypeAlias

# Called with the name of the current step, how many parts of it are done, and how many it has.
Progress: TypeAlias = Callable[[str, int, int], None]


def silent(step: str, done: int, total: int) -> None:
    """Show nothing: the callback of callers that gave none."""
