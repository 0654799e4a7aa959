"""Runs of a module at several sizes, and the axes of memory and state that show in them."""

import bisect
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from tfexport import graph_io
from tfexport.export.modules.contract import ModuleError, UserModule
from tfexport.export.modules.inner_sizes import (
    Shapes,
    expected_sizes,
    has_single_rows,
    num_alike,
    shapes_in,
    varying_sizes,
)
from tfexport.export.modules.inputs import (
    BATCHES,
    LARGEST_ID,
    Input,
    Sizes,
    as_tensors,
    axes_of,
    candidate_sizes,
    draw_rows,
    further_sizes,
    is_lone,
)
from tfexport.graph_io import BATCH, PAST, Growth, TensorSpec
from tfexport.module_rows import Array, stack_rows

_NOT_A_NUMBER = (
    "returns logits that are NaN for drawn inputs: softmax of a row of which a mask hides all is "
    "NaN; if an input holds lengths, shares or indices, declare their range, such as "
    "Input('lengths', …, below=1), or give rows of real inputs with examples"
)


class NotANumberError(ModuleError):
    """Logits that are NaN."""


@dataclass(frozen=True)
class ProbeRun:
    """The shapes and logits of a module at one setting.

    Attributes:
        sizes: the sizes of the named axes of the inputs, including the batch.
        memory: shape and dtype of each tensor of the memory.
        states: shape and dtype of each state tensor, before the first step and after every step.
        vocab_size: V.
        logits: the logits of every step, (B, T, V).
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
        """Get the shape and dtype of a tensor."""
        return cls(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"


@torch.no_grad()
def probe(
    module: UserModule, inputs: Sequence[Tensor], sizes: Sizes, start_id: int, steps: int
) -> ProbeRun:
    """Encode, and take steps with drawn tokens.

    Raises:
        ModuleError: a method failed, its result violates the contract, or it changed its arguments.
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
            raise NotANumberError(str(module.wrong(method, _NOT_A_NUMBER)))
        if found and logits.size(-1) != found[0].size(-1):
            sizes_found = f"{found[0].size(-1)} and {logits.size(-1)}"
            raise module.wrong(method, f"returns logits of {sizes_found} tokens at different steps")
        found.append(logits.to(torch.get_default_dtype()))
        states.append(tuple(map(Shaped.of, after)))
        state = after
        token = torch.randint(logits.size(-1), token.shape, generator=generator)
    return ProbeRun(
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
    """Refuse a method that modified its input tensors."""
    for number, (tensor, copy) in enumerate(zip(given, before, strict=True)):
        if not torch.equal(torch.nan_to_num(tensor), torch.nan_to_num(copy)):
            raise module.wrong(
                method,
                f"modifies its input tensor {number} in place; return new tensors "
                "(x + y instead of x += y, torch.cat, torch.where)",
            )


def _check_state(module: UserModule, before: tuple[Shaped, ...], after: tuple[Shaped, ...]) -> None:
    if len(before) != len(after):
        raise module.wrong(
            "step", f"returns a state of {len(after)} tensors, but takes one of {len(before)}"
        )
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        if old.dtype != new.dtype:
            raise module.wrong(
                "step", f"takes state tensor {number} as {old.dtype}, but returns {new.dtype}"
            )
        if len(old.shape) != len(new.shape):
            raise module.wrong(
                "step", f"takes state tensor {number} as {old.shape}, but returns {new.shape}"
            )


class AxisNames:
    """Names for axes: axes that have one size at every setting share a name."""

    def __init__(self, probes: Sequence[ProbeRun]) -> None:
        # Name to its size at every setting; declared axes keep their names, whatever their sizes.
        self._sizes = {
            name: tuple(probe.sizes[name] for probe in probes) for name in probes[0].sizes
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
    module: UserModule, method: str, probes: Sequence[ProbeRun], shapes: Sequence[Sequence[Shaped]]
) -> tuple[int, ...]:
    """For each tensor the axis that is the batch.

    Args:
        module: the custom module.
        method: the method that returned the tensors.
        probes: the settings.
        shapes: the shapes of the tensors at every setting.

    Raises:
        ModuleError: a tensor has none.
    """
    batches = tuple(probe.sizes[BATCH] for probe in probes)
    found = []
    for number, tensor in enumerate(zip(*shapes, strict=True)):
        sizes = list(zip(*(each.shape for each in tensor), strict=True))
        axes = [axis for axis, each in enumerate(sizes) if each == batches]
        if not axes:
            raise module.wrong(
                method,
                f"returns tensor {number} as {tensor[0]} for batch size {batches[0]}, and as "
                f"{tensor[1]} for batch size {batches[1]}: no axis has the size of the batch; add "
                "one, for example with x.expand(batch, ...)",
            )
        found.append(axes[0])
    return tuple(found)


def memory_specs(probes: Sequence[ProbeRun], names: AxisNames) -> tuple[TensorSpec, ...]:
    """Names, dtypes and axes of the memory."""
    specs = []
    for number, tensor in enumerate(zip(*(probe.memory for probe in probes), strict=True)):
        sizes = zip(*(each.shape for each in tensor), strict=True)
        axes = tuple(names.name(each, "memory_length") for each in sizes)
        specs.append(TensorSpec(f"memory.{number}", tensor[0].dtype, axes))
    return tuple(specs)


def state_specs(
    module: UserModule, probes: Sequence[ProbeRun], names: AxisNames
) -> tuple[tuple[TensorSpec, ...], dict[str, Growth]]:
    """Names, dtypes and axes of the state, and how its axes grow."""
    specs, growth = [], dict[str, Growth]()
    for number, first in enumerate(probes[0].states[0]):
        axes: list[int | str] = []
        for axis in range(len(first.shape)):
            # Sizes of the axis: of each setting before the first step, then after every step.
            runs = [[state[number].shape[axis] for state in probe.states] for probe in probes]
            steps = {after - before for run in runs for before, after in pairwise(run)}
            start = names.name(tuple(run[0] for run in runs), "state_length")
            if steps == {0}:
                axes.append(start)
            elif len(steps) == 1 and (step := steps.pop()) > 0 and start != BATCH:
                axes.append(_growing(Growth(start, step), growth))
            else:
                raise module.wrong(
                    "step",
                    f"returns tensor {number} of the state with the sizes {runs[0]} on axis {axis} "
                    f"after 0 to {len(runs[0]) - 1} steps; every axis must stay the same, or grow "
                    "by the same amount at every step",
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


SETTINGS = 4  # sizes at which the module is run
_MOST_NUMBERS, _MOST_ROWS = 2**26, 2**12  # of an inner tensor, where further sizes are tried
Examples = Sequence[Mapping[str, Array]]


class Runner:
    """Runs of one module."""

    def __init__(
        self, module: UserModule, inputs: tuple[Input, ...], start_id: int, steps: int
    ) -> None:
        self.module, self.inputs, self.start_id, self.steps = module, inputs, start_id, steps
        self._shapes: dict[tuple[int, ...], Shapes] = {}  # by the sizes of a run
        self._vocab_sizes: dict[tuple[int, ...], int] = {}
        self.below: dict[str, float] = {
            each.name: each.below for each in inputs if each.below is not None
        }

    def settings(self, examples: Examples) -> list[Sizes]:
        """Sizes at which the module runs; the first is that at which it is to be captured.

        The first few are as small as they can be without an inner axis of one row.

        Raises:
            ModuleError: it runs at none, or at too few of them.
        """
        tried: list[Sizes] = []
        failures: list[ModuleError] = []
        candidates = candidate_sizes(self.inputs, examples)
        self._try(candidates, tried, failures)
        if not tried:
            raise self._advised(failures[0])
        if not axes_of(self.inputs):
            return tried * SETTINGS
        if len(tried) < 2 or any(
            len({sizes[axis] for sizes in tried}) < 2 for axis in axes_of(self.inputs)
        ):
            sizes = ", ".join(f"{axis}={size}" for axis, size in tried[0].items())
            last = f" Elsewhere: {failures[-1]}" if failures else ""
            raise ModuleError(
                f"{self.module.name} only runs with the sizes {sizes}; declare an "
                f"axis of fixed size by its size, not by a name.{last}"
            )
        further: list[Sizes] = []
        for other in further_sizes(self.inputs):
            if self._is_affordable(other, [*tried, *further]) and self._runs(other):
                further.append(other)
        chosen = self._without_single_rows(tried, further)
        while len(chosen) < SETTINGS and self._try(candidates, tried, failures, len(tried) + 1):
            chosen = self._without_single_rows(tried, further)
        varied = all(len({sizes[axis] for sizes in chosen}) > 1 for axis in axes_of(self.inputs))
        settings = self._unlike_first(chosen if varied else tried[:SETTINGS])
        while len(settings) < SETTINGS:
            settings.append(settings[len(settings) % 2])
        return settings + [sizes for sizes in further if sizes not in settings]

    def _try(
        self,
        candidates: Iterator[Sizes],
        tried: list[Sizes],
        failures: list[ModuleError],
        wanted: int = SETTINGS,
    ) -> bool:
        """Add sizes at which the module runs; returns whether there are as many as wanted."""
        while len(tried) < wanted:
            sizes = next(candidates, None)
            if sizes is None:
                return False
            before = dict(self.below)
            try:
                self._find_bounds(sizes)
                self._record(sizes)
            except NotANumberError as error:
                self.below = before
                shares = [each.name for each in self.inputs if self._may_be_share(each)]
                if not shares:
                    failures.append(error)
                    continue
                self.below |= dict.fromkeys(shares, 1.0)
                candidates = itertools.chain([sizes], candidates)
            except ModuleError as error:
                self.below = before  # nothing is learned at a size that fails
                failures.append(error)
            else:
                tried += [sizes] if sizes not in tried else []
        return True

    def _may_be_share(self, each: Input) -> bool:
        """Whether an input may be a length as a share of the longest, which cannot be negative."""
        return is_lone(each) and each.dtype.startswith("float") and each.name not in self.below

    def _runs(self, sizes: Sizes) -> bool:
        """Whether the module runs; with many rows if each may have a length of its own."""
        try:
            self._record(sizes)
            if any(map(is_lone, self.inputs)):
                self.run(sizes, max(BATCHES), steps=1)
        except ModuleError:
            return False
        return True

    def _is_affordable(self, sizes: Sizes, known: Sequence[Sizes]) -> bool:
        """Whether no inner tensor is too large, as attention between all pixels is."""
        largest = max(known, key=lambda each: math.prod(each.values()))
        smaller = [each for each in known if all(each[a] < largest[a] for a in largest)]
        if not smaller:
            return True
        least = min(smaller, key=lambda each: math.prod(each.values()))
        shapes = self._shapes[_key(least)], self._shapes[_key(largest)]
        growth, further = _mean_growth(least, largest), _mean_growth(largest, sizes)
        numbers, rows = expected_sizes(*shapes, growth, further)
        return numbers <= _MOST_NUMBERS and rows <= _MOST_ROWS

    def _record(self, sizes: Sizes) -> None:
        """Run, and keep the size of the vocabulary and the shapes of all inner tensors."""

        def run() -> None:
            self._vocab_sizes[_key(sizes)] = self.run(sizes, 2, steps=1).vocab_size

        self._shapes[_key(sizes)] = shapes_in(run)

    def _without_single_rows(self, tried: Sequence[Sizes], further: Sequence[Sizes]) -> list[Sizes]:
        """The first few sizes without an inner axis that varies and has one row."""
        inner = varying_sizes([self._shapes[_key(sizes)] for sizes in (*tried, *further)])
        pairs = zip(tried, inner, strict=False)
        return [sizes for sizes, axes in pairs if not has_single_rows(axes)][:SETTINGS]

    def _unlike_first(self, settings: list[Sizes]) -> list[Sizes]:
        """The sizes, beginning with those at which the fewest inner axes are of one size."""
        inner = varying_sizes([self._shapes[_key(sizes)] for sizes in settings])
        total = [sum(sizes.values()) for sizes in settings]
        order = sorted(range(len(settings)), key=lambda i: (num_alike(inner[i]), -total[i]))
        return [settings[i] for i in order]

    def _advised(self, error: ModuleError) -> ModuleError:
        """An error of an index out of bounds, with advice if random floats are the indices."""
        floats = [each.name for each in self.inputs if each.dtype.startswith("float")]
        drawn = [name for name in floats if name not in self.below]
        if not drawn or "index out of range" not in str(error):
            return error
        example = f'Input("{drawn[0]}", …, below=100)'
        return ModuleError(
            f"{error} Numbers of {' and '.join(drawn)} are random values around 0; if they are "
            f"indices, declare their range: {example}."
        )

    def probes(self, settings: Sequence[Sizes]) -> list[ProbeRun]:
        """Runs at all settings, each with another size of the batch."""
        return [
            self.run(sizes, batch, self.steps)
            for sizes, batch in zip(settings, BATCHES, strict=False)
        ]

    def run(self, sizes: Sizes, batch: int, steps: int, seed: int = 0) -> ProbeRun:
        """One run with drawn inputs."""
        return self.run_rows(draw_rows(self.inputs, self.below, sizes, batch, seed), sizes, steps)

    def vocab_size(self, sizes: Sizes) -> int:
        """V, at one of ``settings``."""
        return self._vocab_sizes[_key(sizes)]

    def run_rows(
        self, rows: Sequence[Mapping[str, Array]], sizes: Sizes, steps: int, pad_id: int = 0
    ) -> ProbeRun:
        """One run over these rows."""
        given = as_tensors(self.inputs, stack_rows(rows, pad_id))
        return probe(self.module, given, sizes, self.start_id, steps)

    def _find_bounds(self, sizes: Sizes) -> None:
        """Find for each integer input the largest number that ``encode`` takes.

        That of a length follows the size of its row, and is no bound.
        """
        weights = (each for each in self.module.code.parameters() if not is_lazy(each))
        tables = {len(weight) for weight in weights if weight.dim() == 2}
        for each in self.inputs:
            if not self._has_unknown_bound(each):
                continue
            accepts, other = self._accepts(each, sizes, 0), 0
            if not accepts(0) and not accepts(1):  # as with lengths, of which none may be 0
                accepts, other = self._accepts(each, sizes, 1), 1
            bound = _smallest_refused(accepts, tables)
            if (
                is_lone(each)
                and bound < LARGEST_ID
                and self._follows_sizes(each, sizes, bound, other)
            ):
                bound = LARGEST_ID
            self.below[each.name] = bound

    def _follows_sizes(self, each: Input, sizes: Sizes, number: int, other: int) -> bool:
        """Whether ``encode`` takes a number that is too large at some sizes at larger ones."""
        larger = [{axis: 2 * size for axis, size in sizes.items()},
                  {axis: size + 2 for axis, size in sizes.items()}]  # fmt: skip
        return any(self._accepts(each, these, other)(number) for these in larger)

    def _has_unknown_bound(self, each: Input) -> bool:
        """Whether an input holds integers, of which the largest that are allowed are not known."""
        known = each.name in self.below or each.name == graph_io.ATTENTION_MASK
        return np.issubdtype(each.dtype, np.integer) and not known

    def _accepts(self, each: Input, sizes: Sizes, other: int) -> Callable[[int], bool]:
        """Whether ``encode`` takes a number everywhere in one input.

        Args:
            each: the input.
            sizes: of the axes.
            other: the number everywhere in inputs whose bound is not known.
        """
        below = {one.name: 1 for one in self.inputs} | self.below
        (row,) = draw_rows(self.inputs, below, sizes, 1)
        unknown = [one.name for one in self.inputs if self._has_unknown_bound(one)]
        row |= {name: np.full_like(row[name], other) for name in unknown}
        most = np.iinfo(each.dtype).max

        def accepts(number: int) -> bool:
            if number > most:
                return False
            filled = {**row, each.name: np.full_like(row[each.name], number)}
            try:
                with torch.no_grad():
                    given = as_tensors(self.inputs, stack_rows([filled, filled]))
                    memory = self.module.encode(given)
                    if self.module.own is not None and self.module.recomputes:
                        # Its encode keeps the inputs.
                        self.module.decode(torch.full((2, 1), self.start_id), memory)
                    elif not all(tensor.is_floating_point() for tensor in memory):
                        probe(self.module, given, sizes, self.start_id, steps=1)
            except NotANumberError:
                return True
            except ModuleError:
                return False
            return True

        return accepts


def _mean_growth(small: Sizes, large: Sizes) -> float:
    """How many times as large axes are, as a geometric mean."""
    ratios = [large[axis] / small[axis] for axis in small]
    return math.prod(ratios) ** (1 / len(ratios))


def _key(sizes: Sizes) -> tuple[int, ...]:
    return tuple(sizes.values())


def _smallest_refused(accepts: Callable[[int], bool], likely: Collection[int]) -> int:
    """The smallest refused number from 1 on, by bisection; ``LARGEST_ID`` if all are accepted.

    Args:
        accepts: whether a number is accepted, and all smaller ones are.
        likely: numbers that it may well be, such as rows of tables; they are tried first.
    """
    numbers = sorted(likely)
    place = bisect.bisect_left(numbers, True, key=lambda number: not accepts(number))
    low = numbers[place - 1] if place else 0
    if place < len(numbers):
        high = numbers[place]
        if high - low == 1 or accepts(high - 1):
            return high
        high -= 1
    else:
        high = max(2 * low, 1)
        while high < LARGEST_ID and accepts(high):
            low, high = high, 2 * high
        if high >= LARGEST_ID:
            return LARGEST_ID
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accepts(middle) else (low, middle)
    return high
