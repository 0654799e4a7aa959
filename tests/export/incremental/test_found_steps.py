"""Steps that are found in a forward, beside the forward over whole prefixes.

Axes: B batch, S source, T target, V vocabulary.
"""

import pytest
import torch
from torch import Tensor

from tests.export.incremental.own_case import Case, draw_inputs, draw_target, in_its_order, logits
from tests.export.incremental.own_modules import BOS, CASES, EOS, PAD
from tests.export.incremental.refused_modules import REFUSED, RefusedCase
from tfexport.bundle import SpecialIds
from tfexport.export.incremental.find import find_steps
from tfexport.export.incremental.forward import OwnForward
from tfexport.export.incremental.steps import FoundSteps, describe
from tfexport.export.modules.contract import ModuleError

pytestmark = pytest.mark.filterwarnings("ignore:.*nested.tensor:UserWarning")
IDS = SpecialIds(PAD, BOS, EOS, None)
CLOSE = 1e-5
SIZES = (
    (1, {"source_length": 3, "frames": 11, "region_count": 9}, 12),
    (4, {"source_length": 9, "frames": 30, "region_count": 4}, 9),
)
# Of each kind of state and of calls; the others repeat their ways.
SHORT = ("tutorial", "gru", "lstm_with_attention", "average", "batch_second", "relative_buckets")


def cases(short: tuple[str, ...] = SHORT) -> list[object]:
    return [
        pytest.param(
            case, id=case.name, marks=() if case.name in short else pytest.mark.exhaustive
        )
        for case in CASES
    ]


def found_in(case: Case) -> FoundSteps:
    found = find_steps(OwnForward(case.make(), case.inputs, case.target, case.forward), [], IDS)
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


@pytest.mark.parametrize("case", cases())
def test_each_step_gives_the_logits_of_the_forward(case: Case) -> None:
    steps, model = found_in(case), case.make()
    for batch, lengths, length in SIZES:
        inputs, target = draw_inputs(case, batch, lengths, 3), draw_target(case, batch, length, 4)
        wanted = logits(case, model, inputs, target)
        made = by_steps(steps, batch_first(case, inputs), in_its_order(case, target))
        assert difference(made, wanted) < CLOSE
    # Every token is computed once.
    assert describe(steps)["again"] == [] or case.name in COMPUTED_AGAIN


# Convolutions over the target, for which there is no rule: all rows of their cached inputs.
COMPUTED_AGAIN = ("convolutional", "chomped")


def kinds(name: str) -> list[str]:
    (case,) = (case for case in CASES if case.name == name)
    return [each.partition(":")[0] for each in describe(found_in(case))["state"]]


def test_keys_and_values_are_the_caches_of_a_transformer() -> None:
    (case,) = (case for case in CASES if case.name == "stock")
    steps = found_in(case)
    assert kinds("stock") == ["cache"] * 4  # two layers
    shapes = {tuple(state.shape[1:]) for state in steps.start(*steps.encode(*inputs_of(case)))}
    assert {shape[1] for shape in shapes} == {0}  # (B, heads, T, size): rows grow by tokens


def inputs_of(case: Case) -> list[Tensor]:
    return draw_inputs(case, 2, SIZES[1][1], 5)


def test_a_recurrent_layer_carries_its_state() -> None:
    assert kinds("gru") == ["recurrent state"]
    assert kinds("lstm_with_attention") == ["recurrent state"] * 4


def test_an_average_carries_its_sum() -> None:
    assert "running sum" in kinds("average")


def outcome(case: RefusedCase) -> str:
    try:
        steps = find_steps(OwnForward(case.make(), case.inputs, case.target, case.forward), [], IDS)
    except ModuleError as error:
        return str(error)
    assert isinstance(steps, FoundSteps)
    inputs, target = inputs_of(case), draw_target(case, 2, 7, 6)
    wanted = logits(case, case.make(), inputs, target)
    assert difference(by_steps(steps, inputs, target), wanted) < CLOSE
    return ""


REFUSED_SHORT = ("not_causal", "rows_mixed", "random_numbers", "loop_over_steps", "look_ahead")


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
