"""A user's code while torch traces it: its lines, ``len`` of tensors, conditions without effect.

Lines, of operators and of sizes that became constants, are found by functions that are private to
torch. Without these, messages have fewer details.
"""

import ast
import builtins
import contextlib
import functools
import linecache
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from tfexport.errors import ExportError, join_some
from tfexport.export import torch_names
from tfexport.export.graphs.torch_layers.replaced import replaced
from tfexport.export.named_code import (
    Line,
    LinesError,
    is_exporting,
    is_named,
    is_users,
    library_of,
)

_VIOLATED = re.compile(r"Constraints violated \((.*?)\)!")
# Among the suggested fixes, or for an axis without a name.
_CONSTANT = re.compile(r"^\s*\w+ = \d+\s*$|specialized it to be a constant", re.MULTILINE)

_MOST_LINES, _LONGEST = 4, 160  # lines in a message, and characters of one
_OF_SIZES = "compute sizes with x.size() in place of numbers"
_REMEDIES = (
    (
        r"\[\s*list\(range\(",
        "torch.arange(length).expand(batch, length) takes the place of lists of numbers",
    ),
    (
        r"\bfor \w+ in (range|enumerate)\(",
        "operations on complete tensors, such as nn.GRU, nn.LSTM and torch.cumsum, take the place "
        "of a Python loop over an axis",
    ),
    (r"\brange\(", "torch.arange(x.size(1)) keeps sizes, range does not"),
    (
        r"\(through \w+\)|\b(np|numpy)\.\w+\(",
        "the library takes the numbers of the example: use torch's functions (torch.ones, "
        "torch.triu, torch.einsum), which keep sizes",
    ),
    (r"\b[A-Z]\w*Tensor\(", "torch.tensor([x.size(1)]) keeps sizes, torch.LongTensor does not"),
    (r"\bint\(", "int(x.size(1)) takes the value of the example: omit int"),
)


class Baked:
    """Lines of the user's code where the size of an axis became a constant."""

    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}  # by what messages say

    def record(self, own: Any, env: Any, symbol: Any, target: Any, message: str) -> None:
        """Replaces ``ShapeEnv._set_replacement``; ``own`` is the original."""
        if getattr(target, "is_number", False):
            self._lines |= _users_line()
        own(env, symbol, target, message)

    def error(self, error: BaseException) -> ExportError | None:
        """The error for axes that became constants; None if it is another."""
        found = _VIOLATED.search(str(error))
        if found is None or _CONSTANT.search(str(error)) is None:
            return None
        where = f"; at {join_some([*self._lines], _MOST_LINES)}" if self._lines else ""
        known = dict.fromkeys(filter(None, map(_remedy, self._lines)))
        remedies = "; ".join(known) or _OF_SIZES
        return LinesError(
            f"the code works for the example's size only, in {found[1]}{where}; {remedies}",
            [*self._lines.values()],
        )


def _remedy(line: str) -> str | None:
    """Advice on a line that makes a constant of a size; None if its form is not known."""
    return next((remedy for form, remedy in _REMEDIES if re.search(form, line)), None)


def _users_line() -> dict[str, Line]:
    """The innermost line of the user's code by its text, with the library that it calls."""
    library = None
    for frame in reversed(_inside(traceback.extract_stack())):
        if is_users(frame.filename):
            through = "" if library is None else f" (through {library})"
            line, number = (frame.line or "").rstrip(":")[:_LONGEST], frame.lineno or 0
            said = f"{Path(frame.filename).name}:{number} in {frame.name}: {line}{through}"
            return {said: (frame.filename, number, frame.name)}
        library = library or library_of(frame.filename)
    return {}


def _inside(frames: Sequence[traceback.FrameSummary]) -> Sequence[traceback.FrameSummary]:
    """The frames that this package and torch call, without those that call the export."""
    first = (place for place, frame in enumerate(frames) if is_exporting(frame.filename))
    return frames[next(first, 0) :]


