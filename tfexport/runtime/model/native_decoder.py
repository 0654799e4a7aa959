"""A user's module, of which the decoder runs in the native engine, and the rest in onnxruntime.

If the layers of its encoder are recognised too, onnxruntime computes the embeddings alone.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from tfexport import graph_io
from tfexport.bundle import Manifest
from tfexport.errors import InputError
from tfexport.module_rows import shape_key
from tfexport.runtime.model.interface import Floats, Source
from tfexport.runtime.model.native_model import NativeModel, reporting
from tfexport.runtime.model.onnxruntime_model import ModuleModel


class _StatesModel(ModuleModel):
    """The graph of the states alone, or that of the embeddings."""

    def _read_at_once(self) -> list[str]:
        embedded = self.manifest.embedded_encoder is not None
        return [graph_io.EMBEDDINGS if embedded else graph_io.STATES]


class NativeDecoder(NativeModel):
    """See ``interface.Model``: sources are states of onnxruntime, or of the engine's own layers."""

    has_attention = False  # of steps: states of positions that are masked are left out

    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        """Open the graph of the states, and pack the weights of the decoder.

        Args:
            folder: the folder of the bundle.
            manifest: the manifest of a bundle that the engine can run.
            threads: threads of every call.

        Raises:
            BundleError: the engine or onnxruntime cannot read it.
        """
        super().__init__(folder, manifest, threads)
        self._width = int(manifest.states[0].axes[-1])
        self._embedded = manifest.embedded_encoder is not None
        self._of_states = _StatesModel(folder, manifest, threads)

    @property
    def shortest_source(self) -> Floats:
        """See ``NativeModel``."""
        return np.zeros((1, self._width), np.float32)

    def encoded(self, rows: Sequence[Source]) -> Sequence[Floats]:
        """See ``interface.Model``: the states (S, W) of each row."""
        return self.sources(rows)

    def sources(self, rows: Sequence[Source]) -> Sequence[Floats]:
        """The states (S, W) of each row; rows of one shape are computed together."""
        if all(isinstance(row, np.ndarray) for row in rows):  # they are states already
            return cast("Sequence[Floats]", rows)
        groups: dict[object, list[int]] = {}
        for place, row in enumerate(rows):
            groups.setdefault(_shape(row), []).append(place)
        found: dict[int, Floats] = {}
        for places in groups.values():
            if self._embedded:
                found |= zip(places, self._encode([rows[place] for place in places]), strict=True)
                continue
            states, kept = self._of_states.states([rows[place] for place in places])
            for place, row, of_row in zip(places, states, kept, strict=True):
                if not of_row.any():
                    raise InputError(
                        "an input of which the module masks all positions, or for which it adds "
                        "numbers to its scores that mask none; open the bundle with the engine "
                        "'onnxruntime'"
                    )
                found[place] = row if of_row.all() else row[of_row]
        return [found[place] for place in range(len(rows))]

    @reporting
    def _encode(self, rows: Sequence[Source]) -> Sequence[Floats]:
        """The states of rows of one shape, from embeddings."""
        return self._model.encode(list(self._of_states.embeddings(rows)))

    def alignment(self, row: Source, ids: Sequence[int], heads: Sequence[Sequence[int]]) -> Floats:
        """See ``interface.Model``; the positions of source ids are those of the module's graph."""
        if self._of_states.manifest.attention_shape is not None:
            return self._of_states.alignment(row, ids, heads)
        return super().alignment(row, ids, heads)

    def close(self) -> None:
        """See ``interface.Model``."""
        super().close()
        self._of_states.close()


def _shape(row: Source) -> object:
    return shape_key(row, padded=False) if isinstance(row, Mapping) else len(row)
