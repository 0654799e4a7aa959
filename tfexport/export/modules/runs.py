"""Runs of a user's module with drawn inputs, at sizes and with numbers that it accepts."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from tfexport import graph_io
from tfexport.export.modules.contract import ModuleError, UserModule
from tfexport.export.modules.draw import (
    BATCHES,
    LARGEST_ID,
    Sizes,
    as_tensors,
    axes_of,
    candidate_sizes,
    draw_rows,
    further_sizes,
)
from tfexport.export.modules.inputs import Input
from tfexport.export.modules.traces import Trace, trace
from tfexport.module_rows import Array, stack_rows

SETTINGS = 4  # sizes at which the module is run
Examples = Sequence[Mapping[str, Array]]


class Runner:
    """Runs of one module."""

    def __init__(
        self, module: UserModule, inputs: tuple[Input, ...], start_id: int, steps: int
    ) -> None:
        self.module, self.inputs, self.start_id, self.steps = module, inputs, start_id, steps
        self.below: dict[str, float] = {
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
            before = dict(self.below)
            try:
                self._find_bounds(sizes)
                self.run(sizes, 2, steps=1)
            except ModuleError as error:
                self.below = before  # nothing is learned at a size that fails
                failures.append(error)
            else:
                found += [sizes] if sizes not in found or not axes_of(self.inputs) else []
        if not found:
            raise self._advised(failures[0])
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
        for sizes in further_sizes(self.inputs):
            try:
                self.run(sizes, 2, steps=1)
            except ModuleError:
                continue
            found += [sizes] if sizes not in found else []
        return found

    def _advised(self, error: ModuleError) -> ModuleError:
        """An error of a row number out of bounds, with what to do if drawn floats are these."""
        floats = [each.name for each in self.inputs if each.dtype.startswith("float")]
        drawn = [name for name in floats if name not in self.below]
        if not drawn or "index out of range" not in str(error):
            return error
        example = f'Input("{drawn[0]}", …, below=100)'
        return ModuleError(
            f"{error} Numbers of {' and '.join(drawn)} are drawn around 0; if they are row numbers,"
            f" give their range: {example}."
        )

    def traces(self, settings: Sequence[Sizes]) -> list[Trace]:
        """Runs at all settings, each with another size of the batch."""
        return [
            self.run(sizes, batch, self.steps)
            for sizes, batch in zip(settings, BATCHES, strict=False)
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
