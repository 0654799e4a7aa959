"""Eager PyTorch against what torch itself loads: TorchScript and torch.export programs."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from tfexport.export.parity.eager_run import Case, Progress, eager_greedy, grid, random_case, walk
from tfexport.export.parity.forward import random_inputs
from tfexport.export.parity.report import (
    Comparison,
    ParityReport,
    compare_tokens,
    compare_values,
)
from tfexport.export.reference import Reference, build_reference
from tfexport.model_src.checkpoint.read import Checkpoint
from tfexport.model_src.config import TransformerConfig
from tfexport.runtime.search import truncate_at_eos

Generate = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


def compare_torchscript(
    module: Any, checkpoint: Checkpoint, progress: Progress | None = None
) -> ParityReport:
    """Run eager PyTorch beside a loaded TorchScript module, method by method.

    Args:
        module: with the methods of ``torch_modules.GreedyModule``, or of ``TransformerModule``.
        checkpoint: what it was exported from.
        progress: told after every shape.
    """
    config = checkpoint.config
    model = checkpoint.build()
    reference = build_reference(checkpoint, model)
    report = ParityReport(reference.title)
    for shape in walk(grid(config), progress):
        with torch.no_grad():
            inputs = random_inputs(config, *shape)
            source, mask, target, target_mask = inputs
            expected = reference.decode(reference.encode(source, mask), mask, target).numpy()
            keep = target_mask.bool().numpy()  # what stands at padding means nothing
            scores = module(*inputs).numpy()
            report.comparisons.append(
                compare_values("forward", shape, scores[keep], expected[keep])
            )
            if config.has_embeddings:
                case = random_case(config, *shape)
                report.comparisons.extend(_compare_methods(case, config, reference, module))
    return report


def compare_program(
    generate: Generate, checkpoint: Checkpoint, progress: Progress | None = None
) -> ParityReport:
    """Run eager PyTorch beside a loaded torch.export program.

    Args:
        generate: (input_ids, attention_mask, max_length) to sequences.
        checkpoint: what it was exported from.
        progress: told after every shape.
    """
    reference = build_reference(checkpoint, checkpoint.build())
    report = ParityReport(reference.title)
    for shape in walk(grid(checkpoint.config), progress):
        case = random_case(checkpoint.config, *shape)
        hidden = reference.encode(case.ids, case.mask)
        tokens, eager = eager_greedy(case, checkpoint.config, reference, hidden)
        report.comparisons.append(
            _compare_generate(case, checkpoint.config, generate, tokens, eager)
        )
    return report


def _compare_methods(
    case: Case, config: TransformerConfig, reference: Reference, module: Any
) -> Iterator[Comparison]:
    hidden = reference.encode(case.ids, case.mask)
    tokens, eager = eager_greedy(case, config, reference, hidden)
    start = np.full((len(case.rows), 1), config.bos_id)
    prefix = torch.from_numpy(np.concatenate([start, tokens[:, :-1]], axis=1))
    keep = case.mask.numpy().astype(bool)
    states, cross = module.encode(case.ids, case.mask)
    yield compare_values("encoder states", case.shape, states.numpy()[keep], hidden.numpy()[keep])
    full, _ = module.step(prefix, [], cross, case.mask)
    yield compare_values("full prefix", case.shape, full.numpy(), eager)
    past: list[torch.Tensor] = []
    steps = []
    for t in range(prefix.size(1)):
        logits, past = module.step(prefix[:, t : t + 1], past, cross, case.mask)
        steps.append(logits.numpy())
    yield compare_values("cached steps", case.shape, np.concatenate(steps, axis=1), eager)
    yield _compare_generate(case, config, module.generate, tokens, eager)


def _compare_generate(
    case: Case, config: TransformerConfig, generate: Generate, tokens: Any, eager: Any
) -> Comparison:
    assert config.eos_id is not None
    with torch.no_grad():
        sequences = generate(case.ids, case.mask, tokens.shape[1])
    rows = [truncate_at_eos(row, config.eos_id) for row in sequences.tolist()]
    return compare_tokens(case, rows, tokens, eager, config.eos_id, stage="generate")
