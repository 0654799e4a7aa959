"""The state of a decoder's batch: its memory, its past, and which source each row attends to.

Axes: R rows of the decoder.
"""

import numpy as np
from numpy.typing import NDArray
from onnxruntime import OrtValue


class DecoderState:
    """The tensors of a batch of R decoder rows, in onnxruntime's memory.

    Rows change by ``select`` only, which moves everything of a row together, so that no row can
    attend to the source of another.

    Attributes:
        sources: (R,), index of the encoded source that each row attends to; other data of a
            source, such as its candidates, is looked up by it.
        memory: by the decoder's input names, what is computed once for each source: masks, and the
            cross-attention cache. (R, ...) each.
        past: likewise, what every step changes: the self-attention cache. (R, ...) each.
        position: number of tokens so far.
        own_past: no two tensors of ``past`` and ``memory`` share storage, so that the past may be
            changed in place.
    """

    def __init__(
        self, memory: dict[str, OrtValue], past: dict[str, OrtValue], own_past: bool = True
    ) -> None:
        self.memory, self.past, self.position, self.own_past = memory, past, 0, own_past
        first = next(iter(memory.values()))
        self.sources: NDArray[np.intp] = np.arange(first.shape()[0])

    def select(self, rows: NDArray[np.intp]) -> None:
        """Keep these rows, in this order; a row may be repeated or dropped.

        Tensors are copied only where rows change: the memory where sources do, the past where rows
        move.
        """
        sources = self.sources[rows]
        if not np.array_equal(sources, self.sources):
            self.memory = {name: _take(value, rows) for name, value in self.memory.items()}
        if len(sources) != len(self.sources):
            self.past = {name: _take(value, rows) for name, value in self.past.items()}
        else:
            self._move_past(rows)
        self.sources = sources

    def _move_past(self, rows: NDArray[np.intp]) -> None:
        moved = np.flatnonzero(rows != np.arange(len(rows)))
        if not moved.size:
            return
        if not self.own_past:
            self.past = {name: _take(value, rows) for name, value in self.past.items()}
            return
        for value in self.past.values():
            # In place: onnxruntime allocated this memory for one output and does not reuse it.
            values = value.numpy()
            values[moved] = values[rows[moved]]


def _take(value: OrtValue, rows: NDArray[np.intp]) -> OrtValue:
    return OrtValue.ortvalue_from_numpy(value.numpy()[rows])
