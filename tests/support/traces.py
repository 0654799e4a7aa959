"""What torch made of one module, kept for all tests of a run.

Tracing takes seconds a module, and most tests trace one of a few models again, to look at what is
done with the graphs. Of equal modules it gives equal graphs, so one trace is enough for all of
them, whichever worker asks for it.
"""

import hashlib
import io
import pickle
from typing import Any

import torch
from torch import nn

from tfexport.export.ir_tools.initializers import content_key


class _Contents(pickle.Pickler):
    """Classes and values of a module; tensors by their contents, and by which are one tensor."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.fast = True  # equal strings are written alike, be they one object or two
        self._places: dict[int, int] = {}

    def persistent_id(self, value: Any) -> str | None:
        if not isinstance(value, torch.Tensor):
            return None
        place = self._places.setdefault(value.data_ptr(), len(self._places))
        return f"{place} {content_key(value.detach().numpy())} {value.stride()}"


def trace_key(module: nn.Module, *options: Any) -> str:
    """Equal for modules of the same classes with the same values, asked for in the same way."""
    written = io.BytesIO()
    _Contents(written).dump(module)
    return hashlib.sha256(written.getvalue() + repr(options).encode()).hexdigest()[:24]
