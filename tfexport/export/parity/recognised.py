"""Comparison of what was recognised of a module with the module, in both engines.

Axes: B batch, K heads, S memory, T target, V vocabulary.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from tfexport import graph_io
from tfexport.bundle import Manifest
from tfexport.export.parity.compare import compare_sequences, compare_values
from tfexport.export.parity.eager_run import EagerRun
from tfexport.export.parity.module import EagerUserModule
from tfexport.export.parity.opened import OpenBundle
from tfexport.export.parity.steps import as_native, cached_steps
from tfexport.export.report import ALIGNMENT, DECODER_OF_STATES, NATIVE, Comparison
from tfexport.export.rounding import log_probs
from tfexport.runtime.model.interface import Model
from tfexport.runtime.model.native_decoder import NativeDecoder


def compare_states(run: EagerRun, bundle: OpenBundle) -> Iterator[Comparison]:
    """Compare what the weights of ``weights.json`` make of the states, in our own modules."""
    states, kept = bundle.attended(run)
    prefix = torch.from_numpy(run.prefix)
    made = bundle.stored_decoder(states, kept, prefix, torch.ones_like(prefix))
    yield _compare_log_probs(DECODER_OF_STATES, run, made)


def compare_alignment(run: EagerRun, bundle: OpenBundle) -> Iterator[Comparison]:
    """Compare the attention of the graph with that of the user's module."""
    yield _compare_heads(ALIGNMENT, run, bundle.model, bundle.manifest)


def compare_native_decoder(run: EagerRun, bundle: OpenBundle) -> Iterator[Comparison]:
    """Compare the native engine where it runs a recognised decoder.

    These are log-probabilities of every step, a greedy search, and attention.
    """
    model = bundle.native
    if not isinstance(model, NativeDecoder):
        return
    yield _compare_log_probs(NATIVE, run, torch.from_numpy(cached_steps(run, model)))
    made = model.generate(run.rows, run.steps)
    yield from as_native(compare_sequences(run.by_rules, made.sequences, made.scores))
    of_states = bundle.manifest.attention_shape is None  # otherwise by the graph, as compared
    if graph_io.ALIGNMENT in bundle.manifest.graphs and of_states:
        yield _compare_heads(NATIVE, run, model, bundle.manifest)


def _compare_heads(stage: str, run: EagerRun, model: Model, manifest: Manifest) -> Comparison:
    """Compare attention of the heads of a manifest, (K, T, S) of each row, in either engine."""
    eager = run.eager
    assert isinstance(eager, EagerUserModule)
    heads, rows = manifest.alignment_heads, zip(run.rows, run.prefix, strict=True)
    made = [model.alignment(row, [*prefix], heads) for row, prefix in rows]
    both = made, eager.alignment(run, heads, made)
    ours, theirs = (np.concatenate([each.ravel() for each in of_rows]) for of_rows in both)
    return compare_values(stage, run.shape, ours, theirs, run.noise.log_probs)


def _compare_log_probs(stage: str, run: EagerRun, logits: Tensor) -> Comparison:
    """Compare logits (B, T, V) of which the user's may be log-probabilities."""
    ours, theirs = (log_probs(each).numpy() for each in (logits, torch.from_numpy(run.logits)))
    return compare_values(stage, run.shape, ours, theirs, run.noise.log_probs)
