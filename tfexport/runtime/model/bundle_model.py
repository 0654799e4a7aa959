"""The graphs of a bundle: generate in one call, or encode and step with the caches in between.

Caches stay inside onnxruntime. Axes: B batch, S source, T target, P past, H heads, D head size, V
vocabulary.
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
from tfexport.runtime.model.mapped_memory import give_back
from tfexport.runtime.model.session import Graph, check_onnxruntime

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]


class DecoderState:
    """A batch of R decoder rows, each with all that belongs to it.

    ``select`` is the only way to change which rows there are, and moves mask, cross-attention cache
    and self-attention cache of a row together: no row can come to see another's source.

    Attributes:
        sources: (R,), which of the encoded rows each row attends to. Whatever else belongs to a
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
        """Make the batch of these rows, in this order; a row may come several times, or not.

        What a place holds already is not copied: neither sources that stay where they are, nor the
        past of rows that do.
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
            # The state's own memory, which onnxruntime allocated for one output and will not reuse.
            values = value.numpy()
            values[moved] = values[rows[moved]]


def _take(value: OrtValue, rows: NDArray[np.intp]) -> OrtValue:
    return OrtValue.ortvalue_from_numpy(value.numpy()[rows])


class Generated(NamedTuple):
    """What a generate graph gives.

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
    """What a beam search chose among: (T, B, N) each, N candidates of each step, best first.

    Attributes:
        tokens: which token each is.
        parents: which of the hypotheses that are followed it continues.
        log_probs: of the token alone.
    """

    tokens: Ids
    parents: Ids
    log_probs: Floats


class Model:
    """A bundle's graphs. Safe to share between threads: state is the caller's.

    A graph is opened when it is first needed, since each open one holds memory of its own; the one
    that plain decoding needs is opened at once, so that a file that does not load is known early.
    """

    def __init__(self, folder: Path, manifest: Manifest, threads: int = 0) -> None:
        config, self.vocab_size = manifest.config, manifest.limits.target_vocab_size
        self._cache = graph_io.CacheShape(
            config["num_decoder_layers"], config["num_heads"], config["head_dim"]
        )
        self._specs = {
            "encoder": graph_io.encoder_graph(self._cache, config["d_model"]),
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
                give_back(self._weights)
            return self._sessions[role]

    def _source(self, rows: Sequence[Sequence[int]]) -> dict[str, Ids]:
        """What every graph with an encoder takes: rows padded on the right, and their mask."""
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
        self, rows: Sequence[Sequence[int]], beam_size: int, enough: int, max_length: int
    ) -> BeamRecord:
        """Run a beam search in one call; only if ``has_beam``.

        Args:
            rows: source ids, none of them empty.
            beam_size: hypotheses followed at a time; at most half of the vocabulary.
            enough: finished hypotheses with which a sentence is done.
            max_length: new tokens at most.
        """
        feeds = {
            **self._source(rows),
            graph_io.MAX_LENGTH: np.array(max_length),
            graph_io.BEAM_SIZE: np.array(beam_size),
            graph_io.ENOUGH: np.array(enough),
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
    """Rows to ids (B, S) padded on the right, and a mask (B, S) from their lengths, 1 = keep."""
    longest = max(len(row) for row in rows)
    ids = np.full((len(rows), longest), pad_id, np.int64)
    mask = np.zeros((len(rows), longest), np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return ids, mask
