"""Rows of inputs of several sizes for a drawn module, and irregular weights."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tests.drawn_modules.spec import BATCH, EOS, InputSpec, Spec

Row = dict[str, NDArray[Any]]
_COUNT = 5


def draw_rows(spec: Spec, count: int = _COUNT) -> list[Row]:
    """Rows of one module, none of them like another; the first has the least sizes."""
    rng = np.random.default_rng([spec.seed, 7])
    names = sorted({axis for each in spec.inputs for axis in each.axes if isinstance(axis, str)})
    rows: list[Row] = []
    for number in range(count):
        sizes = {}
        for name in names:
            if name != BATCH:
                least, most = spec.least[name], spec.most[name]
                sizes[name] = least if number == 0 else int(rng.integers(least, most + 1))
        if number == 2:  # one shape of two rows, so that a batch has two of them
            sizes = {name: rows_size(rows[1], spec, name) for name in sizes}
        rows.append({each.name: _drawn(each, sizes, rng) for each in spec.inputs})
    return rows


def rows_size(row: Mapping[str, NDArray[Any]], spec: Spec, name: str) -> int:
    """The size of an axis in a row."""
    for each in spec.inputs:
        axes = [axis for axis in each.axes if axis != BATCH]
        if name in axes:
            return int(row[each.name].shape[axes.index(name)])
    raise KeyError(name)


def _drawn(each: InputSpec, sizes: Mapping[str, int], rng: np.random.Generator) -> NDArray[Any]:
    shape = [sizes[axis] if isinstance(axis, str) else axis for axis in each.axes if axis != BATCH]
    if each.kind == "ids":
        return rng.integers(EOS + 1, each.below, shape)
    if each.kind == "mask":
        return np.ones(shape, np.int64)
    if each.kind == "floats":
        return rng.standard_normal(shape).astype(np.float32)
    longest = sizes.get("frames", sizes.get("source_length", 1))
    length = int(rng.integers(min(4, longest), longest + 1))
    if each.kind == "lengths":
        return np.array(length)
    return np.array(length / longest, np.float32)


@torch.no_grad()
def sharpen(module: nn.Module, seed: int) -> nn.Module:
    """Make weights larger and uneven, so that tokens depend on all that a module reads."""
    generator = torch.Generator().manual_seed(seed)

    def noise(tensor: torch.Tensor) -> torch.Tensor:
        return torch.randn(tensor.shape, generator=generator)

    for weight in module.parameters():
        fan_in = weight[0].numel() if weight.dim() > 1 else 16
        weight.add_(noise(weight) / max(fan_in, 1) ** 0.5)
    for layer in module.modules():
        if isinstance(layer, nn.Embedding):
            layer.weight.add_(noise(layer.weight) / 2)
        if isinstance(layer, nn.BatchNorm1d):
            assert layer.running_mean is not None
            assert layer.running_var is not None
            layer.running_mean.add_(noise(layer.running_mean) / 4)
            layer.running_var.add_(noise(layer.running_var).abs())
    return module
