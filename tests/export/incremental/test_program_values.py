"""The evaluator of captured programs, on a graph of a few nodes."""

import pytest
import torch
from torch import fx, nn

from tests.export.incremental.own_modules import CASES
from tests.export.incremental.test_found_steps import IDS
from tfexport.export.incremental.find import find_program
from tfexport.export.incremental.forward import OwnForward
from tfexport.export.incremental.program import Example
from tfexport.export.incremental.program_values import ProgramValues
from tfexport.export.modules.contract import ModuleError


class Chain:
    """``given * 2 + table``, then its negative; ``calls`` counts the products."""

    def __init__(self) -> None:
        self.calls = 0
        graph = fx.Graph()
        self.given = graph.placeholder("given")
        self.table = graph.get_attr("part.table")
        self.twice = graph.call_function(self.double, (self.given,))
        self.total = graph.call_function(torch.add, (self.twice, self.table))
        self.negative = graph.call_function(torch.neg, (self.total,))
        self.output = graph.output((self.negative,))
        root = nn.Module()
        root.part = nn.Module()
        root.part.register_buffer("table", torch.tensor([3.0]))
        self.module = fx.GraphModule(root, graph)
        self.nodes = list(self.module.graph.nodes)

    def double(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * 2

    def values(self) -> ProgramValues:
        return ProgramValues({self.given: torch.tensor([1.0])})


def test_a_value_is_computed_once_when_it_is_asked_for() -> None:
    chain = Chain()
    values = chain.values()
    assert chain.negative not in values
    assert values[chain.negative].item() == -5
    assert values[chain.total].item() == 5
    assert chain.calls == 1


def test_a_run_keeps_what_it_is_told_and_the_rest_can_be_asked_for() -> None:
    chain = Chain()
    values = chain.values()
    seen = dict(values.run(chain.nodes, {chain.total}))
    assert list(seen) == chain.nodes
    assert seen[chain.output] == (seen[chain.negative],)
    assert set(values) == {chain.given, chain.total}
    assert values[chain.twice].item() == 2
    assert chain.calls == 2


def test_nodes_are_computed_from_other_values_and_stay_as_they_are() -> None:
    chain = Chain()
    values = chain.values()
    before = values[chain.negative]
    between = [chain.total, chain.negative]
    assert values.recomputed(between, {chain.twice: torch.tensor([7.0])}).item() == -10
    assert values[chain.negative] is before
    assert chain.calls == 1


@pytest.mark.messages
def test_a_size_that_fails_is_refused_by_the_line_alone() -> None:
    case = next(each for each in CASES if each.name == "gru")
    own = OwnForward(case.make(), case.inputs, case.target, case.forward)
    program = find_program(own, [], IDS, 12)
    inputs, target = program.examples[0].inputs, program.examples[0].target
    with pytest.raises(ModuleError, match=r"works at some sizes only: at batch=2, .*\.py:\d+") as e:
        program.logits_of(Example(inputs, target.repeat(3, 1)))
    assert "\n" not in str(e.value)
