"""Public names that changed: the old ones work for one release, with a warning."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def warn_renamed(old: str, new: str, stacklevel: int = 3) -> None:
    """Warn that a name is going away, where the caller's caller used it."""
    warnings.warn(
        f"{old} is now called {new}; the old name works for one more release.",
        DeprecationWarning,
        stacklevel=stacklevel,
    )


def renamed_keywords(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function take keyword arguments by their old names too.

    Args:
        names: old name to new name.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **keywords: P.kwargs) -> R:
            values: dict[str, Any] = dict(keywords)
            for old, new in names.items():
                if old not in values:
                    continue
                if new in values:
                    raise TypeError(f"{function.__name__}() got both {new!r} and {old!r}")
                warn_renamed(f"{old!r} of {function.__name__}()", repr(new))
                values[new] = values.pop(old)
            return function(*args, **values)

        return call

    return decorate
