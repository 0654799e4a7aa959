"""The comparison of the native engine, where it is installed, with eager PyTorch.

The engine reads the weights that the graphs read, so that one bundle is proven for both.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tfexport.export.parity.beam import compare_beams
from tfexport.export.parity.bundle import OpenBundle
from tfexport.export.parity.compare import compare_logits, compare_sequences, compare_values
from tfexport.export.parity.eager_run import Eager, EagerRun
from tfexport.export.parity.generate import eager_attention
from tfexport.export.parity.report import NATIVE, NATIVE_TOKENS, TOKEN_STAGES, Comparison
from tfexport.export.parity.slots import compare_running_rows
from tfexport.runtime.model.native_model import NativeModel


def compare_native(eager: Eager, run: EagerRun, bundle: OpenBundle) -> Iterator[Comparison]:
    """Compare states, logits, attention, tokens and beams; nothing without the engine."""
    if bundle.native is None:
        return
    for stages in (_compare_steps, _compare_searches):
        for found in stages(eager, run, bundle.native):
            stage = NATIVE_TOKENS if found.stage in TOKEN_STAGES else NATIVE
            yield replace(found, stage=stage)


def _compare_steps(eager: Eager, run: EagerRun, model: NativeModel) -> Iterator[Comparison]:
    """States, logits of cached steps and of rows that enter at any step, attention."""
    rows, prefix = run.case.rows, run.prefix
    keep = run.case.mask.numpy().astype(bool)
    states = model.hidden_states(rows)
    expected, noise = run.hidden.numpy()[keep], run.noise.logits
    yield compare_values("states", run.shape, states[keep], expected, run.noise.hidden[0])
    state = model.encode(rows)
    steps = [model.step(prefix[:, t : t + 1], state) for t in range(prefix.shape[1])]
    cached = np.concatenate(steps, axis=1)
    yield compare_logits(eager, "steps", run.shape, cached, run.logits, noise)
    full, weights = model.attend(prefix, model.encode(rows))
    yield compare_logits(eager, "steps", run.shape, full, run.logits, noise)
    yield compare_values("attention", run.shape, weights, *eager_attention(eager, run))
    yield from compare_running_rows(eager, run, model)


def _compare_searches(eager: Eager, run: EagerRun, model: NativeModel) -> Iterator[Comparison]:
    """Tokens and scores of greedy search, and the record of a beam search."""
    ruled = eager.decode_by_rules(run)
    made = model.generate(run.case.rows, ruled.tokens.shape[1])
    yield from compare_sequences(ruled, made.sequences, made.scores)
    yield from compare_beams(eager, run, model)
