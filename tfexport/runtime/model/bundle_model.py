"""The graphs of a bundle: a whole search in one call, or encoder and decoder steps with caches.

Caches stay in onnxruntime's memory.
Axes: B batch, S source, T target, P past, H heads, D head size, V vocabulary.
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnxruntime import OrtValue

from tfexport import graph_io
from tfexport.bundle import WEIGHTS, Manifest
from tfexport.runtime.model.graph_check import check_range
from tfexport.runtime.model.mapped_memory import release_mapped_pages
from tfexport.runtime.model.session import Graph, check_onnxruntime
from tfexport.runtime.model_shape import ModelShape

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]


class DecoderState:
    """The caches and masks of a batch of R decoder rows.

    Rows change by ``select`` only, which moves the mask, cross-attention cache and self-attention
    cache of a row together, so that no row can attend to the source of another.

    Attributes:
        sources: (R,), index of the encoded source that each row attends to; other data of a
            source, such as its candidates, is looked up by it.
        mask: (R, S), 1 = keep.
        cross: the cross-attention cache, (R, H, S, D) each, by the decoder's input names.
        past: the self-attention cache, (R, H, P, D) each, likewise.
    """

    def __init__(
        self, mask: OrtValue, cross: dict[str, OrtValue], past: dict[str, OrtValue]
    ) -> None:
        self.mask, self.cross, self.past = mask, cross, past
        self.sources: NDArray[np.intp] = np.arange(mask.shape()[0])

    def select(self, rows: NDArray[np.intp]) -> None:
        """Keep these rows, in this order; a row may be repeated or dropped.

        Caches are copied only where rows change: cross-attention caches where their sources do,
        self-attention caches where rows move.
        """
        sources = self.sources[rows]
        if not np.array_equal(sources, self.sources):
            self.mask = _take(self.mask, rows)
            self.cross = {name: _take(value, rows) for name, value in self.cross.items()}
        if len(sources) != len(self.sources):
            self.past = {name: _take(value, rows) for name, value in self.past.items()}
        else:
            self._move_past(rows)
        self.sources = sources

    def _move_past(self, rows: NDArray[np.intp]) -> None:
        moved = np.flatnonzero(rows != np.arange(len(rows)))
        if not moved.size:
            return
        for value in self.past.values():
            # In place: onnxruntime allocated this memory for one output and does not reuse it.
            values = value.numpy()
            values[moved] = values[rows[moved]]


def _take(value: OrtValue, rows: NDArray[np.intp]) -> OrtValue:
    return OrtValue.ortvalue_from_numpy(value.numpy()[rows])


class Generated(NamedTuple):
    """Outputs of a generate graph.

    Attributes:
        sequences: (B, T), the end token included, padded behind it.
        scores: (B,), mean natural-log probability, the end token included; NaN if they were left
            out.
        attention: cross-attention weights (B, L, H, T, S) of L layers; None if the graph was
            exported without.
    """

    sequences: Ids
    scores: Floats
    attention: Floats | None = None


class BeamRecord(NamedTuple):
    """Top-k candidates of every step of a beam search: (T, B, N) each, best first.

    Attributes:
        tokens: which token each is.
        parents: index of the hypothesis that it continues.
        log_probs: log-probability of the token alone.
    """

    tokens: Ids
    parents: Ids
    log_probs: Floats


class Model:
    """A bundle's graphs. Stateless, so safe to share between threads; callers hold the state.

    A graph is loaded when it is first used, since each takes memory. Those of greedy search are
    loaded at once, so that a damaged file is found early.
    """

    def __init__(self, folder: Path, manifest: Manifest, threads: int = 0) -> None:
        shape, self.vocab_size = ModelShape.of(manifest), manifest.limits.target_vocab_size
        self._cache = graph_io.CacheShape(shape.num_decoder_layers, shape.num_heads, shape.head_dim)
        self._specs = {
            "encoder": graph_io.encoder_graph(self._cache, shape.d_model),
            "decoder": graph_io.decoder_graph(self._cache, self.vocab_size),
            graph_io.SHORTLIST: graph_io.shortlist_graph(self._cache),
            graph_io.GENERATE: graph_io.generate_graph(self._cache, can_skip_scores=True),
            graph_io.BEAM: graph_io.beam_graph(),
        }
        check_onnxruntime(folder, manifest.minimum_onnxruntime)
        self._files = {role: folder / name for role, name in manifest.graphs.items()}
        self._weights = folder / WEIGHTS
        self._threads = threads
        self._sessions: dict[str, Graph] = {}
        self._opening = threading.Lock()
        self.has_generate = graph_io.GENERATE in manifest.graphs
        self.has_beam = graph_io.BEAM in manifest.graphs
        for role in [graph_io.GENERATE] if self.has_generate else ["encoder", "decoder"]:
            self._session(role)
        self._cross_out = [t.name for t in graph_io.present_encoder(self._cache)]
        self._cross_in = [t.name for t in graph_io.past_encoder(self._cache)]
        self._past_in = [t.name for t in graph_io.past_decoder(self._cache)]
        self._past_out = [t.name for t in graph_io.present_decoder(self._cache)]
        self._pad_id = manifest.special_ids.pad

    def _session(self, role: str) -> Graph:
        with self._opening:
            if role not in self._sessions:
                self._sessions[role] = Graph(self._files[role], self._specs[role], self._threads)
                release_mapped_pages(self._weights)
            return self._sessions[role]

    def _source(self, rows: Sequence[Sequence[int]]) -> dict[str, Ids]:
        """Inputs of every graph with an encoder: rows padded on the right, and their mask."""
        ids, mask = pad(rows, self._pad_id)
        return {graph_io.INPUT_IDS: ids, graph_io.ATTENTION_MASK: mask}

    def generate(
        self, rows: Sequence[Sequence[int]], max_length: int, return_scores: bool = True
    ) -> Generated:
        """Decode greedily in one call; only if ``has_generate``.

        Args:
            rows: source ids, none of them empty.
            max_length: new tokens at most.
            return_scores: false leaves them out, if the graph can.
        """
        session = self._session(graph_io.GENERATE)
        feeds: dict[str, NDArray[Any]] = {
            **self._source(rows),
            graph_io.MAX_LENGTH: np.array(max_length),
        }
        if not return_scores and session.can_skip_scores:  # the first bundles have no such input
            feeds[graph_io.RETURN_SCORES] = np.array(False)
        found = Generated(*session.run(None, feeds))
        path = self._files[graph_io.GENERATE]
        check_range(path, graph_io.SEQUENCES, found.sequences, self.vocab_size)
        return found

    def beam(
        self, rows: Sequence[Sequence[int]], beam_size: int, num_finished: int, max_length: int
    ) -> BeamRecord:
        """Run a beam search in one call; only if ``has_beam``.

        Args:
            rows: source ids, none of them empty.
            beam_size: hypotheses followed at a time; at most half of the vocabulary.
            num_finished: finished hypotheses that end the search of a sentence.
            max_length: new tokens at most.
        """
        feeds = {
            **self._source(rows),
            graph_io.MAX_LENGTH: np.array(max_length),
            graph_io.BEAM_SIZE: np.array(beam_size),
            graph_io.ENOUGH: np.array(num_finished),
        }
        record = BeamRecord(*self._session(graph_io.BEAM).run(None, feeds))
        path = self._files[graph_io.BEAM]
        check_range(path, "tokens", record.tokens, self.vocab_size)
        check_range(path, "parents", record.parents, beam_size)
        return record

    def encode(self, rows: Sequence[Sequence[int]]) -> DecoderState:
        """Encode rows of source ids, none of them empty, padded here on the right."""
        ids, mask = pad(rows, self._pad_id)
        mask_value = OrtValue.ortvalue_from_numpy(mask)
        feeds = {
            graph_io.INPUT_IDS: OrtValue.ortvalue_from_numpy(ids),
            graph_io.ATTENTION_MASK: mask_value,
        }
        cross = self._session("encoder").run_with_ort_values(self._cross_out, feeds)
        empty = np.zeros((len(rows), self._cache.num_heads, 0, self._cache.head_dim), np.float32)
        past = {name: OrtValue.ortvalue_from_numpy(empty) for name in self._past_in}
        return DecoderState(mask_value, dict(zip(self._cross_in, cross, strict=True)), past)

    def hidden_states(self, rows: Sequence[Sequence[int]]) -> Floats:
        """The encoder's last states, (B, S, E)."""
        found = self._session("encoder").run([graph_io.HIDDEN_STATES], self._source(rows))
        hidden: Floats = found[0]
        return hidden

    @property
    def has_attention(self) -> bool:
        """Whether ``attend`` can be called; the first bundles have no such output."""
        return graph_io.CROSS_ATTENTIONS in self._session("decoder").outputs

    @property
    def has_shortlist(self) -> bool:
        """Whether ``step`` and ``attend`` take candidates; the first bundles cannot."""
        return graph_io.SHORTLIST in self._files

    def step(self, input_ids: Ids, state: DecoderState, candidates: Ids | None = None) -> Floats:
        """Advance by T positions: ids (B, T) to logits (B, T, V); the state moves along.

        Args:
            input_ids: (B, T).
            state: of the batch.
            candidates: (C,) ids to compute logits of; all others get -inf. None for all.
        """
        return self._advance(input_ids, state, [graph_io.LOGITS], candidates)[0]

    def attend(
        self, input_ids: Ids, state: DecoderState, candidates: Ids | None = None
    ) -> tuple[Floats, Floats]:
        """``step``, and the cross-attention weights of it, (B, L, H, T, S); see ``has_attention``.

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
            graph_io.ENCODER_ATTENTION_MASK: state.mask,
            **state.past,
            **state.cross,
        }
        if candidates is not None:
            feeds[graph_io.CANDIDATES] = OrtValue.ortvalue_from_numpy(candidates)
        found = self._session(role).run_with_ort_values([*outputs, *self._past_out], feeds)
        state.past = dict(zip(self._past_in, found[len(outputs) :], strict=True))
        # Views into onnxruntime's memory, which the next call may not overwrite: outputs are
        # allocated anew each time. They live as long as the arrays do.
        values: list[Floats] = [value.numpy() for value in found[: len(outputs)]]
        if candidates is not None:
            logits = np.full((*values[0].shape[:2], self.vocab_size), -np.inf, np.float32)
            logits[:, :, candidates] = values[0]
            values[0] = logits
        return values


def pad(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Ids, Ids]:
    """Pad rows on the right to ids (B, S), with a mask (B, S) of their lengths, 1 = keep."""
    longest = max(len(row) for row in rows)
    ids = np.full((len(rows), longest), pad_id, np.int64)
    mask = np.zeros((len(rows), longest), np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return ids, mask
