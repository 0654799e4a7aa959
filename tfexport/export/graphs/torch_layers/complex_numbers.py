"""Complex tensors, of rotary positions for example: views that torch's exporter has no form for.

A complex tensor is exported as a real one with one more axis, of size 2, and these views of the
real tensor have forms.
"""

from typing import Any

import torch
from torch import Tensor


def unsqueeze(own: Any, values: Tensor, dim: int) -> Tensor:
    """In place of ``unsqueeze``, which is ``own``."""
    if not values.is_complex():
        result: Tensor = own(values, dim)
        return result
    return torch.view_as_complex(torch.view_as_real(values).unsqueeze(dim if dim >= 0 else dim - 1))


def get_item(own: Any, values: Tensor, index: Any) -> Tensor:
    """In place of indexing, which is ``own``."""
    if not values.is_complex():
        result: Tensor = own(values, index)
        return result
    parts = index if isinstance(index, tuple) else (index,)
    if any(part is Ellipsis for part in parts):
        parts = (*parts, slice(None))
    return torch.view_as_complex(torch.view_as_real(values)[parts])
