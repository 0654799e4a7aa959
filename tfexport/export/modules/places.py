"""Where in a user's file an error comes from, and torch's reasons in one readable line."""

import inspect
import re
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

_TORCH = re.compile(r"[\\/](site-packages|dist-packages|lib[\\/]python[\d.]+)[\\/]")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\w+)')
_LONGEST = 300  # characters of a reason

# Parts of torch's messages, and what to do about them.
_FIXED = (
    "the code fixes a size that has to vary; take sizes from the tensors (x.size(1), x.unflatten) "
    "instead of numbers, and leave loops over an axis to torch's own layers"
)
_HINTS = (
    (
        "data-dependent expression",
        "a graph cannot branch on values, or take sizes from them; use torch.where, or tensors of "
        "fixed size with a mask",
    ),
    ("Constraints violated", _FIXED),
    ("specialized", _FIXED),
    ("static shape", _FIXED),
    ("No ONNX function found", "write it with operators that ONNX has"),
)


def where(model: nn.Module, method: str, error: BaseException | None = None) -> str:
    """The method and the line of the user's file: ``Captioner.step (captioner.py, line 12)``.

    Args:
        model: the user's.
        method: that was called.
        error: for the line at which it was raised; without it, the line of the method.
    """
    name = f"{type(model).__name__}.{method}"
    place = None if error is None else _raised_at(error)
    place = place or _defined_at(getattr(type(model), method, None))
    return name if place is None else f"{name} ({place[0]}, line {place[1]})"


def export_failure(model: nn.Module, methods: Sequence[str], error: BaseException) -> str:
    """Why torch could not export some methods: method, line and reason, in one line."""
    told = [name for _, _, name in _FRAME.findall(str(error)) if name in methods]
    return f"{where(model, (told or methods)[-1], error)}: {one_line(error)}."


def one_line(error: BaseException) -> str:
    """An error's own reason, in one line, with what to do if it is known."""
    text = str(error)
    # torch.onnx tells the reason after this title.
    _, _, summary = text.partition("## Exception summary")
    lines = [line.strip() for line in (summary or text).splitlines()]
    reason = next((line for line in lines if line), "")
    if "Constraints violated" in text:
        details = [line.strip(" -") for line in text.splitlines() if line.strip().startswith("- ")]
        reason = " ".join([reason.partition("!")[0] + ":", *details[:2]])
    if len(reason) > _LONGEST:
        reason = reason[:_LONGEST] + "…"
    hint = next((advice for part, advice in _HINTS if part in text), None)
    named = f"{type(error).__name__}: {reason}".rstrip(": .")
    return named if hint is None else f"{named}: {hint}"


def _raised_at(error: BaseException) -> tuple[str, int] | None:
    """The innermost line of the user's code, from the traceback or from torch's message."""
    frames = [(f.filename, f.lineno or 0) for f in traceback.extract_tb(error.__traceback__)]
    told = [(name, int(line)) for name, line, _ in _FRAME.findall(str(error))]
    for name, line in (*reversed(told), *reversed(frames)):
        if _is_users(name):
            return Path(name).name, line
    return None


def _is_users(name: str) -> bool:
    """Whether a file is neither torch's, Python's nor this package's."""
    own = str(Path(__file__).parents[2])
    return not (name.startswith(("<frozen", own)) or _TORCH.search(name))


def _defined_at(method: Callable[..., Any] | None) -> tuple[str, int] | None:
    code = getattr(inspect.unwrap(method), "__code__", None) if callable(method) else None
    return None if code is None else (Path(code.co_filename).name, code.co_firstlineno)
