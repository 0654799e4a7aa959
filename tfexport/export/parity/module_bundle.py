"""Comparison of a bundle's graphs with the custom module, and of what was recognised of it.

Axes: B batch, S memory, T target, W width of the memory.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tfexport import graph_io
from tfexport.bundle import WEIGHTS, Manifest
from tfexport.export.parity.compare import compare_sequences, compare_tokens, compare_values
from tfexport.export.parity.eager_run import THREADS
from tfexport.export.parity.module import EagerModule, ModuleRun, compare_module
from tfexport.export.parity.search import STEPS, Search, beam_size, compare_search
from tfexport.export.report import (
    ALIGNMENT,
    DECODER_OF_STATES,
    NATIVE,
    NATIVE_TOKENS,
    TOKEN_STAGES,
    Comparison,
    ParityReport,
)
from tfexport.export.rounding import log_probs
from tfexport.model_src.build import build_decoder, build_encoder
from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.transformer import Transformer
from tfexport.module_rows import Array
from tfexport.runtime.model.interface import Model
from tfexport.runtime.model.native_decoder import NativeDecoder
from tfexport.runtime.model.native_engine import why_not_native
from tfexport.runtime.model.onnxruntime_model import ModuleModel
from tfexport.runtime.search import greedy
from tfexport.typing import Progress
from tfexport.weight_table import read_weight_table


class ComparedModel(ModuleModel):
    """The graphs of a bundle; the weights of ``weights.json`` as our own modules, read once."""

    @functools.cached_property
    def stored_decoder(self) -> Transformer:
        """The recognised decoder."""
        config = TransformerConfig.from_dict(self.manifest.transformer or {})
        decoder = build_decoder(config, int(self.manifest.states[0].axes[-1])).eval()
        decoder.load_state_dict(self._stored(of_layers=False), assign=True)
        return decoder

    @functools.cached_property
    def stored_layers(self) -> nn.Module:
        """The layers of the recognised encoder."""
        assert self.manifest.embedded_encoder is not None
        config, _ = self.manifest.embedded_encoder
        layers = build_encoder(TransformerConfig.from_dict(config)).eval()
        layers.load_state_dict(self._stored(of_layers=True), assign=True)
        return layers

    def _stored(self, of_layers: bool) -> dict[str, Tensor]:
        file = np.memmap(self.folder / WEIGHTS, np.uint8, "r")
        table = read_weight_table(self.folder, file.size)
        return {
            name: torch.tensor(weight.values(file))
            for name, weight in table.items()
            if name.startswith("encoder.") == of_layers
        }

    def attended(self, run: ModuleRun) -> tuple[Tensor, Tensor]:
        """The memory of a recognised decoder, (B, S, W), and which of it is kept, (B, S)."""

        def compute() -> tuple[Tensor, Tensor]:
            if self.manifest.embedded_encoder is not None:
                states = self.stored_layers(torch.from_numpy(self.embeddings(run.rows)))
                return states, torch.ones(states.shape[:2], dtype=torch.int64)
            states, kept = map(torch.from_numpy, self.states(run.rows))
            return states, kept.long()

        return run.once(f"attended in {self.folder}", run.tokens, compute)


CompareModule = Callable[[EagerModule, ModuleRun, ComparedModel], Iterable[Comparison]]


def compare_memory(_eager: EagerModule, run: ModuleRun, model: ModuleModel) -> Iterator[Comparison]:
    """Compare the encoder's memory, for rows of one shape."""
    if run.memory is None:
        return
    state = model.encode(run.rows)
    tensors = zip(state.memory.values(), zip(*run.memory, strict=True), strict=True)
    for (value, of_rows), noise in zip(tensors, run.noise.hidden, strict=True):
        eager = torch.cat(of_rows).float().numpy()
        yield compare_values("memory", run.shape, value.numpy().astype(np.float32), eager, noise)


def compare_steps(_eager: EagerModule, run: ModuleRun, model: ModuleModel) -> Iterator[Comparison]:
    """Compare the logits of every step, and the tokens of greedy search."""
    state = model.encode(run.rows)
    steps = [model.step(run.prefix[:, t : t + 1], state).copy() for t in range(run.steps)]
    cached, noise = np.concatenate(steps, axis=1), run.noise.logits
    yield compare_values("cached steps", run.shape, cached, run.logits, noise)
    whole = model.step(run.prefix, model.encode(run.rows))
    yield compare_values("full prefix", run.shape, whole, run.logits, noise)
    found = greedy(model, run.rows, run.steps, run.special_ids.decoder_start, run.special_ids.eos)
    yield compare_tokens(run, [hypothesis.tokens for hypothesis in found])


