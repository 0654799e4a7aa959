"""Steps that are found in a forward, compared with the forward over whole prefixes.

Axes: B batch, S source, T target, V vocabulary.
"""

import inspect
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.export.incremental import refused_modules
from tests.export.incremental.own_case import (
    Case,
    draw_inputs,
    draw_target,
    drawn,
    in_its_order,
    logits,
)
from tests.export.incremental.own_modules import BOS, CASES, EOS, PAD
from tests.export.incremental.refused_modules import REFUSED, RefusedCase
from tfexport.bundle import SpecialIds
from tfexport.export import Input
from tfexport.export.incremental import recurrent
from tfexport.export.incremental.find import find_program, find_steps
from tfexport.export.incremental.forward import OwnForward
from tfexport.export.incremental.fused import without_values
from tfexport.export.incremental.step_graphs import FoundSteps, WholeForward, describe
from tfexport.export.modules.contract import ModuleError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*nested.tensor:UserWarning")]
IDS = SpecialIds(PAD, BOS, EOS, None)
CLOSE = 1e-5
SIZES = (
    (1, {"source_length": 3, "frames": 11, "region_count": 9}, 12),
    (4, {"source_length": 9, "frames": 30, "region_count": 4}, 9),
)
# Of each kind of state; the others repeat their ways.
SHORT = ("stock", "gru", "lstm_with_attention", "average")


def cases(short: tuple[str, ...] = SHORT) -> list[object]:
    return [
        pytest.param(case, id=case.name, marks=() if case.name in short else pytest.mark.exhaustive)
        for case in CASES
    ]


def steps_of(case: Case, max_length: int = 12) -> FoundSteps | WholeForward:
    own = OwnForward(case.make(), case.inputs, case.target, case.forward)
    return find_steps(find_program(own, [], IDS, max_length), IDS, max_length)


def found_in(case: Case) -> FoundSteps:
    found = steps_of(case)
    assert isinstance(found, FoundSteps), found.why
    return found


def batch_first(case: Case, inputs: list[Tensor]) -> list[Tensor]:
    axes = [list(each.axes).index("batch") for each in case.inputs]
    return [tensor.movedim(axis, 0) for tensor, axis in zip(inputs, axes, strict=True)]


@torch.no_grad()
def by_steps(steps: FoundSteps, inputs: list[Tensor], target: Tensor) -> Tensor:
    """(B, T, V) logits, a token at a time."""
    memory = steps.encode(*inputs)
    state, found = steps.start(*memory), []
    for position in range(target.size(1)):
        token = target[:, position : position + 1]
        of_token, state = steps.step(token, torch.tensor(position), state, memory)
        found.append(of_token)
    return torch.stack(found, dim=1)


def difference(one: Tensor, two: Tensor) -> float:
    """The largest, in parts of the largest logit."""
    return float((one - two).abs().max() / two.abs().max().clamp(min=1))


# The states of one of each kind. Keys and values, of two layers, are all that a Transformer keeps.
STATES = {
    "stock": ["cache"] * 4,
    "gru": ["recurrent state"],
    "lstm_with_attention": ["recurrent state"] * 4,
    "average": ["running sum", "running sum", "cache"],
}
# Convolutions over the target, for which there is no rule: all rows of their cached inputs.
COMPUTED_AGAIN = ("convolutional", "chomped")


# test_exports searches with the others; ids of "tutorial" are (T, B).
@pytest.mark.parametrize("case", cases((*SHORT[2:], "tutorial")))
def test_each_step_gives_the_logits_of_the_forward(case: Case) -> None:
    steps, model = found_in(case), case.make()
    for batch, lengths, length in SIZES:
        inputs, target = draw_inputs(case, batch, lengths, 3), draw_target(case, batch, length, 4)
        wanted = logits(case, model, inputs, target)
        made = by_steps(steps, batch_first(case, inputs), in_its_order(case, target))
        assert difference(made, wanted) < CLOSE
    said = describe(steps)
    assert said["again"] == [] or case.name in COMPUTED_AGAIN
    kinds = [each.partition(":")[0] for each in said["state"]]
    assert kinds == STATES.get(case.name, kinds)


