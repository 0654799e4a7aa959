"""The modules are what the other tests of this folder take them for: plain torch alone."""

import inspect
import sys

import pytest
import torch
from torch import Tensor

from tests.export.incremental.own_case import batch_axis, in_its_order
from tests.export.incremental.own_modules import (
    BOS,
    CASES,
    PAD,
    Case,
    draw_inputs,
    draw_target,
    greedy,
    logits,
)
from tests.export.incremental.refused_modules import REFUSED, RefusedCase

# torch says so of its own encoder.
pytestmark = pytest.mark.filterwarnings("ignore:.*nested.tensor:UserWarning")
LENGTHS = {"source_length": 7, "frames": 30, "region_count": 4}
OTHER_LENGTHS = {"source_length": 3, "frames": 11, "region_count": 9}
CLOSE = 1e-5

each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
RECOMPUTED = tuple(case for case in REFUSED if case.kind == "recomputed")


def of(name: str) -> RefusedCase:
    return next(case for case in REFUSED if case.name == name)


def prefix(case: Case, target: Tensor, length: int) -> Tensor:
    return target.narrow(1 - batch_axis(case.target), 0, length)


def difference(a: Tensor, b: Tensor) -> float:
    """The largest, in parts of the largest number."""
    return float((a - b).abs().max() / b.abs().max().clamp(min=1))


def earlier_rows_change(case: Case) -> bool:
    """Whether the logits of five tokens are others when five more come."""
    model, inputs = case.make(), draw_inputs(case, 2, LENGTHS, 1)
    target = draw_target(case, 2, 10, 2)
    short = logits(case, model, inputs, prefix(case, target, 5))
    return difference(short, logits(case, model, inputs, target)[:, :5]) > CLOSE


def test_names_differ() -> None:
    names = [case.name for case in (*CASES, *REFUSED)]
    assert len(CASES) >= 25
    assert len(REFUSED) >= 10
    assert len(set(names)) == len(names)


@each
def test_it_runs_at_several_sizes(case: Case) -> None:
    model = case.make()
    assert not model.training
    for batch, lengths, length in ((1, OTHER_LENGTHS, 1), (2, LENGTHS, 4), (5, OTHER_LENGTHS, 13)):
        inputs = draw_inputs(case, batch, lengths, batch)
        scores = logits(case, model, inputs, draw_target(case, batch, length, batch))
        assert scores.shape[:2] == (batch, length)
        assert scores.isfinite().all()


@each
def test_weights_are_the_same_each_time(case: Case) -> None:
    before = torch.random.get_rng_state()
    first, second = case.make().state_dict(), case.make().state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(torch.random.get_rng_state(), before)


@each
def test_it_is_causal(case: Case) -> None:
    assert not earlier_rows_change(case)


@each
def test_logits_depend_on_every_earlier_token(case: Case) -> None:
    model, inputs = case.make(), draw_inputs(case, 1, LENGTHS, 3)
    target = in_its_order(case, draw_target(case, 1, 6, 4)).clone()
    last = logits(case, model, inputs, in_its_order(case, target))[:, -1]
    for step in range(1, 6):
        other = target.clone()
        other[:, step] = (other[:, step] - 2) % 14 + 3
        changed = logits(case, model, inputs, in_its_order(case, other))[:, -1]
        assert difference(last, changed) > CLOSE, step


@each
def test_rows_do_not_influence_each_other(case: Case) -> None:
    model, inputs = case.make(), draw_inputs(case, 4, LENGTHS, 5)
    target = draw_target(case, 4, 6, 6)
    together = logits(case, model, inputs, target)
    for row in range(4):
        alone = [
            value.narrow(batch_axis(given), row, 1)
            for value, given in zip(inputs, case.inputs, strict=True)
        ]
        one = logits(case, model, alone, target.narrow(batch_axis(case.target), row, 1))
        assert difference(one[0], together[row]) < CLOSE


@each
def test_tokens_vary(case: Case) -> None:
    model = case.make()
    tokens = greedy(case, model, draw_inputs(case, 8, LENGTHS, 7), 12)
    assert tokens.shape == (8, 12)
    assert len({tuple(row) for row in tokens.tolist()}) >= 6
    assert len(set(tokens.flatten().tolist())) >= 5


def test_banned_ids_are_not_chosen() -> None:
    case = CASES[0]
    model, inputs = case.make(), draw_inputs(case, 2, LENGTHS, 7)
    first = greedy(case, model, inputs, 4)
    others = greedy(case, model, inputs, 4, banned=first.unique().tolist())
    assert set(others.flatten().tolist()).isdisjoint(first.flatten().tolist())


@each
def test_each_input_matters(case: Case) -> None:
    model, target = case.make(), draw_target(case, 3, 6, 9)
    first, second = draw_inputs(case, 3, LENGTHS, 8), draw_inputs(case, 3, LENGTHS, 9)
    scores = logits(case, model, first, target)
    for index in range(len(first)):
        mixed = [*first[:index], second[index], *first[index + 1 :]]
        assert not torch.allclose(scores, logits(case, model, mixed, target), atol=1e-3)


