"""Runs of a module at several sizes, and the axes of memory and state that show in them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from tfexport import graph_io
from tfexport.export.modules.contract import UserModule
from tfexport.export.modules.draw import Sizes
from tfexport.graph_io import BATCH, PAST, Growth, TensorSpec


@dataclass(frozen=True)
class Trace:
    """The shapes and logits of a module at one setting.

    Attributes:
        sizes: of the named axes of the inputs, the batch among them.
        memory: shape and dtype of each tensor of the memory.
        states: of each tensor of the state, before the first step and after every step.
        vocab_size: V.
        logits: of every step, (B, T, V).
        encoded: the memory.
        started: the state before the first step.
    """

    sizes: Sizes
    memory: tuple["Shaped", ...]
    states: tuple[tuple["Shaped", ...], ...]
    vocab_size: int
    logits: Tensor
    encoded: tuple[Tensor, ...]
    started: tuple[Tensor, ...]


@dataclass(frozen=True)
class Shaped:
    """The shape and the dtype of a tensor."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, tensor: Tensor) -> "Shaped":
        """Of a tensor."""
        return cls(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"


@torch.no_grad()
def trace(
    module: UserModule, inputs: Sequence[Tensor], sizes: Sizes, start_id: int, steps: int
) -> Trace:
    """Encode, and take steps with drawn tokens.

    Raises:
        ModuleError: a method failed, gave something else than the contract says, or changed the
            tensors that it was given.
    """
    given = [tensor.clone() for tensor in inputs]
    memory = module.encode(given)
    _refuse_changed(module, "encode", given, inputs)
    kept = [tensor.clone() for tensor in memory]
    state = module.start(memory, inputs[0].size(0))
    _refuse_changed(module, "start", memory, kept)
    started = tuple(tensor.clone() for tensor in state)
    states = [tuple(map(Shaped.of, state))]
    token = torch.full((inputs[0].size(0), 1), start_id)
    found: list[Tensor] = []
    generator = torch.Generator().manual_seed(0)
    for position in range(steps):
        before = [tensor.clone() for tensor in state]
        logits, after = module.step(token, torch.tensor(position), state, memory)
        method = "decode" if module.recomputes else "step"
        _refuse_changed(module, method, state, before)
        _refuse_changed(module, method, memory, kept)
        _check_state(module, states[-1], tuple(map(Shaped.of, after)))
        if torch.isnan(logits).any():
            raise module.wrong(method, "gives logits that are NaN")
        if found and logits.size(-1) != found[0].size(-1):
            sizes_found = f"{found[0].size(-1)} and {logits.size(-1)}"
            raise module.wrong(method, f"gives logits of {sizes_found} tokens at different steps")
        found.append(logits.to(torch.get_default_dtype()))
        states.append(tuple(map(Shaped.of, after)))
        state = after
        token = torch.randint(logits.size(-1), token.shape, generator=generator)
    return Trace(
        {BATCH: inputs[0].size(0), **sizes},
        tuple(map(Shaped.of, memory)),
        tuple(states),
        found[0].size(-1),
        torch.stack(found, dim=1),
        tuple(kept),
        started,
    )


def _refuse_changed(
    module: UserModule, method: str, given: Sequence[Tensor], before: Sequence[Tensor]
) -> None:
    """Refuse a method that wrote to the tensors that it was given."""
    for number, (tensor, copy) in enumerate(zip(given, before, strict=True)):
        if not torch.equal(torch.nan_to_num(tensor), torch.nan_to_num(copy)):
            raise module.wrong(
                method,
                f"changes tensor {number} that it is given in place; return new tensors "
                "(x + y instead of x += y, torch.cat, torch.where)",
            )


def _check_state(module: UserModule, before: tuple[Shaped, ...], after: tuple[Shaped, ...]) -> None:
    if len(before) != len(after):
        raise module.wrong(
            "step", f"gives a state of {len(after)} tensors and takes one of {len(before)}"
        )
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        if old.dtype != new.dtype:
            raise module.wrong(
                "step", f"takes tensor {number} of the state as {old.dtype} and gives {new.dtype}"
            )
        if len(old.shape) != len(new.shape):
            raise module.wrong(
                "step", f"takes tensor {number} of the state as {old.shape} and gives {new.shape}"
            )


class AxisNames:
    """Names for axes: axes that have one size at every setting share a name."""

    def __init__(self, traces: Sequence[Trace]) -> None:
        # Name to its size at every setting; declared axes keep their names, whatever their sizes.
        self._sizes = {
            name: tuple(trace.sizes[name] for trace in traces) for name in traces[0].sizes
        }

    def name(self, sizes: tuple[int, ...], fresh: str) -> int | str:
        """A size, if it is fixed; else a name, made of ``fresh`` if there is none yet."""
        if len(set(sizes)) == 1:
            return sizes[0]
        for name, known in self._sizes.items():
            if known == sizes:
                return name
        name = fresh
        while name in self._sizes:
            name = f"{fresh}_{len(self._sizes)}"
        self._sizes[name] = sizes
        return name

    def sizes(self, setting: int) -> Sizes:
        """The size of every named axis at one setting."""
        return {name: sizes[setting] for name, sizes in self._sizes.items()}


def batch_axes(
    module: UserModule, method: str, traces: Sequence[Trace], shapes: Sequence[Sequence[Shaped]]
) -> tuple[int, ...]:
    """For each tensor the axis that is the batch.

    Args:
        module: the user's.
        method: that gave the tensors.
        traces: the settings.
        shapes: of the tensors at every setting.

    Raises:
        ModuleError: a tensor has none.
    """
    batches = tuple(trace.sizes[BATCH] for trace in traces)
    found = []
    for number, tensor in enumerate(zip(*shapes, strict=True)):
        sizes = list(zip(*(each.shape for each in tensor), strict=True))
        axes = [axis for axis, each in enumerate(sizes) if each == batches]
        if not axes:
            raise module.wrong(
                method,
                f"gives tensor {number} as {tensor[0]} at batch {batches[0]} and as {tensor[1]} at "
                f"batch {batches[1]}: no axis has the batch's size; add one with a row for "
                "each input row, as with x.expand(batch, ...)",
            )
        found.append(axes[0])
    return tuple(found)


def memory_specs(traces: Sequence[Trace], names: AxisNames) -> tuple[TensorSpec, ...]:
    """Names, dtypes and axes of the memory."""
    specs = []
    for number, tensor in enumerate(zip(*(trace.memory for trace in traces), strict=True)):
        sizes = zip(*(each.shape for each in tensor), strict=True)
        axes = tuple(names.name(each, "memory_length") for each in sizes)
        specs.append(TensorSpec(f"memory.{number}", tensor[0].dtype, axes))
    return tuple(specs)


def state_specs(
    module: UserModule, traces: Sequence[Trace], names: AxisNames
) -> tuple[tuple[TensorSpec, ...], dict[str, Growth]]:
    """Names, dtypes and axes of the state, and how its axes grow."""
    specs, growth = [], dict[str, Growth]()
    for number, first in enumerate(traces[0].states[0]):
        axes: list[int | str] = []
        for axis in range(len(first.shape)):
            # Sizes of the axis: of each setting before the first step, then after every step.
            runs = [[state[number].shape[axis] for state in trace.states] for trace in traces]
            steps = {after - before for run in runs for before, after in pairwise(run)}
            start = names.name(tuple(run[0] for run in runs), "state_length")
            if steps == {0}:
                axes.append(start)
            elif len(steps) == 1 and (step := steps.pop()) > 0 and start != BATCH:
                axes.append(_growing(Growth(start, step), growth))
            else:
                raise module.wrong(
                    "step",
                    f"gives tensor {number} of the state with {runs[0]} as the sizes of axis "
                    f"{axis} after 0 to {len(runs[0]) - 1} steps; every axis has to stay the "
                    "same, or to grow by the same amount at every step",
                )
        specs.append(TensorSpec(f"past.{number}", first.dtype, tuple(axes)))
    return tuple(specs), growth


def _growing(axis: Growth, known: dict[str, Growth]) -> str:
    """The name of a growing axis; axes that grow alike share one."""
    for name, other in known.items():
        if other == axis:
            return name
    # ``past_length`` is the number of tokens so far.
    name = PAST if axis == Growth(0, 1) else f"{PAST}_{len(known) + 1}"
    known[name] = axis
    return name


def example_sizes(names: AxisNames, growth: Mapping[str, Growth], setting: int) -> Sizes:
    """The sizes of all named axes at one setting, in the middle of decoding."""
    sizes = names.sizes(setting)
    free = [size for size in (4, 6, 8, 9, 10, 12) if size not in sizes.values()]
    steps = free[0] if free else 4
    for name, axis in growth.items():
        start = sizes[axis.start] if isinstance(axis.start, str) else axis.start
        sizes[name] = start + axis.step * steps
    sizes.setdefault(PAST, steps)
    sizes[graph_io.TARGET] = 3
    sizes[graph_io.BEAMS] = 3
    sizes[graph_io.ROWS] = sizes[BATCH] * 3
    return sizes
