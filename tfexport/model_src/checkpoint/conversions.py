"""Conversions of one tensor of a checkpoint to the weights that it holds.

Every conversion has an inverse for shapes, so that messages about weights can name the tensors and
shapes that a checkpoint needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Shape = tuple[int, ...]


class Convert(Protocol):
    """A function of a tensor to a weight for each target of its rule, or to one for all."""

    def __call__(self, tensor: Tensor) -> Sequence[Tensor]:
        """Convert; the number of weights differs from that of the targets if the shape is wrong."""

    def original_shape(self, shape: Shape) -> Shape:
        """The shape of the tensor that is converted to weights of ``shape``."""


@dataclass(frozen=True)
class Unchanged:
    """The identity."""

    def __call__(self, tensor: Tensor) -> Sequence[Tensor]:
        """The tensor alone."""
        return (tensor,)

    def original_shape(self, shape: Shape) -> Shape:
        """The same shape."""
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
        """The table's shape; axes of length 1 are not known, nor needed in messages."""
        return shape


@dataclass(frozen=True)
class RowsFrom:
    """A position table (M + count, E) whose first rows belong to no token, as in BART."""

    count: int

    def __call__(self, tensor: Tensor) -> Sequence[Tensor]:
        """The table (M, E) without them."""
        return (tensor[self.count :] if tensor.dim() else tensor,)

    def original_shape(self, shape: Shape) -> Shape:
        """The shape with them."""
        return (shape[0] + self.count, *shape[1:]) if shape else shape


@dataclass(frozen=True)
class SingleRow:
    """A vector (V) that is stored as (1, V)."""

    def __call__(self, tensor: Tensor) -> Sequence[Tensor]:
        """The vector."""
        return (tensor[0] if tensor.dim() == 2 and len(tensor) == 1 else tensor,)

    def original_shape(self, shape: Shape) -> Shape:
        """With an axis of length 1 in front."""
        return (1, *shape)


@dataclass(frozen=True)
class Transposed:
    """A matrix that is stored as (in, out)."""

    def __call__(self, tensor: Tensor) -> Sequence[Tensor]:
        """The matrix as (out, in); nothing for what is no matrix."""
        return (tensor.T,) if tensor.dim() == 2 else ()

    def original_shape(self, shape: Shape) -> Shape:
        """The axes the other way round."""
        return shape[::-1]


@dataclass(frozen=True)
class OneRow:
    """A vector that is stored as a matrix of one row."""

    def __call__(self, tensor: Tensor) -> Sequence[Tensor]:
        """The row."""
        return (tensor.reshape(-1),) if tensor.dim() < 2 or tensor.size(0) == 1 else ()

    def original_shape(self, shape: Shape) -> Shape:
        """One row of it."""
        return (1, *shape)


UNCHANGED, THIRDS, POSITION_TABLE = Unchanged(), Split(3), Squeezed()