def padded(case: Case, inputs: list[Tensor], more: int) -> list[Tensor]:
    """With PAD after the ids of the source."""
    axis = 1 - batch_axis(case.inputs[0])
    shape = list(inputs[0].shape)
    shape[axis] = more
    return [torch.cat([inputs[0], torch.full(shape, PAD)], dim=axis), *inputs[1:]]


@each
def test_padding_changes_nothing_where_it_is_masked(case: Case) -> None:
    if case.inputs[0].dtype != "int64":
        assert not case.pads_source
        return
    model, inputs = case.make(), draw_inputs(case, 2, LENGTHS, 10)
    target = draw_target(case, 2, 5, 11)
    plain = logits(case, model, inputs, target)
    longer = logits(case, model, padded(case, inputs, 3), target)
    assert (difference(plain, longer) < CLOSE) == case.pads_source


# ---- those that are refused or computed again ----------------------------------------------------


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_the_line_is_in_the_source(case: RefusedCase) -> None:
    source = inspect.getsource(sys.modules[RefusedCase.__module__])
    code = source.partition("REFUSED: tuple")[0]
    assert case.operator
    assert sum(case.line in line for line in code.splitlines()) == 1


@pytest.mark.parametrize("case", RECOMPUTED, ids=lambda case: case.name)
def test_what_is_computed_again_is_defined_for_every_size(case: RefusedCase) -> None:
    model = case.make()
    for batch, lengths, length in ((1, OTHER_LENGTHS, 2), (3, LENGTHS, 9)):
        inputs = draw_inputs(case, batch, lengths, 1)
        target = draw_target(case, batch, length, 1)
        scores = logits(case, model, inputs, target)
        assert scores.shape[:2] == (batch, length)
        assert torch.equal(scores, logits(case, model, inputs, target))


@pytest.mark.parametrize("name", ["not_causal", "norm_over_time", "norm_before_attention"])
def test_earlier_rows_change(name: str) -> None:
    assert earlier_rows_change(of(name))


@pytest.mark.parametrize("name", ["look_ahead", "positions_from_length"])
def test_earlier_rows_change_with_the_length(name: str) -> None:
    assert earlier_rows_change(of(name))


def test_counting_from_the_end_is_causal() -> None:
    assert not earlier_rows_change(of("counted_from_the_end"))


def test_positions_from_padding_are_causal_and_skip_padding() -> None:
    case = of("positions_from_padding")
    assert not earlier_rows_change(case)
    model = case.make()
    a, b = torch.tensor([[BOS, 5, 6]]), torch.tensor([[BOS, PAD, 6]])
    assert model.get_submodule("pos")
    positions = [getattr(model, "positions")(ids)[0, 2] for ids in (a, b)]  # noqa: B009
    assert not torch.allclose(*positions)


def test_rows_are_mixed() -> None:
    case = of("rows_mixed")
    model, inputs, target = (
        case.make(),
        draw_inputs(case, 3, LENGTHS, 1),
        draw_target(case, 3, 4, 1),
    )
    together = logits(case, model, inputs, target)
    alone = logits(case, model, [inputs[0][:1]], target[:1])
    assert not torch.allclose(together[:1], alone, atol=1e-2)


@pytest.mark.parametrize("name", ["dropout_active", "dropout_made_in_forward", "random_numbers"])
def test_two_runs_differ(name: str) -> None:
    case = of(name)
    model, inputs, target = (
        case.make(),
        draw_inputs(case, 2, LENGTHS, 1),
        draw_target(case, 2, 4, 1),
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first, second = (logits(case, model, inputs, target) for _ in range(2))
    assert not torch.allclose(first, second, atol=1e-2)


@pytest.mark.parametrize("name", ["fixed_table", "fixed_view"])
def test_one_length_runs(name: str) -> None:
    case = of(name)
    model, inputs = case.make(), draw_inputs(case, 2, LENGTHS, 1)
    assert logits(case, model, inputs, draw_target(case, 2, 12, 1)).shape[1] == 12
    with pytest.raises(RuntimeError):
        logits(case, model, inputs, draw_target(case, 2, 11, 1))


@pytest.mark.parametrize(
    "name", ["loop_until_small", "branch_on_ids", "loop_over_steps", "positions_in_loops"]
)
def test_python_decides(name: str) -> None:
    """They run, at any size: what they do cannot be one graph."""
    case = of(name)
    model = case.make()
    for batch, length in ((1, 3), (3, 7)):
        inputs = draw_inputs(case, batch, LENGTHS, 1)
        scores = logits(case, model, inputs, draw_target(case, batch, length, 1))
        assert scores.shape[:2] == (batch, length)


def test_probabilities_sum_to_one() -> None:
    case = of("probabilities")
    scores = logits(case, case.make(), draw_inputs(case, 2, LENGTHS, 1), draw_target(case, 2, 4, 1))
    torch.testing.assert_close(scores.sum(-1), torch.ones(2, 4))
