"""Eager PyTorch against a forward graph: whole targets, scored at once, over the same grid."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tfexport.export.parity.eager_run import THREADS, Floats, Progress, grid, walk
from tfexport.export.parity.report import Comparison, ParityReport, compare_values
from tfexport.export.reference import ModuleReference, Reference, build_reference
from tfexport.graph_io import GraphSpec
from tfexport.model_src.checkpoint.read import Checkpoint
from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.transformer import Transformer
from tfexport.runtime.model.session import open_session

LONGEST_TARGET = 32


def compare_forward(
    path: Path, spec: GraphSpec, checkpoint: Checkpoint, progress: Progress | None = None
) -> ParityReport:
    """Run eager PyTorch beside a forward graph.

    Args:
        path: the graph, self-contained.
        spec: its inputs and outputs.
        checkpoint: what it was exported from.
        progress: told after every shape.
    """
    model = checkpoint.build()
    reference = build_reference(checkpoint, model)
    session = open_session(path, THREADS)
    report = ParityReport(reference.title)
    for shape in walk(grid(checkpoint.config), progress):
        tensors = random_inputs(checkpoint.config, *shape)
        with torch.no_grad():
            report.comparisons.extend(
                _compare_case(shape, tensors, spec, model, reference, session)
            )
    return report


def random_inputs(config: TransformerConfig, batch: int, length: int) -> list[Tensor]:
    """Random source and target with their masks; the first row of each is full."""
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


def _compare_case(
    shape: tuple[int, int],
    tensors: list[Tensor],
    spec: GraphSpec,
    model: Transformer,
    reference: Reference,
    session: Any,
) -> Iterator[Comparison]:
    inputs, mask, targets, target_mask = tensors
    kept = target_mask.bool()  # what stands at padding means nothing
    eager = reference.decode(reference.encode(inputs, mask), mask, targets)[kept]
    if not isinstance(reference, ModuleReference):
        ours = model(inputs, mask, targets, target_mask)[kept]
        yield compare_values("eager modules", shape, ours.numpy(), eager.numpy())

    biases = [_random(spec, tensor.name, shape, targets.size(1)) for tensor in spec.inputs[4:]]
    outputs = _run(session, spec, [*tensors, *(torch.zeros_like(bias) for bias in biases)])
    expected = [eager, eager.log_softmax(-1)][: len(outputs)]
    for output, values in zip(outputs, expected, strict=True):
        yield compare_values("forward", shape, output[kept.numpy()], values.numpy())
    if biases:
        own = model.biases(mask, target_mask)
        sums = [first + second for first, second in zip(own, biases, strict=True)]
        biased = model.forward_biased(inputs, targets, *sums)[kept]
        output = _run(session, spec, [*tensors, *biases])[0]
        yield compare_values("attention biases", shape, output[kept.numpy()], biased.numpy())


def _random(spec: GraphSpec, name: str, shape: tuple[int, int], target: int) -> Tensor:
    sizes = {"batch": shape[0], "source_length": shape[1], "target_length": target}
    (tensor,) = (tensor for tensor in spec.inputs if tensor.name == name)
    size = [sizes[axis] if isinstance(axis, str) else axis for axis in tensor.axes]
    return torch.randn(size, generator=torch.Generator().manual_seed(len(name)))


def _run(session: Any, spec: GraphSpec, tensors: list[Tensor]) -> list[Floats]:
    names = [tensor.name for tensor in spec.inputs]
    feeds = {name: np.asarray(tensor) for name, tensor in zip(names, tensors, strict=True)}
    outputs: list[Floats] = session.run([tensor.name for tensor in spec.outputs], feeds)
    return outputs
