"""Keys of modules, by which a test run traces equal modules once.

Tracing takes seconds a module, and most tests export one of a few models to look at the graphs.
Equal modules give equal graphs, so one trace serves all tests in all workers.
"""

import hashlib
import io
import pickle
from typing import Any

import torch
from torch import nn

from tfexport.export.ir_tools.nodes import content_key


class _Contents(pickle.Pickler):
    """Pickles a module's classes and values; tensors as content keys, shared ones as shared."""

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
    """A key that is equal for modules of the same classes, values and options."""
    written = io.BytesIO()
    _Contents(written).dump(module)
    return hashlib.sha256(written.getvalue() + repr(options).encode()).hexdigest()[:24]