def test_shapes_of_recurrent_layers_need_no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    (case,) = (each for each in CASES if each.name == "lstm_with_attention")
    steps = found_in(case)
    given = batch_first(case, inputs_of(case))
    memory = steps.encode(*given)
    monkeypatch.setattr(recurrent, "cell", lambda *_: pytest.fail("a step is computed"))
    shapes = without_values(steps.encoder, given)
    assert [each.shape for each in shapes] == [each.shape for each in memory]
    assert [each.dtype for each in shapes] == [each.dtype for each in memory]


def inputs_of(case: Case) -> list[Tensor]:
    return draw_inputs(case, 2, SIZES[1][1], 5)


def place_of(case: RefusedCase) -> str:
    """The place of the line that is at fault, as ``refused_modules.py:7``."""
    code, first = inspect.getsourcelines(type(case.make()))
    number = next(i for i, line in enumerate(code, first) if case.line in line)
    return f"{Path(refused_modules.__file__).name}:{number}"


def outcome(case: RefusedCase) -> str:
    try:
        steps = steps_of(case)
    except ModuleError as error:
        return str(error)
    assert isinstance(steps, FoundSteps)
    said = describe(steps)
    kept = [each for each in said["state"] if each.startswith("running sum")]
    assert any(place_of(case) in each for each in (kept or said["again"]))
    inputs, target = inputs_of(case), draw_target(case, 2, 7, 6)
    wanted = logits(case, case.make(), inputs, target)
    assert difference(by_steps(steps, inputs, target), wanted) < CLOSE
    return ""


REFUSED_SHORT = ("not_causal", "rows_mixed", "random_numbers", "loop_over_steps")


@pytest.mark.messages
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case, id=case.name, marks=() if case.name in REFUSED_SHORT else pytest.mark.exhaustive
        )
        for case in REFUSED
    ],
)
def test_what_has_no_steps_is_refused_with_its_line(case: RefusedCase) -> None:
    said = outcome(case)
    if not said:  # decoded in steps that are equal to the forward
        assert case.kind == "recomputed"
        return
    assert said.count("\n") == 0
    assert type(case.make()).__name__ in said
    assert "refused_modules.py" in said
    if case.name not in ("probabilities", "fixed_table"):  # are seen in the logits
        assert case.line in said
        assert case.operator in said


class Branches(nn.Module):
    """Other code for targets of more than eight tokens, and for the first token alone."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(17, 8), nn.Embedding(17, 8)
        self.out, self.first = nn.Linear(8, 17), first

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        y = self.target(tgt) + self.source(src).mean(1, keepdim=True)
        if not self.first and tgt.size(1) > 8:
            y = y * 2
        if self.first and tgt.size(1) == 1:
            y = y * 2
        logits: Tensor = self.out(y)
        return logits


def branching(first: bool) -> Case:
    inputs = (Input("input_ids", "int64", ("batch", "source_length")),)
    return Case("branches", lambda: drawn(lambda: Branches(first), 5), inputs)


def test_another_branch_for_long_targets_is_refused() -> None:
    with pytest.raises(ModuleError, match="target_length exceeds 8"):
        steps_of(branching(first=False))


def test_a_branch_that_is_never_reached_does_not_matter() -> None:
    assert isinstance(steps_of(branching(first=False), max_length=8), FoundSteps)


def test_another_branch_for_the_first_token_finds_no_step() -> None:
    steps = steps_of(branching(first=True))
    assert isinstance(steps, WholeForward)
    assert "differs from forward" in steps.why


class Softmaxed(Branches):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return super().forward(src, tgt).softmax(-1)


def test_probabilities_are_refused() -> None:
    case = replace(branching(first=False), make=lambda: drawn(lambda: Softmaxed(False), 5))
    with pytest.raises(ModuleError, match="probabilities"):
        steps_of(case)
