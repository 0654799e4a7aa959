"""Programs without operators that write, compared with the forward that writes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from tests.support.combinations import few_of
from tfexport.export import Input, torch_names
from tfexport.export.incremental.forward import OwnForward
from tfexport.export.incremental.forward_capture import capture_forward, takes_branch
from tfexport.export.incremental.functional import functional
from tfexport.export.quiet import quiet


def hides(x: Tensor, mask: Tensor) -> Tensor:
    scores = x @ x.transpose(1, 2)
    scores.masked_fill_(mask[:, None], -9.0)
    return scores.softmax(-1)


def adds_twice(x: Tensor, mask: Tensor) -> Tensor:
    made = x * 2
    before = made.sum(-1)
    made += x
    made *= 3
    return torch.relu_(made - 1) + before[..., None]


def reads_a_view_after(x: Tensor, mask: Tensor) -> Tensor:
    made = x * 2
    part = made[:, :1]
    made += 1 + x
    return made + part


def reads_a_view_between(x: Tensor, mask: Tensor) -> Tensor:
    made = x * 2
    made += x
    part = made.transpose(0, 1)
    made *= x
    return made + part.transpose(0, 1)


def writes_into_a_view(x: Tensor, mask: Tensor) -> Tensor:
    made = x * 2
    made[:, 0].add_(x[:, 0])
    return made


def writes_into_what_may_be_shared(x: Tensor, mask: Tensor) -> Tensor:
    made = (x + 1).transpose(0, 1).contiguous()
    made.mul_(2)
    return made


def keeps_its_type(x: Tensor, mask: Tensor) -> Tensor:
    made = (x * 4).half()
    made *= x
    return made.float()


def splits_axes(x: Tensor, mask: Tensor) -> Tensor:
    halves, groups = x.unflatten(-1, (2, -1)), mask.unflatten(1, (1, -1))
    made: Tensor = halves.masked_fill(groups.transpose(1, 2)[..., None], 0.5)
    return made.flatten(2)


def cuts_and_turns(x: Tensor, mask: Tensor) -> Tensor:
    first, second, last = torch.cat([x, x * 2], dim=-1).chunk(3, -1)  # three, three and two
    one, other = x.mT.chunk(2, dim=1)
    made = (first + second).to(x.device, torch.float32) * last.sum(-1, keepdim=True)
    made = made.movedim(-1, 0).movedim(0, -1) * x[0, :1].T[:1]
    return torch.cat([made, one.mT * other.mT, *mask.float()[..., None].chunk(2, -1)], dim=-1)


def converts(x: Tensor, mask: Tensor) -> Tensor:
    shown = mask.to(device=x.device, dtype=torch.int64)[..., None].to(x)
    return shown * x.to(device=x.device, dtype=torch.float32)


def writes_into_what_is_converted(x: Tensor, mask: Tensor) -> Tensor:
    made = x * 2
    same = made.to(device=x.device, dtype=torch.float32)
    made += x
    return made + same


def writes_into_a_part(x: Tensor, mask: Tensor) -> Tensor:
    made = x * 2
    made.chunk(2, -1)[0].add_(x[..., :2])
    return made


def has_a_constant(x: Tensor, mask: Tensor) -> Tensor:
    return x * torch.tensor([1.0, 2.0, 3.0, 4.0])


CASES: dict[Callable[[Tensor, Tensor], Tensor], bool] = {
    hides: True, adds_twice: True, reads_a_view_after: False, reads_a_view_between: False,
    writes_into_a_view: False, writes_into_what_may_be_shared: False, keeps_its_type: False,
    splits_axes: True, cuts_and_turns: True, converts: True,
    writes_into_what_is_converted: True, writes_into_a_part: False, has_a_constant: True,
}  # fmt: skip
FEW = (
    hides, adds_twice, reads_a_view_between, splits_axes, cuts_and_turns, converts, has_a_constant,
)  # fmt: skip


class Forward(nn.Module):
    def __init__(self, of: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.of = of

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.of(x, mask)


@pytest.mark.parametrize("forward", few_of(CASES, *FEW), ids=lambda of: of.__name__)
def test_what_writes_computes_the_same_and_is_traced_once(
    forward: Callable[[Tensor, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = torch.randn(2, 3, 4), torch.rand(2, 3) < 0.5
    axes = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}
    module = Forward(forward)
    program = torch.export.export(module, given, dynamic_shapes=(axes, axes), strict=False)
    again = torch.export.ExportedProgram.run_decompositions
    traced: list[Any] = []

    def counted(program: Any, table: Any) -> Any:
        traced.append(program)
        return again(program, table)

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", counted)
    with quiet():
        found = functional(program)
    assert bool(traced) is not CASES[forward]
    for node in found.graph.nodes:
        assert not isinstance(node.target, torch._ops.OpOverload) or (
            not node.target._schema.is_mutable
        )
    other = torch.randn(3, 5, 4), torch.rand(3, 5) < 0.5
    for x, mask in (given, other):
        kept = x.clone()
        made: Tensor = found.module()(x, mask)
        assert torch.equal(made, forward(x.clone(), mask))
        assert torch.equal(x, kept)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [torch_names.OPERATOR, torch_names.COMPOSITE])
def test_a_torch_that_does_not_tell_traces_again(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = torch_names.find
    monkeypatch.setattr(torch_names, "find", lambda each: None if each == name else own(each))
    given = torch.randn(2, 3, 4), torch.rand(2, 3) < 0.5
    program = torch.export.export(Forward(hides), given, strict=False)
    with quiet():
        found = functional(program)
        assert found is not program
        assert torch.equal(found.module()(*given), hides(*given))


class ByLength(nn.Module):
    """Logits of the target ids that are others where their number is ``number``."""

    def __init__(self, number: int | None) -> None:
        super().__init__()
        self.embedding, self.number = nn.Embedding(9, 9), number

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        logits: Tensor = self.embedding(target) + source.sum(1)[:, None, None]
        return 2 * logits if target.size(1) == self.number else logits


@pytest.mark.parametrize("number", [None, 7])
def test_a_branch_for_one_number_of_target_ids_is_known(number: int | None) -> None:
    inputs = (Input("input_ids", "int64", ("batch", "source_length")),)
    own = OwnForward(ByLength(number).eval(), inputs)
    source, *targets = (torch.ones((2, size), dtype=torch.int64) for size in (5, *range(2, 9)))
    program = capture_forward(own, [source], targets[1])
    taken = [takes_branch(program, (source, target)) for target in targets]
    assert taken == [target.size(1) != number for target in targets]
    program.graph_module.meta["tfexport.guards"] = None
    assert not takes_branch(program, (source, targets[1])), "of a torch that does not say it"
