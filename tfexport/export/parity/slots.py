"""The comparison of a bundle's graph of single steps with eager PyTorch."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tfexport.export.parity.bundle import OpenBundle
from tfexport.export.parity.compare import compare_logits, compare_tokens
from tfexport.export.parity.eager_run import Eager, EagerRun
from tfexport.export.parity.report import Comparison
from tfexport.runtime.model.interface import Model
from tfexport.runtime.search import truncate_at_eos


def compare_slots(eager: Eager, run: EagerRun, bundle: OpenBundle) -> Iterator[Comparison]:
    """Compare logits and best tokens of rows that enter one step after another.

    A row leaves where it has taken as many steps as eager PyTorch, and the last row takes its slot.
    """
    yield from compare_running_rows(eager, run, bundle.model)


def compare_running_rows(eager: Eager, run: EagerRun, model: Model) -> Iterator[Comparison]:
    """``compare_slots`` in any engine."""
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
