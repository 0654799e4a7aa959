"""A bundle's graphs in onnxruntime, of a Transformer or of a user's module.

Caches stay in onnxruntime's memory.
Axes: B batch, S source, T target, P past, H heads, D head size, V vocabulary.
"""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from onnxruntime import OrtValue

from tfexport import graph_io
from tfexport.bundle import WEIGHTS, FileStamps, Manifest
from tfexport.errors import BundleError
from tfexport.graph_io import POSITION
from tfexport.module_rows import read_row, stack_rows
from tfexport.runtime.model.abandoned import Going
from tfexport.runtime.model.alignment import attend_heads, no_logits
from tfexport.runtime.model.interface import (
    BeamRecord,
    BeamRules,
    Floats,
    Generated,
    Ids,
    ModelShape,
    NoTokenError,
    Source,
    Traced,
)
from tfexport.runtime.model.kv_cache import DecoderState, EncodedRow, Slots, encoded_rows, join_rows
from tfexport.runtime.model.mapped_memory import release_mapped_pages
from tfexport.runtime.model.session import Graph, check_onnxruntime, check_range

# Graphs that run once for a source, before another one, or the native engine, needs all cores.
_BEFORE_OTHERS = {"encoder", graph_io.STATES, graph_io.EMBEDDINGS, graph_io.ALIGNMENT}


