"""Sizes up to which a captured graph is the user's code."""

from collections.abc import Mapping

from tfexport.export.modules.contract import ModuleError
from tfexport.export.modules.examine import Examination
from tfexport.export.modules.runs import Runner


def check_sizes(found: Examination, largest: Mapping[str, int], max_length: int) -> None:
    """Refuse code that takes another branch for sizes that are larger than the example's.

    torch captures the branch of the example, with the largest size for which it is taken. That is
    right where the code itself ends there, as with a table of positions.

    Args:
        found: the module.
        largest: axis to that size; without axes that may have any size.
        max_length: tokens that are decoded at most.

    Raises:
        ModuleError: naming the axis and the size.
    """
    module = found.module
    last = "decode" if module.recomputes else "step"
    for axis, growth in found.io.growth.items():
        if axis in largest and isinstance(growth.start, int):
            needed = growth.start + growth.step * (max_length - 1)
            if largest[axis] < needed:
                raise module.wrong(last, _branch(axis, largest[axis], f"{needed} are needed"))
    declared = {axis for each in found.inputs for axis in each.axes if isinstance(axis, str)}
    for axis in declared & largest.keys():
        beyond = {**found.settings[0], axis: largest[axis] + 2}
        runner = Runner(module, found.inputs, 0, 1)
        runner.below.update(found.below)
        try:
            runner.run(beyond, 2, steps=1)
        except ModuleError:
            continue  # a limit of the code itself
        raise module.wrong("encode", _branch(axis, largest[axis], "the code takes more"))


def _branch(axis: str, size: int, needed: str) -> str:
    return (
        f"takes another branch, or cuts, where {axis} is more than {size}, and {needed}; a graph "
        "has one branch: write it for all sizes, as a mask does"
    )