def compare_states(
    _eager: EagerModule, run: ModuleRun, model: ComparedModel
) -> Iterator[Comparison]:
    """Compare what the weights of ``weights.json`` make of the states, in our own modules."""
    states, kept = model.attended(run)
    prefix = torch.from_numpy(run.prefix)
    made = model.stored_decoder(states, kept, prefix, torch.ones_like(prefix))
    yield _compare_log_probs(DECODER_OF_STATES, run, made)


def compare_alignment(
    eager: EagerModule, run: ModuleRun, model: ComparedModel
) -> Iterator[Comparison]:
    """Compare the attention by which words get their times with that of the user's module."""
    yield _compare_heads(ALIGNMENT, eager, run, model, model.manifest)


def _compare_heads(
    stage: str, eager: EagerModule, run: ModuleRun, model: Model, manifest: Manifest
) -> Comparison:
    """Compare attention of the heads of a manifest, (K, T, S) of each row, in either engine."""
    heads, rows = manifest.alignment_heads, zip(run.rows, run.prefix, strict=True)
    made = [model.alignment(row, [*prefix], heads) for row, prefix in rows]
    both = made, eager.alignment(run, heads, made)
    ours, theirs = (np.concatenate([each.ravel() for each in of_rows]) for of_rows in both)
    return compare_values(stage, run.shape, ours, theirs, run.noise.log_probs)


def _compare_log_probs(stage: str, run: ModuleRun, logits: Tensor) -> Comparison:
    """Compare logits (B, T, V) of which the user's may be log-probabilities."""
    found, wanted = (log_probs(each).numpy() for each in (logits, torch.from_numpy(run.logits)))
    return compare_values(stage, run.shape, found, wanted, run.noise.log_probs)


def _compare_native(
    eager: EagerModule, run: ModuleRun, model: NativeDecoder, manifest: Manifest
) -> Iterator[Comparison]:
    """Compare the native engine: log-probabilities of every step, a greedy search, attention."""
    state = model.encode(run.rows)
    steps = [model.step(run.prefix[:, t : t + 1], state) for t in range(run.steps)]
    yield _compare_log_probs(NATIVE, run, torch.from_numpy(np.concatenate(steps, axis=1)))
    made = model.generate(run.rows, run.steps)
    for each in compare_sequences(eager.decode_by_rules(run), made.sequences, made.scores):
        yield replace(each, stage=NATIVE_TOKENS if each.stage in TOKEN_STAGES else NATIVE)
    if graph_io.ALIGNMENT in manifest.graphs:
        yield _compare_heads(NATIVE, eager, run, model, manifest)


def compare_module_generate(
    eager: EagerModule, run: ModuleRun, model: ModuleModel
) -> Iterator[Comparison]:
    """Compare tokens and scores of a greedy search, by the model's own rules."""
    made = model.generate(run.rows, run.steps)
    yield from compare_sequences(eager.decode_by_rules(run), made.sequences, made.scores)


def compare_module_beam(
    eager: EagerModule, run: ModuleRun, model: ModuleModel
) -> Iterator[Comparison]:
    """Compare a beam search."""
    search, beams = Search(model, run.rows, min(STEPS, eager.steps)), beam_size(model)
    yield from compare_search(search, run, eager.scorer(run.rows, beams), eager.rounding)


def compare_module_bundle(
    eager: EagerModule,
    bundle: tuple[Path, Manifest],
    comparisons: Sequence[CompareModule],
    examples: Sequence[Mapping[str, Array]],
    progress: Progress,
) -> ParityReport:
    """``compare_module`` of the graphs of a bundle, each with its own comparison.

    Args:
        eager: the module.
        bundle: the folder of the bundle and its manifest.
        comparisons: the comparison of each graph.
        examples: rows of real data.
        progress: called after every batch.
    """
    model = ComparedModel(*bundle, THREADS)
    runs_decoder = model.manifest.states and not why_not_native(model.manifest)
    native = NativeDecoder(*bundle, THREADS) if runs_decoder else None

    def compare(run: ModuleRun) -> Iterator[Comparison]:
        for compare_graph in comparisons:
            yield from compare_graph(eager, run, model)
        if native is not None:
            yield from _compare_native(eager, run, native, model.manifest)

    return compare_module(eager, compare, examples, progress)
