"""What a module of the tests is given, and its own slow loop: `forward` over whole prefixes.

Axes: B batch, S source length, T target length, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tfexport.export import Input

PAD, BOS, EOS = 0, 1, 2
SMALLEST_VOCABULARY = 17  # of all modules, on either side
TARGET = Input("target", "int64", ("batch", "target_length"))


@dataclass(frozen=True)
class Case:
    """A module as its user wrote it.

    Attributes:
        make: builds it with weights that are the same each time, in eval mode.
        inputs: those of ``forward`` but the target, in order.
        target: the ids of the target, the last argument of ``forward``.
        forward: ``forward(model, *inputs, target)`` where ``model(*inputs, target)`` is not the
            call.
        pads_source: ``forward`` itself masks ``src == PAD``.
        state: what a cache of it would be, for the reader.
    """

    name: str
    make: Callable[[], nn.Module]
    inputs: tuple[Input, ...]
    target: Input = TARGET
    forward: Callable[..., Any] | None = None
    pads_source: bool = False
    state: tuple[str, ...] | None = None


def drawn(build: Callable[[], nn.Module], seed: int, scale: float = 1.0) -> nn.Module:
    """A module with irregular weights that are the same for one seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return perturb(build(), seed, scale).eval()


def perturb(model: nn.Module, seed: int, scale: float = 1.0) -> nn.Module:
    """Make weights larger and uneven, in place, so that tokens differ between inputs and lengths.

    Products of a matrix and inputs of size 1 vary by `scale`.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            fan_in = weight[0].numel() if weight.dim() > 1 else 16
            weight.add_(noise * scale / fan_in**0.5)
        for table in model.modules():
            if isinstance(table, nn.Embedding):
                noise = torch.randn(table.weight.shape, generator=generator)
                table.weight.add_(noise * scale / 2)
    return model


def call(case: Case, model: nn.Module, inputs: Sequence[Tensor], target: Tensor) -> Any:
    """What `forward` gives, as it is."""
    if case.forward is not None:
        return case.forward(model, *inputs, target)
    return model(*inputs, target)


def logits(case: Case, model: nn.Module, inputs: Sequence[Tensor], target: Tensor) -> Tensor:
    """(B, T, V) from what `forward` gives: a tuple's first, ``.logits``, flattened, batch second.

    Inputs and target are in the order of their own axes.
    """
    with torch.no_grad():
        result = call(case, model, inputs, target)
    result = getattr(result, "logits", result)
    if isinstance(result, tuple | list):
        result = result[0]
    scores = result.reshape(*target.shape, result.shape[-1])
    batch_first: Tensor = scores.movedim(batch_axis(case.target), 0)
    return batch_first.float()


def greedy(
    case: Case,
    model: nn.Module,
    inputs: Sequence[Tensor],
    steps: int,
    banned: Sequence[int] = (),
) -> Tensor:
    """(B, steps) ids after BOS by arg-max, `forward` over the whole prefix for every token.

    Rows do not end at EOS. Ids that are banned, such as PAD, are never chosen.
    """
    batch = inputs[0].shape[batch_axis(case.inputs[0])]
    prefix = torch.full((batch, 1), BOS)
    for _ in range(steps):
        scores = logits(case, model, inputs, in_its_order(case, prefix))[:, -1]
        scores[:, list(banned)] = float("-inf")
        prefix = torch.cat([prefix, scores.argmax(-1, keepdim=True)], dim=1)
    return prefix[:, 1:].contiguous()


def draw_inputs(case: Case, batch: int, lengths: Mapping[str, int], seed: int) -> list[Tensor]:
    """Inputs without padding, of the lengths of the axes that vary, by name."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {**lengths, "batch": batch}
    result = []
    for given in case.inputs:
        shape = [sizes[axis] if isinstance(axis, str) else axis for axis in given.axes]
        if given.dtype == "int64":
            below = int(given.below or SMALLEST_VOCABULARY)
            least = EOS + 1 if below > EOS + 1 else 0
            result.append(torch.randint(least, below, shape, generator=generator))
        else:
            result.append(torch.randn(shape, generator=generator))
    return result


def draw_target(case: Case, batch: int, length: int, seed: int) -> Tensor:
    """BOS and ids without padding, in the order of the target's axes."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(EOS + 1, SMALLEST_VOCABULARY, (batch, length), generator=generator)
    ids[:, 0] = BOS
    return in_its_order(case, ids)


def in_its_order(case: Case, ids: Tensor) -> Tensor:
    """Ids of the target, batch first, in the order of the target's axes."""
    return ids.movedim(0, batch_axis(case.target))


def batch_axis(given: Input) -> int:
    """Where the batch is."""
    return list(given.axes).index("batch")
