"""The declared inputs of a module, and rows of real data for them."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tfexport import graph_io
from tfexport.errors import ConfigError, Message, Option, join_problems, shown
from tfexport.graph_io import BATCH, DTYPES, RESERVED, TensorSpec
from tfexport.module_rows import Array, read_row

_AXES_OF_GRAPHS = (
    graph_io.TARGET, graph_io.PAST, graph_io.BEAMS, graph_io.ROWS, graph_io.CANDIDATES,
)  # fmt: skip


@dataclass(frozen=True)
class Input:
    """One input of ``encode``.

    Attributes:
        name: as it is called in files and in ``generate_from``; a Python identifier. ``input_ids``
            and ``attention_mask`` make text and ``generate`` work.
        dtype: numpy's name of its type, one of ``float32``, ``float64``, ``int64``, ``int32``,
            ``int16``, ``int8``, ``uint8``, ``bool``.
        axes: a number for an axis of fixed size, a name for one that varies. The first is
            ``"batch"``; axes of one name have one size.
        below: the smallest number that is too large. Of integers, such as the size of a vocabulary,
            it is found by running ``encode`` by default, and decoding refuses larger ones. Floats
            are then drawn from 0 up to it, for code that takes them as row numbers or pixels; by
            default they are drawn around 0.
    """

    name: str
    dtype: str
    axes: Sequence[int | str]
    below: float | None = None

    @property
    def spec(self) -> TensorSpec:
        """The input as a ``TensorSpec``."""
        return TensorSpec(self.name, self.dtype, tuple(self.axes))


def check_inputs(inputs: Sequence[Input], batch_first: bool = True) -> tuple[Input, ...]:
    """Check declared inputs.

    Args:
        inputs: as the caller gave them.
        batch_first: whether the batch has to be the first axis; else it may stand anywhere.

    Raises:
        ConfigError: inputs are invalid; all problems are listed.
    """
    if isinstance(inputs, Input) or not isinstance(inputs, Iterable):
        problem = f"{shown(inputs)} is not a list of Input(name, dtype, axes)"
        raise ConfigError(join_problems(Option("inputs"), [problem]))
    given = tuple(inputs)
    problems: list[str | Message] = [] if given else ["is empty; list the inputs of encode"]
    for each in given:
        if not isinstance(each, Input):
            problems.append(f"{shown(each)} is not an Input(name, dtype, axes)")
        else:
            found = _problems(each, batch_first)
            problems += [f"{shown(each.name)}: {problem}" for problem in found]
    names = [each.name for each in given if isinstance(each, Input)]
    twice = sorted({name for name in names if names.count(name) > 1})
    problems += [f"{name!r} is listed twice" for name in twice]
    if not problems:
        problems += _text_problems({each.name: each for each in given})
    if problems:
        raise ConfigError(join_problems(Option("inputs"), problems))
    return given


def is_reserved(name: str) -> bool:
    """Whether the graphs have a tensor of a name."""
    return name in RESERVED or bool(re.fullmatch(r"(memory|past|present)_?\d*", name))


def _problems(given: Input, batch_first: bool) -> Iterator[str]:
    if not isinstance(given.name, str) or not given.name.isidentifier():
        yield "a name must be a Python identifier"
    elif is_reserved(given.name):
        yield "the graphs have an input or a tensor of that name; choose another"
    if given.dtype not in DTYPES:
        yield f"dtype {shown(given.dtype)} is not one of {', '.join(DTYPES)}"
    yield from _problems_of_below(given)
    if isinstance(given.axes, str) or not isinstance(given.axes, Sequence):
        yield f"axes {shown(given.axes)} is not a tuple of names and sizes"
        return
    if batch_first and (not given.axes or given.axes[0] != BATCH):
        yield f"the first axis must be {BATCH!r}"
    elif list(given.axes).count(BATCH) != 1:
        yield f"one axis must be {BATCH!r}"
    for axis in given.axes:
        if isinstance(axis, str):
            if not axis.isidentifier() or axis in _AXES_OF_GRAPHS:
                yield f"axis {axis!r} must be another Python identifier"
        elif isinstance(axis, bool) or not isinstance(axis, int) or axis < 1:
            yield f"axis {shown(axis)} is neither a name nor a size of at least 1"


def _problems_of_below(given: Input) -> Iterator[str]:
    below, floats = given.below, str(given.dtype).startswith("float")
    if below is None:
        return
    number = not isinstance(below, bool) and isinstance(below, int | float if floats else int)
    if not number or not (0 < below < math.inf if floats else below >= 1):
        expected = "a number above 0" if floats else "a positive integer"
        yield f"below {shown(below)} is not {expected}"


def _text_problems(inputs: Mapping[str, Input]) -> Iterator[str]:
    """Problems of the inputs that the runtime fills from rows of ids."""
    ids, mask = inputs.get(graph_io.INPUT_IDS), inputs.get(graph_io.ATTENTION_MASK)
    if ids is not None and (
        ids.dtype != "int64" or len(ids.axes) != 2 or not isinstance(ids.axes[1], str)
    ):
        yield "'input_ids' must be int64 with two axes, such as ('batch', 'source_length')"
    elif ids is not None and mask is not None and tuple(mask.axes) != tuple(ids.axes):
        yield "'attention_mask' must have the axes of 'input_ids'"


def check_examples(
    inputs: Sequence[Input], rows: Iterable[Mapping[str, Any]]
) -> list[dict[str, Array]]:
    """Rows of real data, without the batch axis, as arrays of the inputs' types.

    Raises:
        ConfigError: rows are invalid; all problems are listed.
    """
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        problem = f"{shown(rows)} is not a list of rows"
        raise ConfigError(join_problems(Option("examples"), [problem]))
    specs = tuple(each.spec for each in inputs)
    found = [read_row(specs, row) for row in rows]
    problems = [
        f"row {number}: {problem}" for number, (_, wrong) in enumerate(found) for problem in wrong
    ]
    if problems:
        raise ConfigError(join_problems(Option("examples"), problems))
    return [arrays for arrays, _ in found]


Sizes = dict[str, int]  # of named axes
LARGEST_ID = 1 << 20  # integers above are drawn for no input
# Sizes to try, from small to large: some modules take no small ones, others have a longest. The
# last are for modules that want multiples of a power of two.
_PRIMES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89)
_MULTIPLES = (16, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384)
BATCHES = (2, 3, 1, 4, 6, 5, 7)
# Even, long and short sizes, tried last: code may act otherwise on them (padding, patches).
_FURTHER = (24, 96, 3)


def axes_of(inputs: Sequence[Input]) -> tuple[str, ...]:
    """The named axes of all inputs but the batch, each once."""
    named = (axis for each in inputs for axis in each.axes[1:] if isinstance(axis, str))
    return tuple(dict.fromkeys(named))


def candidate_sizes(
    inputs: Sequence[Input], examples: Sequence[Mapping[str, Array]]
) -> Iterator[Sizes]:
    """Sizes to run a module at: rising ones, then those of real rows.

    The axes of one setting have different sizes, and no two axes vary alike, so that it shows which
    axis of a result follows which.
    """
    axes = axes_of(inputs)
    if not axes:
        yield {}
        return
    for ladder in (_PRIMES, _MULTIPLES):
        for first in range(0, len(ladder) - len(axes) + 1):
            # Neighbours on the ladder, in another order each time.
            chosen = ladder[first : first + len(axes)]
            turn = first % len(axes)
            yield dict(zip(axes, chosen[turn:] + chosen[:turn], strict=True))
    # For a module that takes few sizes; those of size 1 would become constants.
    found = (sizes_of(inputs, row) for row in examples)
    yield from (sizes for sizes in found if min(sizes.values()) > 1)


def further_sizes(inputs: Sequence[Input]) -> Iterator[Sizes]:
    """Other sizes than those of ``candidate_sizes``; a module may refuse them."""
    axes = axes_of(inputs)
    if axes:
        yield from ({a: size + 2 * i for i, a in enumerate(axes)} for size in _FURTHER)


def sizes_of(inputs: Sequence[Input], row: Mapping[str, Array]) -> Sizes:
    """The sizes of the named axes of a row."""
    return {
        axis: size
        for each in inputs
        for axis, size in zip(each.axes[1:], row[each.name].shape, strict=True)
        if isinstance(axis, str)
    }


def draw_rows(
    inputs: Sequence[Input], below: Mapping[str, float], sizes: Sizes, batch: int, seed: int = 0
) -> list[dict[str, Array]]:
    """Random rows, without the batch axis; an ``attention_mask`` keeps every position.

    Args:
        inputs: the inputs of the module.
        below: the exclusive upper bound of inputs, by name; other floats are drawn around 0.
        sizes: the sizes of named axes.
        batch: the number of rows.
        seed: the seed of the random numbers.
    """
    generator = np.random.default_rng([seed, batch, *sizes.values()])
    return [
        {each.name: _draw(each, below.get(each.name), sizes, generator) for each in inputs}
        for _ in range(batch)
    ]


def is_lone(each: Input) -> bool:
    """Whether an input is one number for each row, such as a length or a language."""
    return len(each.axes) == 1


def _draw(each: Input, below: float | None, sizes: Sizes, random: np.random.Generator) -> Array:
    shape = tuple(sizes[a] if isinstance(a, str) else a for a in each.axes[1:])
    if each.name == graph_io.ATTENTION_MASK:
        return np.ones(shape, each.dtype)
    if each.dtype.startswith("float"):
        if below is None:
            drawn = random.standard_normal(shape)
        elif is_lone(each):  # a share of something, of which half is there at least
            drawn = (1 - random.random(shape) / 2) * below
        else:
            drawn = random.random(shape) * below
        return np.asarray(drawn).astype(each.dtype)
    if each.dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    most = min(2 if below is None else int(below), LARGEST_ID, int(np.iinfo(each.dtype).max) + 1)
    least = 0
    if is_lone(each):  # a length is that of an axis at most, and half of it at least
        is_bounded = most < LARGEST_ID or not sizes  # as a class is
        longest = min(sizes.values(), default=most)
        most = min(most, longest + 1)
        least = min(1, most - 1) if is_bounded else most // 2
    return np.asarray(random.integers(least, most, shape)).astype(each.dtype)


def as_tensors(inputs: Sequence[Input], batch: Mapping[str, Array]) -> tuple[Tensor, ...]:
    """A batch in the order of ``encode``'s parameters; in float64 where torch computes in that."""
    exact = torch.get_default_dtype() == torch.float64
    found = (torch.from_numpy(batch[each.name]) for each in inputs)
    return tuple(it.double() if exact and it.is_floating_point() else it for it in found)
