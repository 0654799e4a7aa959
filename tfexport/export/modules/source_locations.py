"""Where in a user's file an error comes from, and torch's reasons in one readable line."""

import inspect
import linecache
import re
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from tfexport.errors import ExportError
from tfexport.export.named_code import Line, LinesError, is_named, is_users, library_of

_FRAME = re.compile(r'File "([^"]+)", line (\d+)(?:, in (<?\w+>?))?')
_LONGEST = 400  # characters of a reason

# Parts of torch's messages, and what to do about them.
_FIXED = (
    "the code fixes a size that must vary; take sizes from the tensors (x.size(1), x.unflatten) "
    "instead of numbers, and use torch's own layers instead of loops over an axis"
)
_BY_VALUES = "data-dependent expression"
_NO_BRANCH = (
    "a graph cannot branch on values, or take sizes from them; use torch.where, or tensors of "
    "fixed size with a mask"
)
_NUMPY = "a graph has no values for numpy to compute with; use torch's functions"
_HINTS = (
    (_BY_VALUES, _NO_BRANCH),
    ("Constraints violated", _FIXED),
    ("specialized", _FIXED),
    ("static shape", _FIXED),
    ("nested_tensor", "ONNX has no rows of unequal length; pad them, with a mask"),
    ("numpy() is not supported", _NUMPY),
    ("numpy.object_", _NUMPY),
    ("DataDependentOutputException", _NO_BRANCH),
    (
        "must be bool, not SymBool",
        "a comparison of sizes is no truth value here; give the mask as a tensor, or omit what "
        "holds for every size",
    ),
    ("No ONNX function found", "write it with operators that ONNX has"),
)


def where(
    model: nn.Module,
    method: str,
    error: BaseException | None = None,
    call: Callable[..., Any] | None = None,
) -> str:
    """The method and the line of the user's file: ``Captioner.step (captioner.py, line 12)``.

    A library that the line calls, and in which the error arose, is named after it.

    Args:
        model: the user's.
        method: the method that was called.
        error: the error, whose line is named; None to name the line of the method.
        call: what calls the module in place of the method, whose line is named without others.
    """
    name = f"{type(model).__name__}.{method}"
    location = None if error is None else _raised_at(error)
    location = location or _defined_at(call) or _defined_at(getattr(type(model), method, None))
    return name if location is None else f"{name} ({location})"


def export_failure(model: nn.Module, methods: Sequence[str], error: BaseException) -> str:
    """Why some methods could not be exported: method, line and reason, in one line."""
    lines = [location for location in _lines_of(error) if is_users(location[0])]
    called = [name for _, _, name in lines if name in methods]
    inside = [
        name for name in methods if lines and _holds(getattr(type(model), name, None), lines[-1])
    ]
    name = (called or inside or list(methods[:1]))[-1]
    code, reason = code_of(error), one_line(error)
    shown = f", {code}" if code and code not in reason else ""
    return f"{where(model, name, error)}{shown}: {reason}."


def code_of(error: BaseException) -> str:
    """The innermost line of the user's code in an error; empty if it is not known."""
    own = [location for location in _lines_of(error) if is_users(location[0])]
    return linecache.getline(*own[-1][:2]).strip().rstrip(":") if own else ""


def _holds(method: Any, location: Line) -> bool:
    """Whether a line of code is one of a method's own."""
    try:
        lines, first = inspect.getsourcelines(method)
    except (OSError, TypeError):
        return False
    file, line, _ = location
    return inspect.getsourcefile(method) == file and first <= line < first + len(lines)


def _lines_of(error: BaseException) -> list[Line]:
    """The user's lines, and other libraries', in an error and its causes: file, line, function."""
    lines: list[Line] = []
    cause: BaseException | None = error
    while cause is not None:
        frames = traceback.extract_tb(cause.__traceback__)
        lines += [(frame.filename, frame.lineno or 0, frame.name) for frame in frames]
        lines += [(file, int(line), name) for file, line, name in _FRAME.findall(str(cause))]
        lines += cause.lines if isinstance(cause, LinesError) else ()
        cause = cause.__cause__
    return [line for line in lines if is_named(line[0])]


def one_line(error: BaseException) -> str:
    """An error's own reason, in one line, with what to do if it is known."""
    text = str(error)
    # torch.onnx gives the reason after this title.
    _, _, summary = text.partition("## Exception summary")
    lines = [line.strip() for line in (summary or text).splitlines()]
    reason = next((line for line in lines if line), "")
    reason = re.sub(r"[^\s;,]*[\\/]([^\s\\/]+\.py)", r"\1", reason)  # without folders
    if isinstance(error, ExportError):  # complete: what to do comes last
        return reason.rstrip(".")
    if len(reason) > _LONGEST:
        reason = reason[:_LONGEST] + "…"
    hint = next((advice for part, advice in _HINTS if part in text), None)
    if hint is not None and _BY_VALUES in text:  # torch names the value by its own symbol
        return f"a {_BY_VALUES.replace('expression', 'branch or size')}: {hint}"
    named = f"{type(error).__name__}: {reason}".rstrip(": .")
    return named if hint is None else f"{named}: {hint}"


def _raised_at(error: BaseException) -> str | None:
    """The innermost line of the user's code, from the traceback or from torch's message."""
    lines = _lines_of(error)
    own = [number for number, (file, _, _) in enumerate(lines) if is_users(file)]
    if not own:
        return None
    file, line, _ = lines[own[-1]]
    inside = lines[own[-1] + 1 :]
    library = f", through {library_of(inside[-1][0])}" if inside else ""
    return f"{Path(file).name}, line {line}{library}"


def _defined_at(method: Callable[..., Any] | None) -> str | None:
    code = getattr(inspect.unwrap(method), "__code__", None) if callable(method) else None
    if code is None or not is_named(code.co_filename):
        return None
    return f"{Path(code.co_filename).name}, line {code.co_firstlineno}"
