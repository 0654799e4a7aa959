"""Inputs and target ids that are declared by an example of a forward's arguments.

Which axis is the batch, and which other ones vary, is found by running the forward with other
sizes.

Axes: B batch, T target length.
"""

import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tfexport.errors import ConfigError, Message, Option, join_problems, shown
from tfexport.export.incremental.forward import TARGET, Forward, OwnForward
from tfexport.export.modules.contract import ModuleError
from tfexport.export.modules.inputs import Input, is_reserved
from tfexport.graph_io import BATCH, DTYPES, INPUT_IDS
from tfexport.module_rows import Array

_REMEDY = Message("Give ", Option("inputs"), " in its place; docs/training-script.md has the form.")
_MOST_ALIKE = 5  # axes of one size, of which it is tried which vary together
_TOLERANCE = 1e-4  # by which a row may change in a larger batch: other orders of sums
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
Place = tuple[int, int]  # an input and one of its axes


@dataclass(frozen=True)
class Declared:
    """The declarations of an example.

    Attributes:
        inputs: the arguments of the forward but the target, in order.
        target: the target ids.
        row: the first row of the example, without the batch axis.
    """

    inputs: tuple[Input, ...]
    target: Input
    row: Mapping[str, Array]


@torch.no_grad()
def declare(model: nn.Module, example: Any, call: Forward | None = None) -> Declared:
    """Find the names, types and axes of a forward's arguments by running it.

    Args:
        model: the user's, in eval mode.
        example: the arguments of a call, the target ids last, as tensors or arrays.
        call: see ``OwnForward``.

    Raises:
        ConfigError: the example is none, or leaves open which axis is which; all are named.
        ModuleError: the forward does not run with the example.
    """
    tensors = _read(example)
    names = _names(model, call, len(tensors) - 1)
    own = _find_batch(model, call, names, tensors)
    inputs = _Sizes(own, tensors).inputs()
    first = (
        tensor.select(each.axes.index(BATCH), 0).numpy()
        for each, tensor in zip(inputs, tensors[:-1], strict=True)
    )
    row = {each.name: array for each, array in zip(inputs, first, strict=True)}
    return Declared(inputs, own.target, row)


def _read(example: Any) -> list[Tensor]:
    """The arguments of an example as tensors."""
    if isinstance(example, Tensor | np.ndarray | str) or not isinstance(example, Sequence):
        raise _refusal([f"{shown(example)} is not a tuple of tensors, the target ids last"])
    if len(example) < 2:
        raise _refusal(["has no two tensors; give the inputs of forward, and the target ids last"])
    tensors, problems = [], list[str]()
    for number, each in enumerate(example):
        if not isinstance(each, Tensor | np.ndarray):
            problems.append(f"argument {number}: {shown(each)} is not a tensor")
        elif _dtype(each) not in DTYPES:
            problems.append(f"argument {number}: {_dtype(each)} is not one of {_list(DTYPES)}")
        elif 0 in each.shape:
            problems.append(f"argument {number}: its shape {_shape(each)} has no values")
        elif isinstance(each, Tensor):
            tensors.append(each.detach().cpu())
        else:
            tensors.append(torch.from_numpy(np.array(each)))
    if not problems and (tensors[-1].dim() != 2 or _dtype(tensors[-1]) not in ("int64", "int32")):
        found = f"{_dtype(tensors[-1])} {_shape(tensors[-1])}"
        problems.append(f"the last argument, the target ids, is {found}; expected int64 (B, T)")
    if problems:
        raise _refusal(problems)
    return tensors


def _refusal(problems: Sequence[str]) -> ConfigError:
    return ConfigError(join_problems(Option("example"), problems, _REMEDY))


def _names(model: nn.Module, call: Forward | None, count: int) -> list[str]:
    """The names of the parameters that take the inputs."""
    given = model.forward if call is None else call
    try:
        parameters = list(inspect.signature(given).parameters.values())
    except (TypeError, ValueError):  # a function without a signature, such as one written in C
        parameters = []
    parameters = parameters[0 if call is None else 1 :]
    single = (each for each in parameters if each.kind in _POSITIONAL)
    names = [*(each.name for each in single), *(f"input_{i}" for i in range(count))][:count]
    return [f"{name}_input" if is_reserved(name) else name for name in names]


