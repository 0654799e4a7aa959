"""Attributes replaced for one thread, while it exports."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def replaced(owner: Any, name: str, form: Callable[..., Any]) -> Iterator[None]:
    """Replace a function of a class or module; other threads still get their own.

    Args:
        owner: the class or module.
        name: of the function.
        form: takes the function's place. Its first argument is the function itself.
    """
    own = getattr(owner, name)
    thread = threading.get_ident()

    @functools.wraps(own)
    def choose(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return own(*args, **kwargs)
        return form(own, *args, **kwargs)

    defined = name in vars(owner)
    setattr(owner, name, choose)
    try:
        yield
    finally:
        if defined:
            setattr(owner, name, own)
        else:
            delattr(owner, name)
