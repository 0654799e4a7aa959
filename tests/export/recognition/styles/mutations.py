"""Mutations of a style: one operator, constant or attribute is another one.

An operator is changed where the forward calls it: the forward runs in a mode that counts calls of
torch's functions and makes one of them otherwise. ``torch.export`` records what was called, so the
program is that of a user who wrote it so.
"""

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tests.export.incremental.own_case import (
    batch_axis,
    draw_inputs,
    draw_target,
    logits,
)
from tests.export.recognition.styles.edits import (
    EDITS,
    SOURCE_LENGTH,
    TARGET_LENGTH,
    Args,
    Edit,
    Kwargs,
)
from tests.export.recognition.styles.style import Change, Style, called

_ACTS = 2e-5  # by which the logits of a mutation that acts differ, in parts of the largest
_LENGTHS = {"source_length": SOURCE_LENGTH}
_ROWS = 3


@dataclass(frozen=True)
class Mutation:
    """A style in which one thing is another one.

    Attributes:
        name: what it is, with the number of the call if an operator is changed.
        kind: the name without numbers.
        style: with that changed; its own forward is the reference.
        unchanged: logits of the style without it, as of ``padded_logits``.
    """

    name: str
    kind: str
    style: Style
    unchanged: Callable[[], Tensor]

    @property
    def acts(self) -> bool:
        """Whether logits differ from those of the style, in a batch with padding.

        Numbers that are not finite differ.
        """
        found, wanted = padded_logits(self.style), self.unchanged()
        largest = wanted.abs().max().clamp(min=1)
        return not float((found - wanted).abs().max() / largest) <= _ACTS


def mutations(style: Style) -> list[Mutation]:
    """All mutations of a style; some of them compute the same."""
    found = [
        (name, name.rstrip("0123456789 "), replace(style, build=_changed(style, change)))
        for name, change in style.changes.items()
    ]
    for table in style.tables:
        for kind, by in (("positions from one", -1), ("positions from minus one", 1)):
            found.append(
                (f"{kind}: {table}", kind, replace(style, build=_shifted(style, table, by)))
            )
    if not style.stock:
        found += _of_calls(style)
    unchanged = functools.cache(lambda: padded_logits(style))
    return [
        Mutation(name, kind, replace(changed, name=f"{style.name}: {name}"), unchanged)
        for name, kind, changed in found
    ]


def drawn_mutations(styles: Sequence[Style], count: int, seed: int = 0) -> list[Mutation]:
    """Mutations that act, drawn so that no style and no kind is most of them.

    Args:
        styles: to draw from, in turn.
        count: how many; fewer if there are not so many.
        seed: of the draws.
    """
    numbers = random.Random(seed)
    turns = [_by_kind(mutations(style), numbers) for style in styles]
    found: list[Mutation] = []
    while turns and len(found) < count:
        for turn in list(turns):
            one = next((each for each in turn if each.acts), None)
            if one is None:
                turns.remove(turn)
            elif len(found) < count:
                found.append(one)
    return found


def _by_kind(of_style: Sequence[Mutation], numbers: random.Random) -> Iterator[Mutation]:
    """One of each kind, then another one of each, until there is none."""
    kinds: dict[str, list[Mutation]] = {}
    for each in numbers.sample(of_style, len(of_style)):
        kinds.setdefault(each.kind, []).append(each)
    while kinds:
        for kind in numbers.sample(sorted(kinds), len(kinds)):
            yield kinds[kind].pop()
            if not kinds[kind]:
                del kinds[kind]


def padded_logits(style: Style) -> Tensor:
    """(B, T, V) of three rows, of which two end with padding if the style masks it."""
    case = style.case
    inputs, target = (
        draw_inputs(case, _ROWS, _LENGTHS, 1),
        draw_target(case, _ROWS, TARGET_LENGTH, 2),
    )
    if style.pads_source:
        rows = inputs[0].movedim(batch_axis(style.inputs[0]), 0)  # a view
        rows[1, -2:] = rows[2, -4:] = style.pad_id
    return logits(case, style.build(), inputs, target)


# ---- attributes ----------------------------------------------------------------------------------


def _changed(style: Style, change: Change) -> Callable[[], nn.Module]:
    """A module with other attributes."""

    def build() -> nn.Module:
        model = style.build()
        for name, value in change.items():
            owner, _, attribute = name.rpartition(".")
            module = model.get_submodule(owner)
            assert hasattr(module, attribute), name
            setattr(module, attribute, value)
        return model.eval()

    return build


def _shifted(style: Style, table: str, by: int) -> Callable[[], nn.Module]:
    """A module whose table of positions has its rows elsewhere."""

    def build() -> nn.Module:
        model = style.build()
        owner, _, attribute = table.rpartition(".")
        rows = getattr(model.get_submodule(owner), attribute)
        axis = max(range(rows.dim()), key=lambda axis: int(rows.shape[axis]))
        with torch.no_grad():
            rows.copy_(rows.roll(by, axis))
        return model

    return build


# ---- calls ---------------------------------------------------------------------------------------


class _Recorder(TorchFunctionMode):
    """Keeps the arguments of all calls, by the name of the function."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, list[tuple[Args, Kwargs]]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Args = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        self.calls.setdefault(name, []).append((args, kwargs or {}))
        return func(*args, **kwargs or {})


class _OtherCall(TorchFunctionMode):
    """Makes the call of a number, among those of one name, otherwise."""

    def __init__(self, name: str, number: int, edit: Edit) -> None:
        super().__init__()
        self.name, self.left, self.edit = name, number, edit

    def __torch_function__(self, func: Any, types: Any, args: Args = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == self.name:
            self.left -= 1
            if self.left == -1:
                return self.edit.call(func, args, kwargs or {})
        return func(*args, **kwargs or {})


def _of_calls(style: Style) -> list[tuple[str, str, Style]]:
    """Mutations of calls: name, kind, and the style with the forward in which it is another one."""
    recorder = _Recorder()
    padded_logits(replace(style, forward=_within(style, lambda: recorder)))
    return [
        (
            f"{edit.kind} ({name} {number})",
            edit.kind,
            replace(
                style, forward=_within(style, functools.partial(_OtherCall, name, number, edit))
            ),
        )
        for edit in EDITS
        for name in edit.names
        for number, (args, kwargs) in enumerate(recorder.calls.get(name, ()))
        if edit.fits(args, kwargs)
    ]


def _within(style: Style, mode: Callable[[], TorchFunctionMode]) -> Callable[..., Any]:
    """The forward of a style in a mode, which is made for each call."""

    def forward(model: nn.Module, *tensors: Tensor) -> Any:
        with mode():
            return called(model, style, *tensors)

    return forward