def _find_batch(
    model: nn.Module, call: Forward | None, names: Sequence[str], tensors: Sequence[Tensor]
) -> OwnForward:
    """The forward, with the axis of the batch in each argument.

    The target ids may have another length by themselves, and all arguments another batch together.
    """
    tried: dict[OwnForward, list[Tensor]] = {}
    errors: list[ModuleError] = []
    for axes in itertools.product(*(range(tensor.dim()) for tensor in tensors)):
        if len({tensor.size(axis) for tensor, axis in zip(tensors, axes, strict=True)}) > 1:
            continue
        own = _declared(model, call, names, tensors, axes)
        try:
            tried[own] = _other_sizes(own, tensors)
        except ModuleError as error:
            errors.append(error)
    for found in (list(tried), [own for own, logits in tried.items() if _rows_stay(*logits)]):
        if len(found) == 1:
            return found[0]
    shapes = _list(map(_shape, tensors))
    if tried:
        ways = " or ".join(
            str([_batch(each) for each in (*own.inputs, own.target)]) for own in tried
        )
        raise _refusal([
            f"which axes are the batch cannot be told: forward runs with axes {ways} of its "
            f"arguments, of shapes {shapes}, as the batch"
        ])  # fmt: skip
    if errors:
        raise errors[0]
    raise _refusal([f"of the shapes {shapes}, no axes are of one size, that of the batch"])


def _declared(
    model: nn.Module,
    call: Forward | None,
    names: Sequence[str],
    tensors: Sequence[Tensor],
    batch: Sequence[int],
) -> OwnForward:
    """The forward, if these axes are the batch; the others have numbers for names."""
    axes = [
        tuple(BATCH if i == axis else f"axis_{i}" for i in range(tensor.dim()))
        for tensor, axis in zip(tensors, batch, strict=True)
    ]
    inputs = tuple(
        Input(name, _dtype(tensor), each)
        for name, tensor, each in zip(names, tensors, axes, strict=False)
    )
    of_target = tuple(axis if axis == BATCH else "target_length" for axis in axes[-1])
    target = replace(TARGET, dtype=_dtype(tensors[-1]), axes=of_target)
    return OwnForward(model, inputs, target, call)


def _run(own: OwnForward, tensors: Sequence[Tensor]) -> Tensor:
    *inputs, target = (
        tensor.movedim(_batch(each), 0)
        for each, tensor in zip((*own.inputs, own.target), tensors, strict=True)
    )
    return own(inputs, target)


