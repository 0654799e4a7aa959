"""Sizes that a module makes of the sizes of its inputs: what strides, pooling and patches leave.

An axis of size 1 is broadcast, and torch takes it for a constant; two axes of one size may be taken
for the same. So a module is captured at sizes at which each of its inner axes that can vary has
more than one row, and no two of them are alike.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

# The axis of the keys' rows in torch's functions of attention.
_KEY_AXES = {F.multi_head_attention_forward: 0, F.scaled_dot_product_attention: -2}
Shapes = list[tuple[str, tuple[int, ...]]]  # of the result of each of torch's functions, by name
_MOST_POWER = 8  # of the size of an axis, with which the numbers of a result grow
_TAKEN = (2, 3)  # sizes of the batch and of the target ids, where a module is captured


class _Recorder(TorchFunctionMode):
    def __init__(self, shapes: Shapes) -> None:
        super().__init__()
        self._shapes = shapes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        value = func(*args, **kwargs or {})
        if func in _KEY_AXES:  # scores are computed inside
            named = dict(zip(("query", "key"), args, strict=False)) | (kwargs or {})
            keys = named["key"].size(_KEY_AXES[func])
            self._shapes.append(("scores", (*named["query"].shape[:-1], keys)))
        first = value[0] if isinstance(value, tuple | list) and value else value
        if isinstance(first, Tensor):
            self._shapes.append((getattr(func, "__name__", ""), tuple(first.shape)))
        return value


def shapes_in(compute: Callable[[], object]) -> Shapes:
    """Compute something; returns the shapes of all results of torch's functions."""
    shapes: Shapes = []
    with _Recorder(shapes):
        compute()
    return shapes


def varying_sizes(runs: Sequence[Shapes]) -> list[set[tuple[int, ...]]]:
    """The sizes of the inner axes that vary, as one set for each run.

    Args:
        runs: the shapes in runs of one module at several sizes.

    Returns:
        For each run, pairs (axis, size): a number for all axes that have the same sizes in all
        runs, and their size in this run. Empty for a run whose functions are others than those of
        the first, since its axes cannot be compared.
    """
    names = [name for name, _ in runs[0]]
    alike = [number for number, run in enumerate(runs) if [name for name, _ in run] == names]
    axes: dict[tuple[int, ...], int] = {}
    for shapes in zip(*([shape for _, shape in runs[number]] for number in alike), strict=True):
        if len({len(shape) for shape in shapes}) > 1:
            continue
        for sizes in zip(*shapes, strict=True):
            if len(set(sizes)) > 1:
                axes.setdefault(sizes, len(axes))
    return [
        {(axis, sizes[alike.index(number)]) for sizes, axis in axes.items()}
        if number in alike
        else set()
        for number in range(len(runs))
    ]


def expected_sizes(one: Shapes, two: Shapes, growth: float, further: float) -> tuple[float, float]:
    """How large the results of a larger run are, if all grow as they did before.

    Args:
        one: of a run.
        two: of a run with larger axes.
        growth: how many times as large they are, on average; above 1.
        further: how many times as large as in the second run the axes of the larger run are.

    Returns:
        Numbers of the largest result, and size of the largest axis.
    """

    def expected(before: int, after: int) -> float:
        power = math.log(max(after, 1) / max(before, 1)) / math.log(growth)
        size: float = after * further ** min(power, _MOST_POWER)
        return size

    if [name for name, _ in one] != [name for name, _ in two]:  # their largest are comparable
        one, two = ([("", max((shape for _, shape in run), key=math.prod))] for run in (one, two))
    pairs = [(before, after) for (_, before), (_, after) in zip(one, two, strict=True)]
    numbers = [expected(math.prod(before), math.prod(after)) for before, after in pairs]
    axes = [expected(*sizes) for pair in pairs for sizes in zip(*pair, strict=False)]
    return max(numbers, default=0.0), max(axes, default=0.0)


def has_single_rows(sizes: set[tuple[int, ...]]) -> bool:
    """Whether an inner axis that varies has one row, or none."""
    return any(size <= 1 for _, size in sizes)


def num_alike(sizes: set[tuple[int, ...]]) -> int:
    """How many of the inner axes that vary have the size of another one."""
    taken = [*(size for _, size in sizes), *_TAKEN]
    return len(taken) - len(set(taken))
