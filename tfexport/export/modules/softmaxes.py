"""Weights of attention that a user's forward computes in eager PyTorch, and does not return.

Axes: L layers, H heads, T target, S source.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tfexport.export import torch_names
from tfexport.export.operators import SOFTMAX, aten

_EAGER_SOFTMAX = (*SOFTMAX, aten._safe_softmax.default)


def softmaxes(forward: Callable[[], object]) -> list[Tensor]:
    """The results of every softmax that a forward computes in eager PyTorch, in their order."""
    results = list[Tensor]()
    mode = torch_names.find(torch_names.DISPATCH_MODE)
    if mode is None:
        return results

    def dispatch(_mode: Any, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _EAGER_SOFTMAX:
            results.append(result)
        return result

    record = type("SoftmaxRecord", (mode,), {"__torch_dispatch__": dispatch})
    with sdpa_kernel(SDPBackend.MATH), record():
        forward()
    return results


def nearest_weights(results: Sequence[Tensor], weights: Tensor, heads: int) -> Tensor:
    """Those results that are nearest to the weights of each layer, in the order of the layers.

    Args:
        results: of ``softmaxes``, of one row.
        weights: (L * H, T, S).
        heads: H.

    Returns:
        Of the same shape; infinite for layers without a result of their shape.
    """
    shape = (heads, *weights.shape[1:])
    layers = [
        result.reshape(shape).float()
        for result in results
        if result.shape[-2:] == shape[1:] and result.numel() == math.prod(shape)
    ]
    nearest, first, count = torch.full_like(weights, math.inf), 0, len(weights) // heads
    for number, layer in enumerate(weights.split(heads)):
        rest = layers[first : len(layers) - (count - number - 1)]
        if not rest:
            break
        gaps = [float((result - layer).abs().max()) for result in rest]
        best = gaps.index(min(gaps))
        nearest[number * heads : (number + 1) * heads] = rest[best]
        first += best + 1
    return nearest
