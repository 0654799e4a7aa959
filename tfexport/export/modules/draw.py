"""Drawn inputs of a module, at sizes that it accepts."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from tfexport import graph_io
from tfexport.export.modules.inputs import Input
from tfexport.graph_io import BATCH
from tfexport.module_rows import Array

Sizes = dict[str, int]  # of named axes
LARGEST_ID = 1 << 20  # integers above are drawn for no input
# Sizes to try, from small to large: some modules take no small ones, others have a longest. The
# last are for modules that want multiples of a power of two.
_PRIMES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89)
_MULTIPLES = (16, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384)
BATCHES = (2, 3, 1, 4, 6, 5, 7)
# Even, long and short sizes, tried last: code may act otherwise on them (padding, patches).
_FURTHER = (24, 96, 3)


def axes_of(inputs: Sequence[Input]) -> tuple[str, ...]:
    """The named axes of all inputs but the batch, each once."""
    named = (axis for each in inputs for axis in each.axes[1:] if isinstance(axis, str))
    return tuple(dict.fromkeys(named))


def candidate_sizes(
    inputs: Sequence[Input], examples: Sequence[Mapping[str, Array]]
) -> Iterator[Sizes]:
    """Sizes to run a module at: rising ones, then those of real rows.

    The axes of one setting have different sizes, and no two axes vary alike, so that it shows which
    axis of a result follows which.
    """
    axes = axes_of(inputs)
    if not axes:
        yield from ({} for _ in BATCHES)
        return
    for ladder in (_PRIMES, _MULTIPLES):
        for first in range(0, len(ladder) - len(axes) + 1):
            # Neighbours on the ladder, in another order each time.
            chosen = ladder[first : first + len(axes)]
            turn = first % len(axes)
            yield dict(zip(axes, chosen[turn:] + chosen[:turn], strict=True))
    # For a module that takes few sizes; those of size 1 would become constants.
    found = (sizes_of(inputs, row) for row in examples)
    yield from (sizes for sizes in found if min(sizes.values()) > 1)


def further_sizes(inputs: Sequence[Input]) -> Iterator[Sizes]:
    """Sizes unlike those of ``candidate_sizes``, which a module need not take."""
    axes = axes_of(inputs)
    if axes:
        yield from ({a: size + 2 * i for i, a in enumerate(axes)} for size in _FURTHER)


def sizes_of(inputs: Sequence[Input], row: Mapping[str, Array]) -> Sizes:
    """The sizes of the named axes of a row."""
    return {
        axis: size
        for each in inputs
        for axis, size in zip(each.axes[1:], row[each.name].shape, strict=True)
        if isinstance(axis, str)
    }


def draw_rows(
    inputs: Sequence[Input], below: Mapping[str, float], sizes: Sizes, batch: int, seed: int = 0
) -> list[dict[str, Array]]:
    """Random rows, without the batch axis; an ``attention_mask`` keeps every position.

    Args:
        inputs: of the module.
        below: input to the smallest number that is too large; other floats are drawn around 0.
        sizes: of named axes.
        batch: number of rows.
        seed: of the random numbers.
    """
    generator = np.random.default_rng([seed, batch, *sizes.values()])
    return [
        {
            each.name: _draw(
                each,
                below.get(each.name),
                tuple(sizes[a] if isinstance(a, str) else a for a in each.axes[1:]),
                generator,
            )
            for each in inputs
        }
        for _ in range(batch)
    ]


def _draw(
    each: Input, below: float | None, shape: tuple[int, ...], random: np.random.Generator
) -> Array:
    if each.name == graph_io.ATTENTION_MASK:
        return np.ones(shape, each.dtype)
    if each.dtype.startswith("float"):
        drawn = random.standard_normal(shape) if below is None else random.random(shape) * below
        return drawn.astype(each.dtype)
    if each.dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    most = min(2 if below is None else int(below), LARGEST_ID, int(np.iinfo(each.dtype).max) + 1)
    return random.integers(0, most, shape).astype(each.dtype)


def as_tensors(inputs: Sequence[Input], batch: Mapping[str, Array]) -> tuple[Tensor, ...]:
    """A batch in the order of ``encode``'s parameters; in float64 where torch computes in that."""
    exact = torch.get_default_dtype() == torch.float64
    found = (torch.from_numpy(batch[each.name]) for each in inputs)
    return tuple(it.double() if exact and it.is_floating_point() else it for it in found)


__all__ = ["BATCH", "BATCHES", "LARGEST_ID", "Sizes", "as_tensors", "axes_of", "candidate_sizes",
           "draw_rows", "sizes_of"]  # fmt: skip
