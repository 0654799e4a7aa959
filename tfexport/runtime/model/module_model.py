"""The graphs of a bundle that holds a user's module.

They have the module's own inputs, memory and state; the search sees the same model as for any other
bundle. A module gives no attention weights, and has no shortlist.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnxruntime import OrtValue

from tfexport import graph_io
from tfexport.bundle import Manifest
from tfexport.module_io import POSITION
from tfexport.module_rows import read_row, stack_rows
from tfexport.runtime.model.bundle_model import OnnxModel
from tfexport.runtime.model.decoder_state import DecoderState
from tfexport.runtime.model.interface import Floats, Ids, Source


class ModuleModel(OnnxModel):
    """See ``OnnxModel``."""

    has_shortlist = False

    def _make_specs(self, manifest: Manifest) -> dict[str, graph_io.GraphSpec]:
        io = manifest.module_io
        assert io is not None
        self._io = io
        return {
            "encoder": io.encoder_graph(),
            "decoder": io.decoder_graph(self.vocab_size),
            graph_io.GENERATE: graph_io.generate_graph(inputs=io.inputs),
            graph_io.BEAM: graph_io.beam_graph(io.inputs),
        }

    def _inputs(self, sources: Sequence[Source]) -> dict[str, NDArray[Any]]:
        """A batch of rows; those of ids are made rows of inputs."""
        rows = [
            row if isinstance(row, Mapping) else read_row(
                self._io.inputs, {graph_io.INPUT_IDS: np.array(row, np.int64)}
            )[0]
            for row in sources
        ]  # fmt: skip
        return stack_rows(rows, self._pad_id)

    def encode(self, rows: Sequence[Source]) -> DecoderState:
        """Encode rows that may share a batch: see ``module_rows.shape_key``."""
        feeds = {
            name: OrtValue.ortvalue_from_numpy(array) for name, array in self._inputs(rows).items()
        }
        session = self._session("encoder")
        found = session.run_with_ort_values(session.outputs, feeds)
        count = len(self._io.memory)
        memory = {t.name: value for t, value in zip(self._io.memory, found, strict=False)}
        past = {t.name: value for t, value in zip(self._io.state, found[count:], strict=True)}
        # A module may give one tensor twice: as memory and state, or as state and logits.
        return DecoderState(memory, past, own_past=False)

    def step(self, input_ids: Ids, state: DecoderState, candidates: Ids | None = None) -> Floats:
        """See ``OnnxModel``; a module that takes one token at a time is run for each of them."""
        if self._io.many_tokens:
            return self._step(input_ids, state)
        tokens = [input_ids[:, place : place + 1] for place in range(input_ids.shape[1])]
        logits = [self._step(token, state) for token in tokens]
        return logits[0] if len(logits) == 1 else np.concatenate(logits, axis=1)

    def _step(self, tokens: Ids, state: DecoderState) -> Floats:
        session = self._session("decoder")
        feeds = {
            graph_io.INPUT_IDS: OrtValue.ortvalue_from_numpy(np.ascontiguousarray(tokens)),
            POSITION: OrtValue.ortvalue_from_numpy(np.array(state.position, np.int64)),
            **state.past,
            **state.memory,
        }
        logits, *present = session.run_with_ort_values(session.outputs, feeds)
        state.past = {t.name: value for t, value in zip(self._io.state, present, strict=True)}
        state.position += tokens.shape[1]
        found: Floats = logits.numpy().copy()  # filters write to it
        return found
