"""Examination of a module: its axes are found by running it at different sizes.

Everything that the graphs rely on is looked at: shapes that follow the sizes of the inputs alone, a
state that stays or grows by the same amount at every step, rows that do not depend on each other,
results that repeat, and a decoder that goes on to ``max_length``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from tfexport import graph_io
from tfexport.bundle import SpecialIds
from tfexport.errors import ExportError
from tfexport.export.modules.contract import ModuleError, UserModule
from tfexport.export.modules.draw import (
    BATCHES,
    LARGEST_ID,
    Sizes,
    as_tensors,
    axes_of,
    candidate_sizes,
    draw_rows,
)
from tfexport.export.modules.inputs import Input
from tfexport.export.modules.traces import (
    AxisNames,
    Trace,
    batch_axes,
    example_sizes,
    memory_specs,
    state_specs,
    trace,
)
from tfexport.graph_io import BATCH
from tfexport.module_io import ModuleIO
from tfexport.module_rows import Array, stack_rows

SETTINGS = 4  # sizes at which the module is run
STEPS = 5
ALONE = 1e-4  # relative difference of a row's logits, alone and in a batch
LONGEST_TRIED = 1024  # ids of a row
Examples = Sequence[Mapping[str, Array]]


@dataclass(frozen=True)
class Examination:
    """A module as the graphs need to know it.

    Attributes:
        module: the user's.
        inputs: as declared.
        io: tensors of the graphs.
        below: integer input to the smallest number that is too large.
        sizes: of all named axes, of an example in the middle of decoding.
        settings: sizes of the inputs' axes at which the module was run.
        vocab_size: V.
        longest_source: ids that ``encode`` takes at most; None if there is no limit that was found.
    """

    module: UserModule
    inputs: tuple[Input, ...]
    io: ModuleIO
    below: Mapping[str, int]
    sizes: Sizes
    settings: tuple[Sizes, ...]
    vocab_size: int
    longest_source: int | None


def examine(
    module: UserModule,
    inputs: tuple[Input, ...],
    examples: Examples,
    ids: SpecialIds,
    max_length: int,
) -> Examination:
    """Run a module at several sizes, and find its axes.

    Args:
        module: the user's, in eval mode.
        inputs: checked.
        examples: rows of real data.
        ids: of the token that decoding starts from, and of that which fills shorter rows.
        max_length: tokens that it has to decode.

    Raises:
        ExportError: it cannot be a graph; the message names the method and the line.
    """
    steps = min(STEPS, max_length)
    runner = _Runner(module, inputs, ids.bos, steps)
    settings = runner.settings(examples)
    traces = runner.traces(settings)
    module.memory_axes = batch_axes(traces, [each.memory for each in traces], "memory")
    module.state_axes = batch_axes(traces, [each.states[0] for each in traces], "state")
    if any((*module.memory_axes, *module.state_axes)):
        traces = runner.traces(settings)
    _check_repeats(runner, traces[0], settings[0])
    _check_rows_alone(runner, traces[0], settings[0])
    names = AxisNames(traces)
    memory = memory_specs(traces, names)
    state, growth = state_specs(module, traces, names)
    specs = tuple(each.spec for each in inputs)
    io = ModuleIO(specs, memory, state, growth, module.recomputes, padded=False)
    io = replace(io, padded=_may_be_padded(runner, io, settings[-1], ids.pad))
    _check_length(runner, settings[0], max_length)
    return Examination(
        module,
        inputs,
        io,
        runner.below,
        example_sizes(names, growth, 0),
        tuple(settings),
        traces[0].vocab_size,
        _longest_source(runner, io, settings),
    )


class _Runner:
    """Runs of one module."""

    def __init__(
        self, module: UserModule, inputs: tuple[Input, ...], start_id: int, steps: int
    ) -> None:
        self.module, self.inputs, self.start_id, self.steps = module, inputs, start_id, steps
        self.below: dict[str, int] = {
            each.name: each.below for each in inputs if each.below is not None
        }

    def settings(self, examples: Examples) -> list[Sizes]:
        """Sizes at which the module runs, the first few of those that are tried.

        Raises:
            ModuleError: it runs at none, or at too few of them.
        """
        found: list[Sizes] = []
        failures: list[ModuleError] = []
        for sizes in candidate_sizes(self.inputs, examples):
            if len(found) == SETTINGS:
                break
            try:
                self._find_bounds(sizes)
                self.run(sizes, 2, steps=1)
            except ModuleError as error:
                failures.append(error)
            else:
                found += [sizes] if sizes not in found or not axes_of(self.inputs) else []
        if not found:
            raise failures[0]
        if len(found) < 2 or any(
            len({sizes[axis] for sizes in found}) < 2 for axis in axes_of(self.inputs)
        ):
            tried = ", ".join(f"{axis}={size}" for axis, size in found[0].items())
            last = f" Elsewhere: {failures[-1]}" if failures else ""
            raise ModuleError(
                f"{type(self.module.model).__name__} runs at no sizes but {tried}: an axis that "
                f"does not vary is declared by its size, not by a name.{last}"
            )
        while len(found) < SETTINGS:
            found.append(found[len(found) % 2])
        return found

    def traces(self, settings: Sequence[Sizes]) -> list[Trace]:
        """Runs at all settings, each with another size of the batch."""
        return [
            self.run(sizes, batch, self.steps)
            for sizes, batch in zip(settings, BATCHES, strict=True)
        ]

    def run(self, sizes: Sizes, batch: int, steps: int, seed: int = 0) -> Trace:
        """One run with drawn inputs."""
        return self.run_rows(draw_rows(self.inputs, self.below, sizes, batch, seed), sizes, steps)

    def run_rows(
        self, rows: Sequence[Mapping[str, Array]], sizes: Sizes, steps: int, pad_id: int = 0
    ) -> Trace:
        """One run over these rows."""
        given = as_tensors(self.inputs, stack_rows(rows, pad_id))
        return trace(self.module, given, sizes, self.start_id, steps)

    def _find_bounds(self, sizes: Sizes) -> None:
        """Find for each integer input the largest number that ``encode`` takes."""
        for each in self.inputs:
            wanted = each.dtype in ("int64", "int32", "int16", "uint8", "int8")
            if wanted and each.name not in self.below and each.name != graph_io.ATTENTION_MASK:
                self.below[each.name] = _smallest_refused(self._accepts(each, sizes))

    def _accepts(self, each: Input, sizes: Sizes) -> Callable[[int], bool]:
        """Whether ``encode`` takes a number everywhere in one input."""
        others = {other.name: 1 for other in self.inputs}
        (row,) = draw_rows(self.inputs, {**others, **self.below}, sizes, 1)
        most = np.iinfo(each.dtype).max

        def accepts(number: int) -> bool:
            if number > most:
                return False
            filled = {**row, each.name: np.full_like(row[each.name], number)}
            try:
                with torch.no_grad():
                    self.module.encode(as_tensors(self.inputs, stack_rows([filled, filled])))
            except ModuleError:
                return False
            return True

        return accepts


def _smallest_refused(accepts: Callable[[int], bool]) -> int:
    """The smallest refused number from 1 on, by bisection; ``LARGEST_ID`` if all are accepted."""
    high = 1
    while high < LARGEST_ID and accepts(high):
        high *= 2
    if high >= LARGEST_ID:
        return LARGEST_ID
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accepts(middle) else (low, middle)
    return high


def _check_repeats(runner: _Runner, first: Trace, sizes: Sizes) -> None:
    """Refuse a module whose results or shapes differ between equal or like runs."""
    again = runner.run(sizes, first.sizes[BATCH], runner.steps)
    if not torch.allclose(first.logits, again.logits, rtol=1e-5, atol=1e-5):
        raise runner.module.wrong(
            "encode",
            "the same inputs give other logits when the module is run again: it draws random "
            "numbers, or keeps something between calls; put that into the state",
        )
    other = runner.run(sizes, first.sizes[BATCH], runner.steps, seed=1)
    if (other.memory, other.states) != (first.memory, first.states):
        raise runner.module.wrong(
            "encode", "inputs of equal sizes give tensors of other shapes: these depend on the data"
        )


def _check_rows_alone(runner: _Runner, first: Trace, sizes: Sizes) -> None:
    """Refuse a module in which the rows of a batch depend on each other."""
    rows = draw_rows(runner.inputs, runner.below, sizes, 2)
    together = runner.run_rows(rows, sizes, 1).logits
    alone = torch.cat([runner.run_rows([row], sizes, 1).logits for row in rows])
    if _difference(alone, together) > ALONE:
        raise runner.module.wrong(
            "encode",
            "a row gives other logits alone than in a batch, so that its result would depend on "
            "the rows beside it",
        )


def _may_be_padded(runner: _Runner, io: ModuleIO, sizes: Sizes, pad_id: int) -> bool:
    """Whether rows of ids may be padded: a mask is taken, and padding changes nothing."""
    if not (io.takes_ids and io.masked):
        return False
    (axis,) = axes_of(runner.inputs)
    for length in {max(1, sizes[axis] // 2), sizes[axis] - 1}:
        (short,) = draw_rows(runner.inputs, runner.below, {axis: length}, 1, seed=2)
        (whole,) = draw_rows(runner.inputs, runner.below, sizes, 1)
        try:
            alone = runner.run_rows([short], {axis: length}, runner.steps).logits
            padded = runner.run_rows([whole, short], sizes, runner.steps, pad_id).logits
        except ModuleError:
            return False
        # Both runs draw the same tokens for their first row only: compare the first step.
        if _difference(alone[0, :1], padded[1, :1]) > ALONE:
            return False
    return True


def _longest_source(runner: _Runner, io: ModuleIO, settings: Sequence[Sizes]) -> int | None:
    """The longest row of ids that ``encode`` takes; None from ``LONGEST_TRIED`` on."""
    if not io.takes_ids:
        return None
    (axis,) = axes_of(runner.inputs)

    def accepts(length: int) -> bool:
        try:
            runner.run({axis: length}, 1, steps=1)
        except ModuleError:
            return False
        return True

    low = max(sizes[axis] for sizes in settings)
    high = 2 * low
    while accepts(high):
        low, high = high, 2 * high
        if low >= LONGEST_TRIED:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accepts(middle) else (low, middle)
    return low


def _difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference of logits; equal infinities do not differ."""
    same = ours == theirs
    gap = torch.where(same, 0.0, (ours - theirs).abs() / theirs.abs().clamp(min=1.0))
    return float(gap.max())


def _check_length(runner: _Runner, sizes: Sizes, max_length: int) -> None:
    """Refuse a module that cannot decode ``max_length`` tokens.

    Raises:
        ExportError: naming the longest that it can.
    """
    module = runner.module
    given = as_tensors(runner.inputs, stack_rows(draw_rows(runner.inputs, runner.below, sizes, 1)))
    done = 0
    try:
        with torch.no_grad():
            memory = module.encode(given)
            if module.recomputes:
                whole = torch.full((1, max_length), runner.start_id)
                module.advance(whole, module.start(memory), memory)
                return
            state, token = module.start(memory), torch.full((1, 1), runner.start_id)
            for done in range(max_length):
                _, state = module.step(token, torch.tensor(done), state, memory)
    except ModuleError as error:
        reached = "" if module.recomputes else f" after {done} tokens"
        raise ExportError(
            f"max_length {max_length} is more than the module can decode{reached}: {error}"
        ) from error
