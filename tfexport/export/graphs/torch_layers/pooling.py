"""Pooling over axes whose size is not known while exporting.

torch's exporter takes the size of the example for some of them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def max_pool1d(
    inputs: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,  # F.max_pool1d_with_indices is another function
) -> Tensor:
    """See ``torch.nn.functional.max_pool1d``; over the last axis of (..., C, L)."""
    stride = stride or kernel_size  # torch takes an empty list for None
    pooled: Tensor = F.max_pool2d(
        inputs.unsqueeze(-2),
        (1, _single(kernel_size)),
        (1, _single(stride)),
        (0, _single(padding)),
        (1, _single(dilation)),
        ceil_mode,
    )
    return pooled.squeeze(-2)


def _single(size: int | Sequence[int]) -> int:
    return size if isinstance(size, int) else size[0]


def adaptive_pool(
    inputs: Tensor, output_size: int | Sequence[int | None], axes: int, maximum: bool
) -> Tensor:
    """Adaptive pooling of the last axes, each of any size.

    Output ``i`` of ``n`` covers the inputs from ``floor(i * size / n)`` to before
    ``ceil((i + 1) * size / n)``. Source: torch.nn.AdaptiveAvgPool2d.

    Args:
        inputs: (..., the pooled axes).
        output_size: of each pooled axis, or of all; None keeps an axis.
        axes: how many are pooled.
        maximum: the maximum instead of the mean.
    """
    wanted = [output_size] * axes if isinstance(output_size, int) else list(output_size)
    if len(wanted) == 1:
        wanted *= axes
    for axis, count in zip(range(-axes, 0), wanted, strict=True):
        if count is None or count is inputs.size(axis):
            continue
        moved = inputs.movedim(axis, -1)
        if count == 1:
            pooled = moved.amax(-1, True) if maximum else moved.mean(-1, True)
        else:
            pooled = _windows_pooled(moved, count, maximum)
        inputs = pooled.movedim(-1, axis)
    return inputs


def _windows_pooled(inputs: Tensor, count: int, maximum: bool) -> Tensor:
    """Pool the last axis to ``count`` values."""
    size = inputs.size(-1)
    number = torch.arange(count).unsqueeze(1)
    start = number * size // count
    end = ((number + 1) * size + count - 1) // count
    position = torch.arange(size)
    inside = (position >= start) & (position < end)  # (count, size)
    if maximum:
        return inputs.unsqueeze(-2).masked_fill(~inside, -torch.inf).amax(-1)
    share = inside.to(inputs.dtype) / (end - start).to(inputs.dtype)
    return inputs @ share.T
