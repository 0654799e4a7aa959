"""Comparison of a bundle with eager PyTorch, step by step, for its graphs and the native engine."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tfexport.export.parity.bundle import OpenBundle
from tfexport.export.parity.compare import (
    compare_logits,
    compare_sequences,
    compare_tokens,
    compare_values,
)
from tfexport.export.parity.eager_run import Eager, EagerRun
from tfexport.export.parity.search import compare_beams, eager_attention
from tfexport.export.report import NATIVE, NATIVE_TOKENS, TOKEN_STAGES, Comparison
from tfexport.runtime.model.interface import Model
from tfexport.runtime.model.native_model import NativeModel
from tfexport.runtime.search import greedy, truncate_at_eos


def compare_encoder(_eager: Eager, run: EagerRun, bundle: OpenBundle) -> Iterator[Comparison]:
    """Compare encoder states at positions that are not padding."""
    keep = run.case.mask.numpy().astype(bool)
    states = bundle.model.hidden_states(run.case.rows)
    expected = run.hidden.numpy()[keep]
    yield compare_values("encoder states", run.shape, states[keep], expected, run.noise.hidden[0])


def compare_decoder(eager: Eager, run: EagerRun, bundle: OpenBundle) -> Iterator[Comparison]:
    """Compare logits of a full prefix, logits of cached steps, and the tokens of greedy search."""
    model, rows, prefix = bundle.model, run.case.rows, run.prefix
    full, weights = model.attend(prefix, model.encode(rows))
    yield compare_values("attention", run.shape, weights, *eager_attention(eager, run))
    noise = run.noise.logits
    yield compare_logits(eager, "full prefix", run.shape, full, run.logits, noise)
    state = model.encode(rows)
    steps = [model.step(prefix[:, t : t + 1], state).copy() for t in range(prefix.shape[1])]
    cached = np.concatenate(steps, axis=1)
    yield compare_logits(eager, "cached steps", run.shape, cached, run.logits, noise)
    ids = run.special_ids
    found = greedy(model, rows, prefix.shape[1], ids.decoder_start, ids.eos)
    yield compare_tokens(run, [hypothesis.tokens for hypothesis in found])


def compare_shortlist(eager: Eager, run: EagerRun, bundle: OpenBundle) -> Iterator[Comparison]:
    """Compare shortlist logits, with every third token as a candidate."""
    some = np.arange(0, run.logits.shape[-1], 3)
    short = bundle.model.step(run.prefix, bundle.model.encode(run.case.rows), some)
    expected = run.logits[:, :, some]
    found, noise = short[:, :, some], run.noise.logits
    yield compare_logits(eager, "shortlist", run.shape, found, expected, noise)


def compare_slots(eager: Eager, run: EagerRun, bundle: OpenBundle) -> Iterator[Comparison]:
    """Compare logits and best tokens of running rows, one of which is added before each step.

    A row is removed after as many steps as eager PyTorch took; the last row moves to the first
    slot.
    """
    yield from compare_running_rows(eager, run, bundle.model)


def compare_running_rows(eager: Eager, run: EagerRun, model: Model) -> Iterator[Comparison]:
    """``compare_slots`` for any engine."""
    slots = model.running_rows(len(run.case.rows))
    logits = np.zeros_like(run.logits)
    best = np.zeros_like(run.tokens)
    steps, running, waiting = run.prefix.shape[1], list[int](), list(range(len(run.case.rows)))
    counts = np.zeros(len(run.case.rows), np.int64)
    while running or waiting:
        if waiting:
            row = waiting.pop(0)
            slots.enter([run.case.rows[row]])
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
    yield compare_logits(eager, "slots", run.shape, logits, run.logits, run.noise.logits)
    allowed = run.logits + eager.rules.bias(run.logits.shape[-1]).numpy()
    by_rules = replace(run, tokens=allowed.argmax(-1), logits=allowed)
    rows = [truncate_at_eos(row, run.special_ids.eos) for row in best.tolist()]
    yield compare_tokens(by_rules, rows, "slots")


# The native engine reads the weights of the same bundle, so every bundle is also compared in it.


def compare_native(eager: Eager, run: EagerRun, bundle: OpenBundle) -> Iterator[Comparison]:
    """Compare the native engine in the same stages; skipped where it cannot run the bundle."""
    if bundle.native is None:
        return
    for stages in (_compare_steps, _compare_searches):
        for found in stages(eager, run, bundle.native):
            stage = NATIVE_TOKENS if found.stage in TOKEN_STAGES else NATIVE
            yield replace(found, stage=stage)


def _compare_steps(eager: Eager, run: EagerRun, model: NativeModel) -> Iterator[Comparison]:
    """Compare encoder states, logits of cached steps and of running rows, and attention."""
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
    """Compare tokens and scores of greedy search, and the candidates of a beam search."""
    ruled = eager.decode_by_rules(run)
    made = model.generate(run.case.rows, ruled.tokens.shape[1])
    yield from compare_sequences(ruled, made.sequences, made.scores)
    yield from compare_beams(eager, run, model)
