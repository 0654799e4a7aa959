"""Conditions on values that cannot change a result: of ``assert``, and of an ``if`` that raises.

A graph has no branches on values, and these need none: it computes what the code computes when it
does not raise. While exporting such a condition is taken as met; the user's own code still checks
it whenever it is run for comparison.
"""

import ast
import functools
import linecache
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from tfexport.export.named_code import is_users, library_of

_TOLD = {"print", "warn", "warning", "info", "debug"}  # calls that only tell something


def conditions() -> Mapping[Any, Callable[..., Any]]:
    """The form of each function that makes a truth value of tensors."""
    return dict.fromkeys(
        (Tensor.__bool__, torch.equal, Tensor.equal, torch.allclose, Tensor.allclose), of_tensors
    )


def of_tensors(own: Any, *args: Any, **kwargs: Any) -> bool:
    """In place of a function that makes a truth value, which is ``own``."""
    found = _without_effect()
    return bool(own(*args, **kwargs)) if found is None else found


def of_number(own: Any, value: Any) -> bool:
    """In place of the truth value of a comparison of numbers, such as those of ``item()``."""
    try:
        return bool(own(value))
    except GuardOnDataDependentSymNode:
        found = _without_effect()
        if found is None:
            raise
        return found


def _without_effect() -> bool | None:
    """The value with which the statement that runs does nothing; None if it may do something."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if is_users(name) or library_of(name) is not None:
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
        elif isinstance(node, ast.If) and all(map(_only_tells, node.body)):
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


def _only_tells(statement: ast.stmt) -> bool:
    """Whether a statement raises, warns or prints."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        name = function.attr if isinstance(function, ast.Attribute) else ""
        return (function.id if isinstance(function, ast.Name) else name) in _TOLD
    return isinstance(statement, ast.Raise)
