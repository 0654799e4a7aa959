"""Conversions: one tensor of a checkpoint to the weights that it holds.

Every conversion knows its way back for shapes, so that messages about weights name the tensors that
a checkpoint would have to hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Shape = tuple[int, ...]


class Convert(Protocol):
    """One tensor to one weight for each target of its rule, or to one weight for all of them."""

    def __call__(self, tensor: Tensor) -> Sequence[Tensor]:
        """The weights; of another number than the targets where the tensor does not fit."""

    def original_shape(self, shape: Shape) -> Shape:
        """The shape of the tensor that is converted to weights of ``shape``."""


@dataclass(frozen=True)
class Unchanged:
    """A tensor that is the weight."""

    def __call__(self, tensor: Tensor) -> Sequence[Tensor]:
        """The tensor alone."""
        return (tensor,)

    def original_shape(self, shape: Shape) -> Shape:
        """The weight's."""
        return shape


@dataclass(frozen=True)
class Split:
    """Equal parts along the first axis: packed projections, (count * E, ...), to (E, ...) each."""

    count: int

    def __call__(self, tensor: Tensor) -> Sequence[Tensor]:
        """The parts; fewer, or of different shapes, where the rows do not divide."""
        return torch.chunk(tensor, self.count, dim=0) if tensor.dim() else ()

    def original_shape(self, shape: Shape) -> Shape:
        """The same with ``count`` times the rows."""
        return (self.count * shape[0], *shape[1:]) if shape else shape


@dataclass(frozen=True)
class Squeezed:
    """A position table (M, E) with axes of length 1 around it."""

    def __call__(self, tensor: Tensor) -> Sequence[Tensor]:
        """The table without them."""
        while tensor.dim() > 2 and 1 in tensor.shape:
            tensor = tensor.squeeze(list(tensor.shape).index(1))
        return (tensor,)

    def original_shape(self, shape: Shape) -> Shape:
        """The table's: how many axes of length 1 stood around it is not known, nor needed."""
        return shape


UNCHANGED, THIRDS, POSITION_TABLE = Unchanged(), Split(3), Squeezed()
