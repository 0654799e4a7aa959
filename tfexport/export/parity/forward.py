"""Comparison of teacher-forced graphs and torch files with eager PyTorch."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tfexport.export.parity.checkpoint import EagerCheckpoint
from tfexport.export.parity.compare import compare_logits, compare_tokens, compare_values
from tfexport.export.parity.eager_run import EagerRun, Floats, Shape, compare_batches
from tfexport.export.parity.opened import OpenFile
from tfexport.export.parity.plan import ComparisonPlan
from tfexport.export.reference import ModuleReference
from tfexport.export.report import EAGER_MODULES, Comparison, ParityReport
from tfexport.graph_io import BATCH, SOURCE, TARGET, TensorSpec
from tfexport.model_src.config import TransformerConfig
from tfexport.runtime.search import truncate_at_eos

LONGEST_TARGET = 32


def compare_forward(run: EagerRun, file: OpenFile) -> Iterator[Comparison]:
    """Compare a forward graph with eager PyTorch, on drawn targets or those of real rows."""
    eager = run.eager
    assert isinstance(eager, EagerCheckpoint)
    model, reference, spec = eager.model, eager.reference, file.spec
    tensors = forward_inputs(run)
    inputs, mask, targets, target_mask = tensors
    kept = target_mask.bool()  # outputs at padding are undefined
    logits, noise = eager_forward(eager, tensors)
    if not isinstance(reference, ModuleReference):
        ours = model(inputs, mask, targets, target_mask)[kept]
        yield compare_logits(run, EAGER_MODULES, ours.numpy(), logits.numpy(), noise[0])

    biases = [_random(tensor, run.shape, targets.size(1)) for tensor in spec.inputs[len(tensors) :]]
    outputs = _run(file, [*tensors, *(torch.zeros_like(bias) for bias in biases)])
    expected = [logits, logits.log_softmax(-1)][: len(outputs)]
    for output, values, of_output in zip(outputs, expected, noise, strict=False):
        of_graph = output[kept.numpy()]
        yield compare_logits(run, "forward", of_graph, values.numpy(), of_output)
    if biases:

        def biased() -> list[Tensor]:
            own = model.biases(mask, target_mask)
            sums = [first + second for first, second in zip(own, biases, strict=True)]
            return [model.forward_biased(*_vectors(inputs, targets), *sums)[kept]]

        values = biased()[0]
        (of_biased,) = eager.module_rounding.measure(biased, [values.numpy()], ())
        output = _run(file, [*tensors, *biases])[0][kept.numpy()]
        yield compare_values("attention biases", run.shape, output, values.numpy(), of_biased)


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


def forward_inputs(run: EagerRun) -> list[Tensor]:
    """``random_inputs``; for the user's own code without ids that it may take for padding.

    Then the target starts with the start token, and ``pad_id`` occurs nowhere else. Real rows have
    the targets that eager PyTorch decodes.
    """
    eager = run.eager
    assert isinstance(eager, EagerCheckpoint)
    if run.rows:
        prefix = torch.from_numpy(eager.decode(run).prefix)
        return [*eager.padded(run.rows), prefix, torch.ones_like(prefix)]
    tensors, config = random_inputs(eager.config, *run.shape), eager.config
    if not eager.compares_log_probs:
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


def eager_forward(eager: EagerCheckpoint, tensors: list[Tensor]) -> tuple[Tensor, list[float]]:
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


def _run(file: OpenFile, tensors: list[Tensor]) -> list[Floats]:
    names = [tensor.name for tensor in file.spec.inputs]
    return file.run({name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)})


Generate = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


def compare_torchscript(module: Any, eager: EagerCheckpoint, plan: ComparisonPlan) -> ParityReport:
    """Compare a loaded TorchScript module with eager PyTorch, method by method.

    Args:
        module: a module with the methods of ``GreedyModule`` or ``TransformerModule``.
        eager: the checkpoint that it was exported from.
        plan: what to compare.
    """

    def compare(batch: EagerRun) -> Iterator[Comparison]:
        yield _compare_forward(batch, module)
        if eager.config.has_embeddings:
            yield from _compare_methods(eager.decode(batch), module)

    return compare_batches(eager, plan, compare, decodes=False)


def compare_program(
    generate: Generate, eager: EagerCheckpoint, plan: ComparisonPlan
) -> ParityReport:
    """Compare a loaded torch.export program with eager PyTorch.

    Args:
        generate: (input_ids, attention_mask, max_length) to sequences.
        eager: the checkpoint that it was exported from.
        plan: what to compare.
    """

    def compare(run: EagerRun) -> Iterator[Comparison]:
        if eager.runs_own_code:
            yield from eager.compare_programs(run)
        yield _compare_generate(eager, run.by_rules, generate)

    return compare_batches(eager, plan, compare)


def _compare_forward(run: EagerRun, module: Any) -> Comparison:
    eager = run.eager
    assert isinstance(eager, EagerCheckpoint)
    inputs = forward_inputs(run)
    expected, noise = eager_forward(eager, inputs)
    keep = inputs[3].bool().numpy()  # outputs at padding are undefined
    ours = module(*inputs).numpy()
    return compare_logits(run, "forward", ours[keep], expected.numpy(), noise[0])


def _compare_methods(run: EagerRun, module: Any) -> Iterator[Comparison]:
    eager = run.eager
    assert isinstance(eager, EagerCheckpoint)
    assert run.memory is not None
    if eager.runs_own_code:
        yield from eager.compare_programs(run)
    (ids, mask), prefix = eager.padded(run.rows), torch.from_numpy(run.prefix)
    states, cross = module.encode(ids, mask)
    expected = torch.cat([tensors[0] for tensors in run.memory]).numpy()
    ours = states.numpy()[mask.numpy().astype(bool)]
    yield compare_values("encoder states", run.shape, ours, expected, run.noise.hidden[0])
    noise = run.noise.logits
    full, _ = module.step(prefix, [], cross, mask)
    yield compare_logits(run, "full prefix", full.numpy(), run.logits, noise)
    past: list[torch.Tensor] = []
    steps = []
    for t in range(run.steps):
        logits, past = module.step(prefix[:, t : t + 1], past, cross, mask)
        steps.append(logits.numpy())
    cached = np.concatenate(steps, axis=1)
    yield compare_logits(run, "cached steps", cached, run.logits, noise)
    yield _compare_generate(eager, run.by_rules, module.generate)


def _compare_generate(eager: EagerCheckpoint, run: EagerRun, generate: Generate) -> Comparison:
    sequences = generate(*eager.padded(run.rows), run.steps)
    rows = [truncate_at_eos(row, run.special_ids.eos) for row in sequences.tolist()]
    return compare_tokens(run, rows, stage="generate")
