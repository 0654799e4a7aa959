"""Types in signatures: ``Self`` and ``Unpack``, paths, futures, and the progress callback."""

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if sys.version_info >= (3, 11):
    from typing import Self as Self
    from typing import Unpack as Unpack
else:
    from typing_extensions import Self as Self
    from typing_extensions import Unpack as Unpack


if TYPE_CHECKING:
    from concurrent.futures import Future as Future


def __getattr__(name: str) -> Any:
    if name != "Future":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from concurrent.futures import Future  # noqa: PLC0415  (slow to import, and seldom needed)

    return Future


# The type of a path in signatures: text, or an object of ``pathlib``.


PathLike: TypeAlias = str | os.PathLike[str]


# Called with the name of the current step, how many parts of it are done, and how many it has.
Progress: TypeAlias = Callable[[str, int, int], None]


def silent(step: str, done: int, total: int) -> None:
    """The default callback, which shows nothing."""