class OnnxModel:
    """See ``interface.Model``: a bundle's graphs in onnxruntime.

    A graph is loaded when it is first used, since each takes memory. Those of greedy search are
    loaded at once, so that a damaged file is found early.
    """

    engine = "onnxruntime"
    log_normalizer = None
    has_attention = has_alignment = True
    searches_encoded = False
    has_min_length = False

    def __init__(self, folder: Path, manifest: Manifest, threads: int = 0) -> None:
        self.vocab_size = manifest.limits.target_vocab_size
        check_onnxruntime(folder, manifest.minimum_onnxruntime)
        self._files = {role: folder / name for role, name in manifest.graphs.items()}
        self._weights = folder / WEIGHTS
        self._stamps = FileStamps(self._weights, *self._files.values())
        self._threads = threads
        self._ids = manifest.special_ids
        self._sessions: dict[str, Graph] = {}
        self._opening = threading.Lock()
        self.has_generate = graph_io.GENERATE in manifest.graphs
        self.has_beam = graph_io.BEAM in manifest.graphs
        self._specs = self._make_specs(manifest)
        for role in self._read_at_once():
            self._session(role)

    def _read_at_once(self) -> list[str]:
        return [graph_io.GENERATE] if self.has_generate else ["encoder", "decoder"]

    def _make_specs(self, manifest: Manifest) -> dict[str, graph_io.GraphSpec]:
        """Role to the inputs and outputs of its graph."""
        shape = ModelShape.of(manifest)
        self._cache = graph_io.CacheShape(shape.num_decoder_layers, shape.num_heads, shape.head_dim)
        self._cross_out = [t.name for t in graph_io.present_encoder(self._cache)]
        self._cross_in = [t.name for t in graph_io.past_encoder(self._cache)]
        self._past_in = [t.name for t in graph_io.past_decoder(self._cache)]
        self._past_out = [t.name for t in graph_io.present_decoder(self._cache)]
        return {
            "encoder": graph_io.encoder_graph(self._cache, shape.d_model),
            "decoder": graph_io.decoder_graph(self._cache, self.vocab_size),
            graph_io.SHORTLIST: graph_io.shortlist_graph(self._cache),
            graph_io.GENERATE: graph_io.generate_graph(self._cache, can_skip_scores=True),
            graph_io.BEAM: graph_io.beam_graph(),
            graph_io.STEP: graph_io.step_graph(self._cache, self.vocab_size),
        }

    def _session(self, role: str) -> Graph:
        with self._opening:
            if role not in self._sessions:
                self._stamps.check()
                self._sessions[role] = Graph(
                    self._files[role], self._specs[role], self._threads, role not in _BEFORE_OTHERS
                )
                release_mapped_pages(self._weights)
            return self._sessions[role]

    def close(self) -> None:
        """See ``interface.Model``."""
        with self._opening:
            self._sessions = {}

    def _inputs(self, sources: Sequence[Source]) -> dict[str, NDArray[Any]]:
        """Inputs of every graph with an encoder: rows padded on the right, and their mask."""
        ids, mask = pad(cast(Sequence[Sequence[int]], sources), self._ids.pad)
        return {graph_io.INPUT_IDS: ids, graph_io.ATTENTION_MASK: mask}

    def generate(
        self,
        rows: Sequence[Source],
        max_length: int,
        return_scores: bool = True,
        going: Going | None = None,
        min_length: int = 0,
    ) -> Generated:
        """Decode greedily in one call; only if ``has_generate``.

        Args:
            rows: sources, none of them empty.
            max_length: new tokens at most.
            return_scores: false omits them, if the graph can.
            going: see ``interface.Model``.
            min_length: 0, as the graph knows no other.
        """
        assert not min_length
        feeds: dict[str, NDArray[Any]] = {
            **self._inputs(rows),
            graph_io.MAX_LENGTH: np.array(max_length),
        }
        if not return_scores and self._specs[graph_io.GENERATE].optional_inputs:
            feeds[graph_io.RETURN_SCORES] = np.array(False)
        found = Generated(*self._session(graph_io.GENERATE).run(None, feeds, going))
        path = self._files[graph_io.GENERATE]
        check_range(path, graph_io.SEQUENCES, found.sequences, self.vocab_size)
        return found

    def beam(
        self,
        rows: Sequence[Source],
        beam_size: int,
        num_finished: int,
        max_length: int,
        rules: BeamRules | None = None,
        going: Going | None = None,
    ) -> BeamRecord:
        """Run a beam search in one call; only if ``has_beam``.

        Args:
            rows: sources, none of them empty.
            beam_size: hypotheses followed at a time; at most half of the vocabulary.
            num_finished: finished hypotheses without which no sentence is done before
                ``max_length``.
            max_length: new tokens at most, a forced first one included.
            rules: of the search; None for those with the model's own start and end token.
            going: see ``interface.Model``.

        Raises:
            NoTokenError: the rules allow some row no token.
        """
        by = rules or BeamRules(ends=(self._ids.eos,), start=self._ids.decoder_start)
        feeds = {
            **self._inputs(rows),
            graph_io.MAX_LENGTH: np.array(max_length),
            graph_io.BEAM_SIZE: np.array(beam_size),
            graph_io.ENOUGH: np.array(num_finished),
            **rule_inputs(by, rows),
        }
        *record, steps = self._session(graph_io.BEAM).run(None, feeds, going)
        if (steps < 0).any():
            raise NoTokenError
        forced = by.first_token is not None  # which is the first step of the graph
        tokens, parents, log_probs = (each[forced:] for each in record)
        found = BeamRecord(tokens, parents, log_probs, steps - forced)
        path = self._files[graph_io.BEAM]
        check_range(path, "tokens", found.tokens, self.vocab_size)
        check_range(path, "parents", found.parents, beam_size)
        check_range(path, "steps", found.steps, len(found.tokens) + 1)
        return found

    def trace(
        self, rows: Sequence[Source], max_length: int, going: Going | None = None
    ) -> tuple[Ids, Traced] | None:
        """See ``interface.Model``: the graph of a search keeps no positions."""
        return None

    def retrace(
        self,
        rows: Sequence[Source],
        tokens: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
    ) -> Traced | None:
        """See ``interface.Model``: rows of a graph are all at the same position."""
        return None

    def encoded(self, rows: Sequence[Source]) -> Sequence[EncodedRow]:
        """See ``interface.Model``; the rows may share a batch."""
        state = self.encode(rows)
        return [EncodedRow(state, place, row) for place, row in enumerate(rows)]

    def encode(self, rows: Sequence[Source]) -> DecoderState:
        """Encode rows of source ids, none of them empty, padded here on the right."""
        if encoded := encoded_rows(rows):
            state = join_rows(encoded)
            state.own_past = True  # it has no positions yet that other rows could share
            return state
        inputs = self._inputs(rows)
        cross = self._memory(inputs)
        empty = np.zeros((len(rows), self._cache.num_heads, 0, self._cache.head_dim), np.float32)
        memory = {
            graph_io.ENCODER_ATTENTION_MASK: inputs[graph_io.ATTENTION_MASK],
            **dict(zip(self._cross_in, cross, strict=True)),
        }
        return DecoderState(
            {name: OrtValue.ortvalue_from_numpy(array) for name, array in memory.items()},
            {name: OrtValue.ortvalue_from_numpy(empty) for name in self._past_in},
        )

    def encode_memory(self, rows: Sequence[Source]) -> Floats:
        """The cross-attention keys and values of sources, (2L, B, H, S, D)."""
        return self._memory(self._inputs(rows))

    def _memory(self, inputs: Mapping[str, NDArray[Any]]) -> Floats:
        batch, length = inputs[graph_io.INPUT_IDS].shape
        of_one = (batch, self._cache.num_heads, length, self._cache.head_dim)
        memory: Floats = np.empty((len(self._cross_out), *of_one), np.float32)
        session = self._session("encoder")
        session.run_bound(session.bind(inputs, dict(zip(self._cross_out, memory, strict=True))))
        return memory

    def alignment(self, row: Source, ids: Sequence[int], heads: Sequence[Sequence[int]]) -> Floats:
        """See ``interface.Model``."""
        return attend_heads(self, row, ids, heads)

    def hidden_states(self, rows: Sequence[Sequence[int]]) -> Floats:
        """The encoder's last states, (B, S, E)."""
        found = self._session("encoder").run([graph_io.HIDDEN_STATES], self._inputs(rows))
        hidden: Floats = found[0]
        return hidden

    @property
    def has_shortlist(self) -> bool:
        """Whether ``step`` and ``attend`` take candidates."""
        return graph_io.SHORTLIST in self._files

    @property
    def has_slots(self) -> bool:
        """Whether rows can be at different positions; see ``Slots``."""
        return graph_io.STEP in self._files

    def running_rows(self, capacity: int) -> Slots:
        """See ``interface.Model``; only if ``has_slots``.

        Raises:
            BundleError: onnxruntime cannot run the graph.
        """
        return Slots(self, capacity)

    def slot_graph(self) -> tuple[Graph, graph_io.CacheShape]:
        """The graph of a step of ``Slots``, and the shape of the caches."""
        return self._session(graph_io.STEP), self._cache

    def step(self, input_ids: Ids, state: DecoderState, candidates: Ids | None = None) -> Floats:
        """Advance by T positions: ids (B, T) to logits (B, T, V); the state is updated.

        Args:
            input_ids: (B, T).
            state: the state of the batch.
            candidates: (C,) ids to compute logits of; all others get -inf. None for all.
        """
        return self._advance(input_ids, state, [graph_io.LOGITS], candidates)[0]

    def attend(
        self, input_ids: Ids, state: DecoderState, candidates: Ids | None = None
    ) -> tuple[Floats, Floats]:
        """``step``, and its cross-attention weights, (B, L, H, T, S).

        Weights of source padding are 0.
        """
        outputs = [graph_io.LOGITS, graph_io.CROSS_ATTENTIONS]
        logits, weights = self._advance(input_ids, state, outputs, candidates)
        return logits, weights

    def _advance(
        self, input_ids: Ids, state: DecoderState, outputs: list[str], candidates: Ids | None
    ) -> list[Floats]:
        role = "decoder" if candidates is None else graph_io.SHORTLIST
        feeds = {
            graph_io.INPUT_IDS: OrtValue.ortvalue_from_numpy(input_ids),
            **state.memory,
            **state.past,
        }
        if candidates is not None:
            asked = candidates if len(candidates) else np.zeros(1, np.int64)
            feeds[graph_io.CANDIDATES] = OrtValue.ortvalue_from_numpy(asked)
        found = self._session(role).run_with_ort_values([*outputs, *self._past_out], feeds)
        state.past = dict(zip(self._past_in, found[len(outputs) :], strict=True))
        state.position += input_ids.shape[1]
        # Views into onnxruntime's memory, which the next call may not overwrite: outputs are
        # allocated again each time. They live as long as the arrays do.
        values: list[Floats] = [value.numpy() for value in found[: len(outputs)]]
        if candidates is not None:
            logits = no_logits((*values[0].shape[:2], self.vocab_size))
            if len(candidates):
                logits = logits.copy()
                logits[:, :, candidates] = values[0]
            values[0] = logits
        return values


