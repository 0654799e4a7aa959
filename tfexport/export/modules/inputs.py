"""The declared inputs of a module, and rows of real data for them."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
        """As an input of a graph."""
        return TensorSpec(self.name, self.dtype, tuple(self.axes))


def check_inputs(inputs: Sequence[Input]) -> tuple[Input, ...]:
    """Check declared inputs.

    Raises:
        ConfigError: naming every problem.
    """
    if isinstance(inputs, Input) or not isinstance(inputs, Iterable):
        problem = f"{shown(inputs)} is not a list of Input(name, dtype, axes)"
        raise ConfigError(join_problems(Option("inputs"), [problem]))
    given = tuple(inputs)
    problems: list[str | Message] = [] if given else ["there is none; list those of encode"]
    for each in given:
        if not isinstance(each, Input):
            problems.append(f"{shown(each)} is not an Input(name, dtype, axes)")
        else:
            problems += [f"{shown(each.name)}: {problem}" for problem in _problems(each)]
    names = [each.name for each in given if isinstance(each, Input)]
    twice = sorted({name for name in names if names.count(name) > 1})
    problems += [f"{name!r} is listed twice" for name in twice]
    if not problems:
        problems += _text_problems({each.name: each for each in given})
    if problems:
        raise ConfigError(join_problems(Option("inputs"), problems))
    return given


def _problems(given: Input) -> Iterator[str]:
    if not isinstance(given.name, str) or not given.name.isidentifier():
        yield "a name has to be a Python identifier"
    elif given.name in RESERVED or re.fullmatch(r"(memory|past|present)_?\d*", given.name):
        yield "the graphs have an input or a tensor of that name; choose another"
    if given.dtype not in DTYPES:
        yield f"dtype {shown(given.dtype)} is not one of {', '.join(DTYPES)}"
    yield from _problems_of_below(given)
    if isinstance(given.axes, str) or not isinstance(given.axes, Sequence):
        yield f"axes {shown(given.axes)} is not a tuple of names and sizes"
        return
    if not given.axes or given.axes[0] != BATCH:
        yield f"the first axis has to be {BATCH!r}"
    for axis in given.axes:
        if isinstance(axis, str):
            if not axis.isidentifier() or axis in _AXES_OF_GRAPHS:
                yield f"axis {axis!r} has to be another Python identifier"
        elif isinstance(axis, bool) or not isinstance(axis, int) or axis < 1:
            yield f"axis {shown(axis)} is neither a name nor a size of at least 1"
    if list(given.axes[1:]).count(BATCH):
        yield f"{BATCH!r} is the first axis only"


def _problems_of_below(given: Input) -> Iterator[str]:
    below, floats = given.below, str(given.dtype).startswith("float")
    if below is None:
        return
    number = not isinstance(below, bool) and isinstance(below, int | float if floats else int)
    if not number or not (0 < below < math.inf if floats else below >= 1):
        expected = "a number above 0" if floats else "an integer from 1 on"
        yield f"below {shown(below)} is not {expected}"


def _text_problems(inputs: Mapping[str, Input]) -> Iterator[str]:
    """Problems of the inputs that the runtime fills from rows of ids."""
    ids, mask = inputs.get(graph_io.INPUT_IDS), inputs.get(graph_io.ATTENTION_MASK)
    if ids is not None and (
        ids.dtype != "int64" or len(ids.axes) != 2 or not isinstance(ids.axes[1], str)
    ):
        yield "'input_ids' has to be int64 of two axes, such as ('batch', 'source_length')"
    elif ids is not None and mask is not None and tuple(mask.axes) != tuple(ids.axes):
        yield "'attention_mask' has to have the axes of 'input_ids'"


def check_examples(
    inputs: Sequence[Input], rows: Iterable[Mapping[str, Any]]
) -> list[dict[str, Array]]:
    """Rows of real data, without the batch axis, as arrays of the inputs' types.

    Raises:
        ConfigError: naming everything that does not fit.
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
