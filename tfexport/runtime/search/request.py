"""One row to decode."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfexport.graph_io import INPUT_IDS
from tfexport.runtime.model.interface import Source


@dataclass(frozen=True)
class Request:
    """One row to decode.

    Attributes:
        ids: source ids as the encoder sees them; empty if there are ``inputs``.
        number: of the row in its call, which seeds its random numbers.
        prefix: the forced beginning of the target.
        candidates: ascending ids that may be chosen (a shortlist); None for the whole vocabulary.
        sample: number of the first sample of this row; it seeds the random numbers too.
        inputs: a user's module's inputs by name, in place of ids.
        group: rows of equal groups may share a batch.
    """

    ids: list[int]
    number: int = 0
    prefix: tuple[int, ...] = ()
    candidates: NDArray[np.int64] | None = None
    sample: int = 0
    inputs: Mapping[str, NDArray[Any]] | None = None
    group: tuple[Any, ...] = ()

    @classmethod
    def of(cls, source: Source, number: int) -> "Request":
        """A row without a prefix."""
        if isinstance(source, Mapping):
            return cls([], number, inputs=source)
        return cls(list(source), number)

    @property
    def source(self) -> Source:
        """The source as ``Model.encode`` takes it."""
        return self.ids if self.inputs is None else self.inputs

    @property
    def source_ids(self) -> list[int]:
        """The source's ids; none if it is not ids."""
        if self.inputs is None or INPUT_IDS not in self.inputs:
            return self.ids
        return [int(i) for i in self.inputs[INPUT_IDS]]

    @property
    def length(self) -> int:
        """Positions of the source: ids, or the longest axis of an input."""
        if self.inputs is None:
            return len(self.ids)
        return max(max(array.shape, default=1) for array in self.inputs.values())
