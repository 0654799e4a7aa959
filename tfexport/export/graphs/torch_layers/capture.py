"""One way of capturing a module, in which no axis becomes a constant.

``torch.onnx.export`` captures a module by tracing it with tensors that have no values. Where the
code needs the size of the example for an axis that is declared as dynamic, torch says so, and the
exporter tries again with that axis as a constant; where tracing fails it tries to compile the code
instead, which bypasses the forms of this package. Here neither is tried.
"""

import contextlib
import re
import traceback
from collections.abc import Iterator
from typing import Any

import torch
from torch.export import dynamic_shapes
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.proxy import TracerBase
from torch.onnx._internal.exporter import _capture_strategies

from tfexport.errors import ExportError
from tfexport.export.graphs.torch_layers.replaced import replaced
from tfexport.export.named_code import is_users, library_of

_VIOLATED = re.compile(r"Constraints violated \((.*?)\)!")
# Among the suggested fixes, or for an axis without a name.
_CONSTANT = re.compile(r"^\s*\w+ = \d+\s*$|specialized it to be a constant", re.MULTILINE)

_OF_SIZES = (
    "compute sizes with x.size(), and replace Python loops over an axis by operations on whole "
    "tensors"
)
_OF_NUMPY = (
    "numpy takes the numbers of the example: use torch's functions (torch.ones, torch.triu, "
    "torch.arange), which keep sizes"
)


class Baked:
    """Places in the user's code where the size of an axis became a constant."""

    def __init__(self) -> None:
        self._places: list[str] = []

    def record(self, own: Any, env: ShapeEnv, symbol: Any, target: Any, message: str) -> None:
        """In place of ``ShapeEnv._set_replacement``, which is ``own``."""
        if getattr(target, "is_number", False) and (place := _users_line()) is not None:
            self._places.append(place)
        own(env, symbol, target, message)

    def error(self, error: BaseException) -> ExportError | None:
        """The error for axes that became constants; None if it is another."""
        found = _VIOLATED.search(str(error))
        if found is None or _CONSTANT.search(str(error)) is None:
            return None
        places = ", ".join(dict.fromkeys(self._places))
        where = f"; at {places}" if places else ""
        remedy = _OF_NUMPY if "(through numpy)" in places else _OF_SIZES
        return ExportError(
            f"the code works for the example's size only, in {found[1]}{where}; {remedy}"
        )


def _users_line() -> str | None:
    """The innermost line of the user's code, and the library that it calls."""
    library = None
    for frame in reversed(traceback.extract_stack()):
        if is_users(frame.filename):
            through = "" if library is None else f" (through {library})"
            return f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}{through}"
        library = library or library_of(frame.filename)
    return None


def _own_frames(own: Any, tracer: Any, stack: Any) -> Any:
    """In place of the function that chooses the lines which torch records for an operator.

    It takes those of functions called ``forward`` only.
    """
    frames = [frame for frame in stack if is_users(frame.filename) or library_of(frame.filename)]
    return traceback.StackSummary.from_list(frames) if frames else own(tracer, stack)


def _refine(own: Any, message: str, *args: Any, **kwargs: Any) -> Any:
    """In place of torch's function that changes dynamic axes as its error suggests.

    A smallest or largest size, such as that of a kernel, is accepted; a constant is not.
    """
    if _CONSTANT.search(message):
        raise ValueError("an axis that is declared as dynamic stays dynamic")
    return own(message, *args, **kwargs)


@contextlib.contextmanager
def one_capture(baked: Baked) -> Iterator[None]:
    """Capture by tracing only, and with all axes dynamic, inside the block.

    Args:
        baked: records where the size of an axis becomes a constant.
    """
    refine = "refine_dynamic_shapes_from_suggested_fixes"
    every = _capture_strategies.CAPTURE_STRATEGIES
    with (
        replaced(dynamic_shapes, refine, _refine),
        replaced(ShapeEnv, "_set_replacement", baked.record),
        replaced(TracerBase, "_filter_traceback_frames", _own_frames),
    ):
        _capture_strategies.CAPTURE_STRATEGIES = every[:1]
        try:
            yield
        finally:
            _capture_strategies.CAPTURE_STRATEGIES = every
