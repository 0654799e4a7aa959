"""What the driver has to know of a published model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

BEAM = 4  # hypotheses, where a beam is compared too


@dataclass(frozen=True)
class Way:
    """One way to export a model.

    Attributes:
        name: of the way.
        arguments: of ``tfexport onnx``.
        wrote: the classes and functions that a user writes for it, or a JSON file.
    """

    name: str
    arguments: tuple[str, ...]
    wrote: tuple[Any, ...] = ()


def module_ways(
    file: str, prefix: type, steps: type, forward: tuple[Any, ...], arguments: Callable[..., Any]
) -> tuple[Way, Way, Way]:
    """The ways of a module of one's own: by its forward, without a state and with one.

    Args:
        file: its name as a module; it has the factories ``by_forward``, ``prefix`` and ``steps``.
        prefix: the module with ``encode`` and ``decode``.
        steps: a kind of it, with ``start`` and ``step`` too.
        forward: what is written to export the package's class by its forward.
        arguments: of ``export``, which the other factories give.
    """
    return (
        Way("`forward` alone", ("--module", f"{file}:by_forward"), forward),
        Way("`encode`, `decode`", ("--module", f"{file}:prefix"), (prefix, arguments)),
        Way("the same, `start`, `step`", ("--module", f"{file}:steps"), (prefix, steps, arguments)),
    )


@dataclass(frozen=True)
class Published:
    """A model of the package index.

    Attributes:
        name: of its file here, and of its texts.
        requirement: of its package.
        ways: to export it.
        row: a text to what the bundle takes: ids, or an array an input.
        own: a text to the tokens that the package's own loop gives, without start and end token.
        limit: tokens that the own loop gives a text at most.
        logits: a text and the first tokens of its target to the logits of the next one, by the
            package's own code.
        own_beam: as ``own``, by the own code's beam of ``BEAM``, where it has one.
        judge: after all texts, tells how well the model did its task, and raises if it did not.
    """

    name: str
    requirement: str
    ways: tuple[Way, ...]
    row: Callable[[str], Any]
    own: Callable[[str], list[int]]
    limit: Callable[[str], int]
    logits: Callable[[str, list[int]], Tensor]
    own_beam: Callable[[str], list[int]] | None = None
    judge: Callable[[], str] | None = None