def rule_inputs(rules: BeamRules, sources: Sequence[Source]) -> dict[str, NDArray[Any]]:
    """The inputs of ``graph_io.BEAM_RULES``; sources have to be ids for the n-grams of these."""
    given = rules._asdict()
    rows = cast(Sequence[Sequence[int]], sources) if rules.source_ngram else [()] * len(sources)
    width = max([2, *map(len, rules.sequences)])
    padded = [
        (graph_io.ANY_TOKEN,) * (width - len(sequence)) + sequence for sequence in rules.sequences
    ]
    given |= {
        "stop": graph_io.STOPS.index(rules.stop),
        "first_token": graph_io.NO_TOKEN if rules.first_token is None else rules.first_token,
        "last_token": graph_io.NO_TOKEN if rules.last_token is None else rules.last_token,
        "sequences": np.reshape(padded, (len(padded), width)),
        "source_tokens": pad(rows, graph_io.NO_TOKEN)[0],
    }
    return {
        tensor.name: np.array(given[tensor.name.removeprefix(graph_io.RULES)], tensor.dtype)
        for tensor in graph_io.BEAM_RULES
    }


def pad(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Ids, Ids]:
    """Pad rows on the right to ids (B, S), with a mask (B, S) of their lengths, 1 = keep."""
    longest = max(len(row) for row in rows)
    ids = np.full((len(rows), longest), pad_id, np.int64)
    mask = np.zeros((len(rows), longest), np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return ids, mask


class ModuleModel(OnnxModel):
    """The graphs of a user's module: without shortlist, and attention of steps. See ``OnnxModel``.

    Attributes:
        folder: the folder of the bundle.
        manifest: its manifest.
    """

    has_shortlist = has_attention = False

    def __init__(self, folder: Path, manifest: Manifest, threads: int = 0) -> None:
        self.folder, self.manifest = folder, manifest
        self.has_alignment = graph_io.ALIGNMENT in manifest.graphs
        super().__init__(folder, manifest, threads)

    def _make_specs(self, manifest: Manifest) -> dict[str, graph_io.GraphSpec]:
        io = manifest.module_io
        assert io is not None
        self._io = io
        of_decoder = {}
        if manifest.states:
            of_decoder[graph_io.STATES] = io.states_graph(manifest.states)
        if manifest.embedded_encoder is not None:
            of_decoder = {graph_io.EMBEDDINGS: io.embeddings_graph(manifest.embedded_encoder[1])}
        if self.has_alignment:
            heads, ids = len(manifest.alignment_heads), io.inputs[0]
            attended = ids if io.takes_ids else manifest.states[0]
            of_decoder[graph_io.ALIGNMENT] = io.alignment_graph(heads, attended.axes[1])
        return of_decoder | {
            "encoder": io.encoder_graph(),
            "decoder": io.decoder_graph(self.vocab_size),
            graph_io.GENERATE: graph_io.generate_graph(inputs=io.inputs),
            graph_io.BEAM: graph_io.beam_graph(io.inputs),
        }

    def _inputs(self, sources: Sequence[Source]) -> dict[str, NDArray[Any]]:
        """Make a batch of rows; ids become the module's inputs."""
        rows = [
            row if isinstance(row, Mapping) else read_row(
                self._io.inputs, {graph_io.INPUT_IDS: np.array(row, np.int64)}
            )[0]
            for row in sources
        ]  # fmt: skip
        return stack_rows(rows, self._ids.pad)

    def states(self, rows: Sequence[Source]) -> tuple[Floats, NDArray[np.bool_]]:
        """Compute the states that a recognised decoder attends to, of rows that share a batch.

        Returns:
            The states (B, S, W), and which of them are kept (B, S).
        """
        states, *kept = self._session(graph_io.STATES).run(None, self._inputs(rows))
        found = kept[0] if kept else np.ones(states.shape[:2], bool)
        if len(states) != len(rows) or found.shape != states.shape[:2]:
            raise BundleError(
                f"{self.folder}: {graph_io.STATES}.onnx gives {states.shape} and {found.shape} for "
                f"{len(rows)} rows. Export the model again."
            )
        return states, found

    def embeddings(self, rows: Sequence[Source]) -> Floats:
        """Compute what the layers of a recognised encoder take, of rows that share a batch.

        Returns:
            The embeddings (B, S, W).
        """
        found: Floats
        (found,) = self._session(graph_io.EMBEDDINGS).run(None, self._inputs(rows))
        width = self.manifest.states[0].axes[-1]
        if found.ndim != 3 or len(found) != len(rows) or found.shape[2] != width:
            raise BundleError(
                f"{self.folder}: {graph_io.EMBEDDINGS}.onnx gives {found.shape} for {len(rows)} "
                f"rows of {width} values. Export the model again."
            )
        return found

    def encode(self, rows: Sequence[Source]) -> DecoderState:
        """Encode rows that may share a batch: see ``module_rows.shape_key``."""
        if encoded := encoded_rows(rows):
            return join_rows(encoded)
        feeds = {
            name: OrtValue.ortvalue_from_numpy(array) for name, array in self._inputs(rows).items()
        }
        session = self._session("encoder")
        found = session.run_with_ort_values(session.outputs, feeds)
        count = len(self._io.memory)
        memory = {t.name: value for t, value in zip(self._io.memory, found, strict=False)}
        past = {t.name: value for t, value in zip(self._io.state, found[count:], strict=True)}
        # A module may return one tensor twice: as memory and state, or as state and logits.
        return DecoderState(memory, past, own_past=False)

    def alignment(self, row: Any, ids: Sequence[int], heads: Sequence[Sequence[int]]) -> Floats:
        """See ``interface.Model``; the encoder runs once more."""
        source = row.source if isinstance(row, EncodedRow) else row
        session, tokens = self._session(graph_io.ALIGNMENT), np.array([ids], np.int64)
        feeds = self._inputs([source]) | {self._specs[graph_io.ALIGNMENT].inputs[-1].name: tokens}
        weights: Floats = session.run(None, feeds)[0][0]
        known = {tuple(head): place for place, head in enumerate(self.manifest.alignment_heads)}
        return weights[[known[tuple(head)] for head in heads]]

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