def _forward_frames(own: Any, tracer: Any, stack: Any) -> Any:
    """Replaces torch's choice of an operator's lines: those in functions called ``forward``."""
    frames = [frame for frame in _inside(stack) if is_named(frame.filename)]
    return traceback.StackSummary.from_list(frames) if frames else own(tracer, stack)


@contextlib.contextmanager
def recorded_lines(baked: Baked) -> Iterator[None]:
    """Record lines of the user's code inside the block.

    Args:
        baked: where the size of an axis becomes a constant.
    """
    with (
        replaced_if_there(torch_names.SET_SIZE, baked.record),
        replaced_if_there(torch_names.CHOOSE_LINES, _forward_frames),
    ):
        yield


@contextlib.contextmanager
def dynamic_len() -> Iterator[None]:
    """Let ``len(x)`` be ``x.size(0)``, which torch traces; Python's own makes a number of it."""
    own = builtins.len

    def length(value: Any, /) -> Any:
        return value.size(0) if isinstance(value, Tensor) and value.dim() else own(value)

    builtins.len = length
    try:
        yield
    finally:
        builtins.len = own


def replaced_if_there(
    name: str, form: Callable[..., Any]
) -> contextlib.AbstractContextManager[None]:
    """Like ``replaced``, for one of ``torch_names``; does nothing if torch has no such function.

    Args:
        name: the name of the function.
        form: the replacement.
    """
    place = torch_names.owner_of(name)
    return contextlib.nullcontext() if place is None else replaced(*place, form)


# Conditions of an ``assert``, and of an ``if`` that raises, cannot change a result. A graph has no
# branches on values and needs none here: it computes what the code computes when it does not raise.
# The export assumes that nothing raises; the user's code still checks it when it is run
# for comparison.


_PRINTS = {"print", "warn", "warning", "info", "debug"}  # calls that only print or log


def conditions() -> Mapping[Any, Callable[..., Any]]:
    """The form of each function that makes a truth value of tensors."""
    return dict.fromkeys(
        (Tensor.__bool__, torch.equal, Tensor.equal, torch.allclose, Tensor.allclose), of_tensors
    )


def of_tensors(own: Any, *args: Any, **kwargs: Any) -> bool:
    """Replaces a function that makes a truth value; ``own`` is the original."""
    found = _without_effect()
    return bool(own(*args, **kwargs)) if found is None else found


def of_number(own: Any, value: Any) -> bool:
    """Replaces the truth value of a comparison of numbers, such as those of ``item()``."""
    unknown = torch_names.find(torch_names.UNKNOWN_VALUE) or ()
    try:
        return bool(own(value))
    except unknown:
        found = _without_effect()
        if found is None:
            raise
        return found


def _without_effect() -> bool | None:
    """The value with which the statement that runs does nothing; None if it may do something."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if is_named(name):
            return _harmless(name).get(frame.f_lineno)
        frame = frame.f_back
    return None


@functools.cache
def _harmless(filename: str) -> Mapping[int, bool]:
    """Lines of conditions without an effect, each with the value that keeps it so."""
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return {}
    found: dict[int, bool] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            value = True
        elif isinstance(node, ast.If) and all(map(_only_prints, node.body)):
            value = False
        else:
            continue
        test = node.test
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, value = test.operand, not value
        if not any(isinstance(part, ast.Not) for part in ast.walk(test)):
            lines = range(node.test.lineno, (node.test.end_lineno or node.test.lineno) + 1)
            found |= dict.fromkeys(lines, value)
    return found


def _only_prints(statement: ast.stmt) -> bool:
    """Whether a statement raises, warns or prints."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        name = function.attr if isinstance(function, ast.Attribute) else ""
        return (function.id if isinstance(function, ast.Name) else name) in _PRINTS
    return isinstance(statement, ast.Raise)
