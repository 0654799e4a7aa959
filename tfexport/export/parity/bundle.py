"""Eager PyTorch against a bundle, stage by stage, over a grid of shapes."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from tfexport.bundle import Manifest
from tfexport.export.parity.beam import compare_beam
from tfexport.export.parity.eager_run import (
    THREADS,
    Case,
    Progress,
    eager_greedy,
    grid,
    random_case,
    walk,
)
from tfexport.export.parity.generate import attention_weights, compare_generated
from tfexport.export.parity.report import (
    Comparison,
    ParityReport,
    compare_tokens,
    compare_values,
)
from tfexport.export.reference import ModuleReference, Reference, build_reference
from tfexport.model_src.checkpoint.read import Checkpoint
from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.transformer import Transformer
from tfexport.runtime.model.bundle_model import Model
from tfexport.runtime.search import greedy


def compare_bundle(
    folder: Path, manifest: Manifest, checkpoint: Checkpoint, progress: Progress | None = None
) -> ParityReport:
    """Run eager PyTorch beside a bundle.

    Args:
        folder: the bundle's files, already checked.
        manifest: of the bundle.
        checkpoint: what the bundle was exported from.
        progress: told after every shape.
    """
    config = checkpoint.config
    model = checkpoint.build()
    reference = build_reference(checkpoint, model)
    runtime = Model(folder, manifest, THREADS)
    report = ParityReport(reference.title)
    for shape in walk(grid(config), progress):
        case = random_case(config, *shape)
        report.comparisons.extend(_compare_case(case, config, model, reference, runtime))
    return report


def _compare_case(
    case: Case,
    config: TransformerConfig,
    model: Transformer,
    reference: Reference,
    runtime: Model,
) -> Iterator[Comparison]:
    assert config.bos_id is not None
    assert config.eos_id is not None
    hidden = reference.encode(case.ids, case.mask)
    tokens, eager = eager_greedy(case, config, reference, hidden)
    prefix = np.concatenate([np.full((len(case.rows), 1), config.bos_id), tokens[:, :-1]], axis=1)

    if not isinstance(reference, ModuleReference):
        with torch.no_grad():
            ours = model(case.ids, case.mask, torch.from_numpy(prefix), torch.ones(prefix.shape))
        yield compare_values("eager modules", case.shape, ours.numpy(), eager)
    keep = case.mask.numpy().astype(bool)
    states = runtime.hidden_states(case.rows)
    yield compare_values("encoder states", case.shape, states[keep], hidden.numpy()[keep])
    if runtime.has_attention:
        full, weights = runtime.attend(prefix, runtime.encode(case.rows))
        expected = attention_weights(case, model, tokens)
        yield compare_values("attention", case.shape, weights, expected)
    else:
        full = runtime.step(prefix, runtime.encode(case.rows))
    yield compare_values("full prefix", case.shape, full, eager)
    if runtime.has_shortlist:
        some = np.arange(0, eager.shape[-1], 3)
        short = runtime.step(prefix, runtime.encode(case.rows), some)
        yield compare_values("shortlist", case.shape, short[:, :, some], eager[:, :, some])
    state = runtime.encode(case.rows)
    steps = [runtime.step(prefix[:, t : t + 1], state).copy() for t in range(prefix.shape[1])]
    yield compare_values("cached steps", case.shape, np.concatenate(steps, axis=1), eager)

    found = greedy(runtime, case.rows, prefix.shape[1], config.bos_id, config.eos_id)
    yield compare_tokens(case, [h.tokens for h in found], tokens, eager, config.eos_id)
    if runtime.has_generate:
        made = runtime.generate(case.rows, prefix.shape[1])
        yield from compare_generated(case, model, made, tokens, eager)
    yield from compare_beam(case, config, reference, hidden, runtime)
