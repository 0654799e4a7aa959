"""Layers of torch replaced for one thread while it exports, and the errors that name a layer."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tfexport.errors import ExportError


@contextlib.contextmanager
def replaced(owner: Any, name: str, form: Callable[..., Any]) -> Iterator[None]:
    """Replace a function of a class or module; other threads still get their own.

    Args:
        owner: the class or module.
        name: the name of the function.
        form: the replacement. Its first argument is the function itself.
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


def refusal(layer: str, found: str, remedy: str) -> ExportError:
    """The error for a layer that has no equal form in ONNX.

    Args:
        layer: the name of the layer in torch.
        found: the unsupported option or use.
        remedy: what to do instead.
    """
    return ExportError(f"{layer}: {found}; {remedy}")


def first_refusal(error: BaseException) -> ExportError | None:
    """The refusal among an error's causes; torch wraps what is raised while it traces."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        cause = pending.pop(0)
        if cause is None or id(cause) in seen:
            continue
        if isinstance(cause, ExportError):
            return cause
        seen.add(id(cause))
        pending += [cause.__cause__, cause.__context__]
    return None
