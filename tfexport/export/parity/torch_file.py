"""The comparison of TorchScript and torch.export programs with eager PyTorch."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from tfexport.export.parity.bundle import compare_modules
from tfexport.export.parity.compare import compare_logits, compare_tokens, compare_values
from tfexport.export.parity.eager_run import Case, Eager, EagerRun, Shape, run_grid
from tfexport.export.parity.forward import eager_forward, forward_inputs
from tfexport.export.parity.plan import Plan
from tfexport.export.report import Comparison, ParityReport
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.runtime.search import truncate_at_eos

Generate = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


def compare_torchscript(
    module: Any, checkpoint: Checkpoint, plan: Plan | None = None
) -> ParityReport:
    """Compare a loaded TorchScript module with eager PyTorch, method by method.

    Args:
        module: with the methods of ``torch_programs.GreedyModule``, or of ``TransformerModule``.
        checkpoint: from which it was exported.
        plan: of what is compared.
    """

    def compare(eager: Eager, batch: Shape | Case) -> Iterator[Comparison]:
        yield _compare_forward(eager, batch, module)
        if eager.config.has_embeddings:
            yield from _compare_methods(eager, eager.run(batch), module)

    return run_grid(checkpoint, compare, plan)


def compare_program(
    generate: Generate, checkpoint: Checkpoint, plan: Plan | None = None
) -> ParityReport:
    """Compare a loaded torch.export program with eager PyTorch.

    Args:
        generate: (input_ids, attention_mask, max_length) to sequences.
        checkpoint: from which it was exported.
        plan: of what is compared.
    """

    def compare(eager: Eager, batch: Shape | Case) -> Iterator[Comparison]:
        run = eager.run(batch)
        if eager.runs_own_code:
            yield from compare_modules(eager, run)
        yield _compare_generate(eager.decode_by_rules(run), generate)

    return run_grid(checkpoint, compare, plan)


def _compare_forward(eager: Eager, batch: Shape | Case, module: Any) -> Comparison:
    inputs = forward_inputs(eager, batch)
    shape = batch.shape if isinstance(batch, Case) else batch
    expected, noise = eager_forward(eager, inputs)
    keep = inputs[3].bool().numpy()  # outputs at padding are undefined
    ours = module(*inputs).numpy()
    return compare_logits(eager, "forward", shape, ours[keep], expected.numpy(), noise[0])


def _compare_methods(eager: Eager, run: EagerRun, module: Any) -> Iterator[Comparison]:
    if eager.runs_own_code:
        yield from compare_modules(eager, run)
    case, prefix = run.case, torch.from_numpy(run.prefix)
    keep = case.mask.numpy().astype(bool)
    states, cross = module.encode(case.ids, case.mask)
    expected = run.hidden.numpy()[keep]
    noise = run.noise.logits
    own = run.noise.hidden[0]
    yield compare_values("encoder states", run.shape, states.numpy()[keep], expected, own)
    full, _ = module.step(prefix, [], cross, case.mask)
    yield compare_logits(eager, "full prefix", run.shape, full.numpy(), run.logits, noise)
    past: list[torch.Tensor] = []
    steps = []
    for t in range(prefix.size(1)):
        logits, past = module.step(prefix[:, t : t + 1], past, cross, case.mask)
        steps.append(logits.numpy())
    cached = np.concatenate(steps, axis=1)
    yield compare_logits(eager, "cached steps", run.shape, cached, run.logits, noise)
    yield _compare_generate(eager.decode_by_rules(run), module.generate)


def _compare_generate(run: EagerRun, generate: Generate) -> Comparison:
    sequences = generate(run.case.ids, run.case.mask, run.tokens.shape[1])
    rows = [truncate_at_eos(row, run.special_ids.eos) for row in sequences.tolist()]
    return compare_tokens(run, rows, stage="generate")