def _other_sizes(own: OwnForward, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The logits of the example, and of another batch.

    Raises:
        ModuleError: the forward does not run with these, or with another number of target ids.
    """
    *inputs, target = tensors
    batch, length = (target.size(axis) for axis in (_batch(own.target), 1 - _batch(own.target)))

    def run(what: str, given: Sequence[Tensor]) -> Tensor:
        try:
            return _run(own, given)
        except ModuleError as error:
            raise ModuleError(f"example: forward does not run with {what}: {error}") from error

    def run_length(size: int) -> Tensor:
        return run(f"{size} target ids", [*inputs, _sized(target, 1 - _batch(own.target), size)])

    found = run("its shapes", tensors)
    try:
        run_length(length + 1)
    except ModuleError:
        if length < 3:
            raise
        run_length(length - 1)
    declared = (*own.inputs, own.target)
    more = [
        _sized(tensor, _batch(each), batch + 1)
        for each, tensor in zip(declared, tensors, strict=True)
    ]
    return [found, run(f"a batch of {batch + 1}", more)]


def _rows_stay(found: Tensor, more: Tensor) -> bool:
    """Whether the rows of a batch have the same logits in a larger one."""
    return torch.allclose(more[: len(found)], found, rtol=_TOLERANCE, atol=_TOLERANCE)


@dataclass(frozen=True)
class _Sizes:
    """A forward that is run with other sizes of its inputs' axes.

    Attributes:
        own: with the axis of the batch in each argument.
        tensors: the example.
    """

    own: OwnForward
    tensors: Sequence[Tensor]

    def inputs(self) -> tuple[Input, ...]:
        """The inputs with the axes that vary.

        Raises:
            ConfigError: it cannot be told of an axis; all are listed.
        """
        places = [
            (i, axis)
            for i, each in enumerate(self.own.inputs)
            for axis in range(len(each.axes))
            if axis != _batch(each)
        ]
        together: list[tuple[Place, ...]] = []
        unknown: list[str] = []
        left = []
        for place in places:
            varies = self._varies((place,))
            if varies:
                together.append((place,))
            elif varies is None:
                unknown.append(self._unknown(place))
            else:
                left.append(place)
        together += self._varying_together(left)
        if unknown:
            raise _refusal(unknown)
        return self._named(together)

    def _size(self, place: Place) -> int:
        number, axis = place
        return self.tensors[number].size(axis)

    def _runs(self, places: Sequence[Place], size: int) -> bool:
        given = list(self.tensors)
        for number, axis in places:
            given[number] = _sized(given[number], axis, size)
        try:
            _run(self.own, given)
        except ModuleError:
            return False
        return True

    def _varies(self, places: Sequence[Place]) -> bool | None:
        """Whether axes of one size vary together; None if that cannot be told."""
        size = self._size(places[0])
        # Sizes of 1 could be broadcast; sizes close by could be rounded, as by a stride.
        less, half = (size - 1 > 1 and self._runs(places, size - 1),
                      size // 2 > 1 and self._runs(places, size // 2))  # fmt: skip
        if less and half:
            return True
        more, double = self._runs(places, size + 1), self._runs(places, 2 * size)
        if less and more and double:
            return True
        return None if half or double else False

    def _unknown(self, place: Place) -> str:
        number, axis = place
        return (
            f"whether axis {axis} of {self.own.inputs[number].name}, of size {self._size(place)}, "
            "varies cannot be told, since forward runs with some other sizes and not with all; a "
            "longer example may show it"
        )

    def _varying_together(self, places: Sequence[Place]) -> Iterator[tuple[Place, ...]]:
        """Axes of one size that vary only together, such as those of ids and of their mask."""
        left = list(places)
        for size in sorted({self._size(place) for place in places}):
            alike = [place for place in left if self._size(place) == size][:_MOST_ALIKE]
            sets = (
                chosen
                for count in range(len(alike), 1, -1)
                for chosen in itertools.combinations(alike, count)
            )
            found = next((chosen for chosen in sets if self._varies(chosen)), None)
            if found is not None:
                yield found

    def _named(self, together: Sequence[tuple[Place, ...]]) -> tuple[Input, ...]:
        """The inputs, with the names of axes that vary, and the sizes of the others."""
        declared = self.own.inputs
        varying = [place for places in together for place in places]
        lone = declared[0]
        if len(declared) == 1 and lone.dtype == "int64" and len(lone.axes) == 2 and varying:
            declared = (replace(lone, name=INPUT_IDS),)
        axes: dict[Place, str] = {}
        for places in together:
            number, axis = places[0]
            name = declared[number].name
            alone = sum(each == number for each, _ in varying) == 1
            named = f"{name}_length" if alone else f"{name}_axis_{axis}"
            axes |= dict.fromkeys(places, "source_length" if name == INPUT_IDS else named)
        return tuple(
            replace(
                each,
                axes=tuple(
                    BATCH if axis == _batch(each) else axes.get((i, axis), self._size((i, axis)))
                    for axis in range(len(each.axes))
                ),
            )
            for i, each in enumerate(declared)
        )


def _sized(tensor: Tensor, axis: int, size: int) -> Tensor:
    """A tensor with another size of an axis: fewer of its values, or the first ones again."""
    return tensor.index_select(axis, torch.arange(size) % tensor.size(axis))


def _batch(each: Input) -> int:
    return each.axes.index(BATCH)


def _dtype(tensor: Tensor | Array) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _shape(tensor: Tensor | Array) -> str:
    return str(tuple(tensor.shape))


def _list(items: Any) -> str:
    return ", ".join(items)
