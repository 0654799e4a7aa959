"""Comparison of a bundle with eager PyTorch, step by step, for its graphs and the native engine."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch

from tfexport.export.parity.compare import (
    compare_logits,
    compare_sequences,
    compare_tokens,
    compare_values,
)
from tfexport.export.parity.eager_run import EagerRun, Floats
from tfexport.export.parity.opened import OpenBundle, unpadded
from tfexport.export.parity.search import compare_beams, eager_attention
from tfexport.export.report import NATIVE, NATIVE_TOKENS, TOKEN_STAGES, Comparison
from tfexport.runtime.model.interface import Model
from tfexport.runtime.model.native_decoder import NativeDecoder
from tfexport.runtime.model.native_model import NativeModel
from tfexport.runtime.search import greedy, truncate_at_eos


def compare_encoder(run: EagerRun, bundle: OpenBundle) -> Iterator[Comparison]:
    """Compare what the encoder gives: states of a Transformer, or the memory of a module.

    Rows of a module whose memory is longer in a batch are left out.
    """
    if run.memory is None:
        return
    stage = "encoder states" if bundle.manifest.module is None else "memory"
    tensors = zip(bundle.memory(run), zip(*run.memory, strict=True), strict=True)
    for (ours, of_rows), noise in zip(tensors, run.noise.hidden, strict=True):
        theirs = torch.cat(of_rows).float().numpy()
        yield compare_values(stage, run.shape, ours, theirs, noise)


def compare_decoder(run: EagerRun, bundle: OpenBundle) -> Iterator[Comparison]:
    """Compare logits of a full prefix and of cached steps, attention, and tokens of a search."""
    model, ids, noise = bundle.model, run.special_ids, run.noise.logits
    if model.has_attention:
        full, weights = model.attend(run.prefix, model.encode(run.rows))
        yield compare_values("attention", run.shape, weights, *eager_attention(run))
        yield compare_logits(run, "full prefix", full, run.logits, noise)
    yield compare_logits(run, "cached steps", cached_steps(run, model), run.logits, noise)
    if not model.has_attention:
        full = model.step(run.prefix, model.encode(run.rows))
        yield compare_logits(run, "full prefix", full, run.logits, noise)
    hypotheses = greedy(model, run.rows, run.steps, ids.decoder_start, ids.eos)
    yield compare_tokens(run, [hypothesis.tokens for hypothesis in hypotheses])


def cached_steps(run: EagerRun, model: Model) -> Floats:
    """The logits (B, T, V) of an engine that gets the prefix token by token."""
    state = model.encode(run.rows)
    steps = [model.step(run.prefix[:, t : t + 1], state).copy() for t in range(run.steps)]
    return np.concatenate(steps, axis=1)


def compare_shortlist(run: EagerRun, bundle: OpenBundle) -> Iterator[Comparison]:
    """Compare shortlist logits, with every third token as a candidate."""
    some = np.arange(0, run.logits.shape[-1], 3)
    short = bundle.model.step(run.prefix, bundle.model.encode(run.rows), some)
    expected = run.logits[:, :, some]
    found, noise = short[:, :, some], run.noise.logits
    yield compare_logits(run, "shortlist", found, expected, noise)


def compare_slots(run: EagerRun, bundle: OpenBundle) -> Iterator[Comparison]:
    """Compare logits and best tokens of running rows, one of which is added before each step.

    A row is removed after as many steps as eager PyTorch took; the last row moves to the first
    slot.
    """
    yield from compare_running_rows(run, bundle.model)


def compare_running_rows(run: EagerRun, model: Model) -> Iterator[Comparison]:
    """``compare_slots`` for any engine."""
    slots = model.running_rows(len(run.rows))
    logits = np.zeros_like(run.logits)
    best = np.zeros_like(run.tokens)
    steps, running, waiting = run.steps, list[int](), list(range(len(run.rows)))
    counts = np.zeros(len(run.rows), np.int64)
    while running or waiting:
        if waiting:
            row = waiting.pop(0)
            slots.enter([run.rows[row]])
            running.append(row)
        found, of_all = slots.step(run.prefix[running, counts[running]], return_logits=True)
        logits[running, counts[running]] = of_all
        best[running, counts[running]] = found
        counts[running] += 1
        kept = [place for place, row in enumerate(running) if counts[row] < steps]
        if len(kept) < len(running):
            kept = kept[-1:] + kept[:-1]
            slots.select(np.array(kept, np.intp))
            running = [running[place] for place in kept]
    yield compare_logits(run, "slots", logits, run.logits, run.noise.logits)
    allowed = run.logits + run.eager.rules.bias(run.logits.shape[-1]).numpy()
    by_rules = replace(run, tokens=allowed.argmax(-1), logits=allowed)
    rows = [truncate_at_eos(row, run.special_ids.eos) for row in best.tolist()]
    yield compare_tokens(by_rules, rows, "slots")


# The native engine reads the weights of the same bundle, so every bundle is also compared in it.


def compare_native(run: EagerRun, bundle: OpenBundle) -> Iterator[Comparison]:
    """Compare the native engine in the same stages, where it runs the whole model of the bundle."""
    model = bundle.native
    if model is None or isinstance(model, NativeDecoder):
        return
    for stages in (_compare_steps, _compare_searches):
        yield from as_native(stages(run, model))


def as_native(comparisons: Iterable[Comparison]) -> Iterator[Comparison]:
    """Comparisons as those of the native engine."""
    for each in comparisons:
        yield replace(each, stage=NATIVE_TOKENS if each.stage in TOKEN_STAGES else NATIVE)


def _compare_steps(run: EagerRun, model: NativeModel) -> Iterator[Comparison]:
    """Compare encoder states, logits of cached steps and of running rows, and attention."""
    assert run.memory is not None
    ours = unpadded(model.hidden_states(run.rows), run.rows)
    theirs = torch.cat([tensors[0] for tensors in run.memory]).numpy()
    yield compare_values("states", run.shape, ours, theirs, run.noise.hidden[0])
    noise = run.noise.logits
    yield compare_logits(run, "steps", cached_steps(run, model), run.logits, noise)
    full, weights = model.attend(run.prefix, model.encode(run.rows))
    yield compare_logits(run, "steps", full, run.logits, noise)
    yield compare_values("attention", run.shape, weights, *eager_attention(run))
    yield from compare_running_rows(run, model)


def _compare_searches(run: EagerRun, model: NativeModel) -> Iterator[Comparison]:
    """Compare tokens and scores of greedy search, and the candidates of a beam search."""
    made = model.generate(run.rows, run.steps)
    yield from compare_sequences(run.by_rules, made.sequences, made.scores)
    yield from compare_beams(run, model)
