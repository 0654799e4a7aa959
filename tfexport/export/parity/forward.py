"""Comparison of teacher-forced graphs and torch files with eager PyTorch."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tfexport.export.parity.bundle import compare_modules
from tfexport.export.parity.compare import compare_logits, compare_tokens, compare_values
from tfexport.export.parity.eager_run import THREADS, Case, Eager, EagerRun, Floats, Shape, run_grid
from tfexport.export.parity.plan import ComparisonPlan
from tfexport.export.reference import ModuleReference
from tfexport.export.report import Comparison, ParityReport
from tfexport.graph_io import BATCH, SOURCE, TARGET, GraphSpec, TensorSpec
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.config import TransformerConfig
from tfexport.runtime.model.session import open_session
from tfexport.runtime.search import truncate_at_eos

LONGEST_TARGET = 32


def compare_forward(
    path: Path, spec: GraphSpec, checkpoint: Checkpoint, plan: ComparisonPlan | None = None
) -> ParityReport:
    """Compare a forward graph with eager PyTorch.

    Args:
        path: the path of the self-contained file.
        spec: its inputs and outputs.
        checkpoint: the checkpoint that it was exported from.
        plan: what to compare.
    """
    session = open_session(path, THREADS)

    def compare(eager: Eager, batch: Shape | Case) -> Iterator[Comparison]:
        yield from _compare_targets(eager, batch, spec, session)

    return run_grid(checkpoint, compare, plan)


def random_inputs(config: TransformerConfig, batch: int, length: int) -> list[Tensor]:
    """Random source and target with their masks; the first row of each has the full length."""
    generator = torch.Generator().manual_seed(1000 * batch + length)
    target = min(length, LONGEST_TARGET)
    tensors = []
    for size, vocab in ((length, config.source_vocab_size), (target, config.target_vocab_size)):
        if vocab is None:
            tensors.append(torch.randn(batch, size, config.d_model, generator=generator))
        else:
            tensors.append(torch.randint(0, vocab, (batch, size), generator=generator))
        lengths = torch.randint(1, size + 1, (batch, 1), generator=generator)
        lengths[0] = size
        tensors.append((torch.arange(size) < lengths).long())
    return tensors


def forward_inputs(eager: Eager, batch: Shape | Case) -> list[Tensor]:
    """``random_inputs``; for the user's own code without ids that it may take for padding.

    Then the target starts with the start token, and ``pad_id`` occurs nowhere else. Real rows have
    the targets that eager PyTorch decodes.
    """
    if isinstance(batch, Case):
        prefix = torch.from_numpy(eager.decode(batch).prefix)
        return [batch.ids, batch.mask, prefix, torch.ones_like(prefix)]
    shape = batch
    tensors, config = random_inputs(eager.config, *shape), eager.config
    if not eager.runs_own_code or not config.has_embeddings:
        return tensors
    for ids, size in (
        (tensors[0], config.source_vocab_size),
        (tensors[2], config.target_vocab_size),
    ):
        if config.pad_id is not None:
            ids[ids == config.pad_id] = (config.pad_id + 1) % (size or 1)
    if config.decoder_start_id is not None:
        tensors[2][:, 0] = config.decoder_start_id
    return tensors


def _compare_targets(
    eager: Eager, batch: Shape | Case, spec: GraphSpec, session: Any
) -> Iterator[Comparison]:
    shape = batch.shape if isinstance(batch, Case) else batch
    model, reference = eager.model, eager.reference
    tensors = forward_inputs(eager, batch)
    inputs, mask, targets, target_mask = tensors
    kept = target_mask.bool()  # outputs at padding are undefined
    logits, noise = eager_forward(eager, tensors)
    if not isinstance(reference, ModuleReference):
        ours = model(inputs, mask, targets, target_mask)[kept]
        yield compare_logits(eager, "eager modules", shape, ours.numpy(), logits.numpy(), noise[0])

    biases = [_random(tensor, shape, targets.size(1)) for tensor in spec.inputs[len(tensors) :]]
    outputs = _run(session, spec, [*tensors, *(torch.zeros_like(bias) for bias in biases)])
    expected = [logits, logits.log_softmax(-1)][: len(outputs)]
    for output, values, of_output in zip(outputs, expected, noise, strict=False):
        found = output[kept.numpy()]
        yield compare_logits(eager, "forward", shape, found, values.numpy(), of_output)
    if biases:

        def biased() -> list[Tensor]:
            own = model.biases(mask, target_mask)
            sums = [first + second for first, second in zip(own, biases, strict=True)]
            return [model.forward_biased(*_vectors(inputs, targets), *sums)[kept]]

        values = biased()[0]
        (of_biased,) = eager.module_rounding.measure(biased, [values.numpy()], ())
        output = _run(session, spec, [*tensors, *biases])[0][kept.numpy()]
        yield compare_values("attention biases", shape, output, values.numpy(), of_biased)


def eager_forward(eager: Eager, tensors: list[Tensor]) -> tuple[Tensor, list[float]]:
    """Outputs of eager PyTorch where targets are not padded, and the noise of its ``compared``."""
    inputs, mask, targets, target_mask = tensors
    kept = target_mask.bool()

    def compute() -> Tensor:
        source, target = _vectors(inputs, targets)
        reference = eager.reference
        return reference.decode(reference.encode(source, mask), mask, target)[kept]

    found = compute()
    noise = eager.rounding.measure(
        lambda: eager.compared(compute()), [each.numpy() for each in eager.compared(found)], ()
    )
    return found, noise


def _vectors(*tensors: Tensor) -> list[Tensor]:
    """Convert vectors to torch's default dtype; ids are unchanged."""
    dtype = torch.get_default_dtype()
    return [each.to(dtype) if each.is_floating_point() else each for each in tensors]


def _random(tensor: TensorSpec, shape: Shape, target: int) -> Tensor:
    sizes = {BATCH: shape[0], SOURCE: shape[1], TARGET: target}
    size = [sizes[axis] if isinstance(axis, str) else axis for axis in tensor.axes]
    return torch.randn(size, generator=torch.Generator().manual_seed(len(tensor.name)))


def _run(session: Any, spec: GraphSpec, tensors: list[Tensor]) -> list[Floats]:
    names = [tensor.name for tensor in spec.inputs]
    feeds = {name: np.asarray(tensor) for name, tensor in zip(names, tensors, strict=True)}
    outputs: list[Floats] = session.run([tensor.name for tensor in spec.outputs], feeds)
    return outputs


Generate = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


def compare_torchscript(
    module: Any, checkpoint: Checkpoint, plan: ComparisonPlan | None = None
) -> ParityReport:
    """Compare a loaded TorchScript module with eager PyTorch, method by method.

    Args:
        module: a module with the methods of ``GreedyModule`` or ``TransformerModule``.
        checkpoint: the checkpoint that it was exported from.
        plan: what to compare.
    """

    def compare(eager: Eager, batch: Shape | Case) -> Iterator[Comparison]:
        yield _compare_forward(eager, batch, module)
        if eager.config.has_embeddings:
            yield from _compare_methods(eager, eager.run(batch), module)

    return run_grid(checkpoint, compare, plan)


def compare_program(
    generate: Generate, checkpoint: Checkpoint, plan: ComparisonPlan | None = None
) -> ParityReport:
    """Compare a loaded torch.export program with eager PyTorch.

    Args:
        generate: (input_ids, attention_mask, max_length) to sequences.
        checkpoint: the checkpoint that it was exported from.
        plan: what to compare.
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
