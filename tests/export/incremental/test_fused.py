"""Attention that is recognised, masks that hide nothing, and moves that move nothing.

Axes: B batch, H heads, L queries, S keys, D head size, E = H * D.
"""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.export import Dim

from tfexport.export.graphs.torch_layers import exportable_layers
from tfexport.export.incremental.attention import attention, recognise
from tfexport.export.incremental.functional import functional
from tfexport.export.incremental.fused import (
    PAST_AXIS,
    Shapes,
    find_head,
    fuse_attention,
    fused_attention,
    fused_step,
    lighten,
    remove_masks,
)
from tfexport.export.quiet import quiet

B, H, L, S, D = 2, 3, 4, 5, 8
Form = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
aten: Any = torch.ops.aten


class Called(nn.Module):
    """Queries, keys and values (B, H, L or S, D), a mask (B, 1, 1, S) and a bias (H, L, S)."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.form = form
        self.register_buffer("root", torch.tensor([math.sqrt(D)]))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, bias: Tensor) -> Tensor:
        return self.form(q, k, v, seen, bias)


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-2, -1) / math.sqrt(D)


def by_einsum(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, bias: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, L, H, D)
    energy = torch.einsum("nqhd,nkhd->nhqk", [q, k])
    energy = energy.masked_fill(seen == 0, float("-1e20"))
    weights = torch.softmax(energy / D**0.5, dim=3)
    return torch.einsum("nhql,nlhd->nqhd", [weights, v]).transpose(1, 2)


FORMS: dict[str, Form] = {
    "masked_fill": lambda q, k, v, seen, bias: (
        scores(q, k).masked_fill(seen == 0, -1e9).softmax(-1) @ v
    ),
    "where": lambda q, k, v, seen, bias: (
        torch.where(seen, scores(q, k), torch.finfo(torch.float32).min).softmax(-1) @ v
    ),
    "bias": lambda q, k, v, seen, bias: (scores(q, k) + bias).softmax(dim=-1) @ v,
    "bias_before_mask": lambda q, k, v, seen, bias: (
        (q @ k.transpose(2, 3) + bias).div(3.0).masked_fill(~seen, -1e4).softmax(-1) @ v
    ),
    "two_masks": lambda q, k, v, seen, bias: (
        scores(q, k).masked_fill(~seen, -1e9).masked_fill(bias > 1, -1e9).softmax(-1).matmul(v)
    ),
    "permuted_keys": lambda q, k, v, seen, bias: (
        ((q * 0.3) @ k.transpose(1, 2).permute(0, 2, 3, 1)).softmax(-1) @ v
    ),
    "einsum": by_einsum,
    "function": lambda q, k, v, seen, bias: F.scaled_dot_product_attention(q, k, v, seen),
}
OTHERS: dict[str, Form] = {
    "a small fill": lambda q, k, v, seen, bias: (
        scores(q, k).masked_fill(~seen, -5.0).softmax(-1) @ v
    ),
    "a bias after the mask": lambda q, k, v, seen, bias: (
        (scores(q, k).masked_fill(~seen, -1e9) + bias).softmax(-1) @ v
    ),
    "two fills": lambda q, k, v, seen, bias: (
        scores(q, k).masked_fill(~seen, -1e9).masked_fill(bias > 1, -1e4).softmax(-1) @ v
    ),
    "another axis": lambda q, k, v, seen, bias: scores(q, k).softmax(-2) @ v,
    "values of another size": lambda q, k, v, seen, bias: scores(q, k).softmax(-1) @ v[..., :3],
    "a factor of each head": lambda q, k, v, seen, bias: (
        (scores(q, k) * bias[:, :1, :1]).softmax(-1) @ v
    ),
}


def drawn() -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(B, H, length, D) for length in (L, S, S))
    seen = torch.tensor([[True, True, False, True, False], [False] * S])[:, None, None]
    return q, k, v, seen, torch.randn(H, L, S)


def program(form: Form) -> torch.export.ExportedProgram:
    module, given = Called(form).eval(), drawn()
    axes = [{0: Dim.DYNAMIC, 2: Dim.DYNAMIC}] * 3 + [{0: Dim.DYNAMIC, 3: Dim.DYNAMIC}]
    axes.append({1: Dim.DYNAMIC, 2: Dim.DYNAMIC})
    with quiet(), exportable_layers(module):
        found = torch.export.export(module, given, dynamic_shapes=tuple(axes), strict=False)
        return functional(found)


def recognised(form: Form) -> tuple[fx.Graph, Tensor]:
    """The graph of a form, and what it gives."""
    exported = program(form)
    graph = exported.graph_module.graph
    numbers = dict.fromkeys(graph.find_nodes(op="placeholder")[:1], math.sqrt(D))
    recognise(graph, numbers)
    graph.lint()
    held = [exported.state_dict["root"]]
    (made,) = fx.Interpreter(exported.graph_module).run(*held, *drawn())
    return graph, made


def calls(graph: fx.Graph, target: Any) -> int:
    return len(graph.find_nodes(op="call_function", target=target))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_attention_is_recognised_and_equal(form: Form) -> None:
    graph, made = recognised(form)
    assert calls(graph, attention) == 1
    assert not calls(graph, aten.softmax.int)
    torch.testing.assert_close(made, form(*drawn()))  # the second row sees no key


@pytest.mark.parametrize("form", OTHERS.values(), ids=OTHERS)
def test_what_the_operator_does_not_compute_stays(form: Form) -> None:
    graph, made = recognised(form)
    assert not calls(graph, attention)
    torch.testing.assert_close(made, form(*drawn()))


# A step, by hand: a token and a cache (B, H, P, D) each of keys and values.


def step_of(
    write: Callable[[fx.Graph, Sequence[fx.Node], fx.Node], Any], root: nn.Module | None = None
) -> tuple[fx.GraphModule, list[list[Tensor]]]:
    """A step whose result ``write`` makes of the states and T."""
    graph = fx.Graph()
    token, *states = (graph.placeholder(name) for name in ("token", "state_0", "state_1"))
    for state in states:
        state.meta[PAST_AXIS] = 2
    past = graph.call_function(aten.sym_size.int, (states[0], 2))
    total = graph.call_function(operator.add, (past, 1))
    graph.output(write(graph, [token, *states], total))
    runs = [
        [torch.ones(batch, 1, dtype=torch.int64), *(torch.randn(batch, H, past, D),) * 2]
        for batch, past in ((2, 2), (2, 4), (3, 2), (2, 2))
    ]
    return fx.GraphModule(root or nn.Module(), graph), runs


def masked_by(compare: Any, number: int) -> tuple[fx.GraphModule, list[list[Tensor]]]:
    """Scores of the states, masked by a comparison of positions with T - 1."""

    def write(graph: fx.Graph, given: Sequence[fx.Node], total: fx.Node) -> fx.Node:
        scores = graph.call_function(aten.sum.dim_IntList, (given[1], [-1]))  # (B, H, P)
        positions = graph.call_function(
            aten.arange.default, (graph.call_function(operator.sub, (total, 1)),)
        )
        before = graph.call_function(
            aten.sub.Tensor, (positions, graph.call_function(operator.sub, (total, 1)))
        )
        hidden = graph.call_function(compare, (before, number))
        return graph.call_function(aten.masked_fill.Scalar, (scores, hidden, -1e9))

    return step_of(write)


def test_shapes_are_found_of_tensors_that_no_memory_holds() -> None:
    graph = fx.Graph()
    given = graph.placeholder("given")
    product = graph.call_function(torch.matmul, (given, graph.call_function(torch.t, (given,))))
    graph.output(product)
    runs = [[torch.ones(size, 1)] for size in (10**6, 10**7)]  # 4 and 400 terabytes
    found = Shapes(fx.GraphModule(nn.Module(), graph), runs)
    assert found[product] == ((10**6, 10**6), (10**7, 10**7))


def test_shapes_are_found_of_nodes_that_a_pass_adds() -> None:
    graph = fx.Graph()
    given = graph.placeholder("given")
    turned = graph.call_function(torch.t, (given,))
    output = graph.output(turned)
    module = fx.GraphModule(nn.Module(), graph)
    shapes = Shapes(module, [[torch.ones(2, size)] for size in (3, 5)])
    with graph.inserting_before(output):
        joined = graph.call_function(torch.cat, ([turned, turned], 1))
    shapes.add()
    assert shapes[turned] == ((3, 2), (5, 2))
    assert shapes[joined] == ((3, 4), (5, 4))


def test_shapes_that_follow_from_values_are_found() -> None:
    graph = fx.Graph()
    given = graph.placeholder("given")
    places = graph.call_function(torch.nonzero, (given,))
    output = graph.output(places)
    shapes = Shapes(fx.GraphModule(nn.Module(), graph), [[torch.tensor([0, 4, 5])]])
    with graph.inserting_before(output):
        first = graph.call_function(torch.t, (places,))
    shapes.add()
    assert (shapes[places], shapes[first]) == (((2, 1),), ((1, 2),))


def test_a_mask_that_hides_nothing_is_removed() -> None:
    module, runs = masked_by(aten.gt.Scalar, 0)
    remove_masks(module, Shapes(module, runs), 40)
    assert not calls(module.graph, aten.masked_fill.Scalar)


@pytest.mark.parametrize(("longest", "stays"), [(20, False), (21, True)])
def test_a_window_is_removed_if_no_row_is_longer(longest: int, stays: bool) -> None:
    module, runs = masked_by(aten.lt.Scalar, -19)  # hides the keys of more than 19 tokens before
    remove_masks(module, Shapes(module, runs), longest)
    assert bool(calls(module.graph, aten.masked_fill.Scalar)) == stays


# A result of scores (B, H, P), a mask (P,) of what is hidden, and one of what is seen.
Use = Callable[[Callable[..., fx.Node], fx.Node, fx.Node, fx.Node], fx.Node]
USES: dict[str, Use] = {
    "fill": lambda call, x, hidden, seen: call(aten.masked_fill.Scalar, x, hidden, -1e9),
    "where it is hidden": lambda call, x, hidden, seen: call(
        aten.where.ScalarSelf, hidden, -1e9, x
    ),
    "where it is seen": lambda call, x, hidden, seen: call(aten.where.ScalarOther, seen, x, -1e9),
    "sum": lambda call, x, hidden, seen: call(aten.add.Tensor, x, hidden),
    "sum, first": lambda call, x, hidden, seen: call(aten.add.Tensor, hidden, x),
    "product": lambda call, x, hidden, seen: call(aten.mul.Tensor, x, seen),
    "product, first": lambda call, x, hidden, seen: call(aten.mul.Tensor, seen, x),
    "bias": lambda call, x, hidden, seen: call(
        attention, x, x, x, call(aten.reshape.default, hidden, [1, 1, 1, -1]), 0.5
    ),
}


def used(use: Use, last: int) -> tuple[fx.GraphModule, list[list[Tensor]]]:
    """A state with a mask that hides the last tokens of its past."""

    def write(graph: fx.Graph, given: Sequence[fx.Node], total: fx.Node) -> fx.Node:
        def call(target: Any, *args: Any) -> fx.Node:
            return graph.call_function(target, args)

        past = call(operator.sub, total, 1)
        places = call(aten.sub.Tensor, call(aten.arange.default, past), past)
        masks = [call(each, places, -last) for each in (aten.ge.Scalar, aten.lt.Scalar)]
        x = given[1]
        if use is not USES["bias"]:
            x = call(aten.sum.dim_IntList, x, [-1])
        return use(call, x, *masks)

    return step_of(write)


@torch.no_grad()
@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("last", [0, 1])
def test_masks_are_removed_that_hide_nothing(use: Use, last: int) -> None:
    module, runs = used(use, last)
    wanted = [module(*given) for given in runs]
    remove_masks(module, Shapes(module, runs), 40)
    module.recompile()
    torch.testing.assert_close([module(*given) for given in runs], wanted)
    assert bool(calls(module.graph, aten.arange.default)) == bool(last)


def with_bias(sizes: Sequence[int], mask: Sequence[int] = ()) -> tuple[fx.GraphModule, Any]:
    """Attention with a bias, and zeros in place of its result where a mask of sizes says so."""
    graph = fx.Graph()
    q, k, v, bias, hidden = (graph.placeholder(name) for name in ("q", "k", "v", "bias", "hidden"))
    made = graph.call_function(attention, (q, k, v, bias, 0.5))
    if mask:
        made = graph.call_function(aten.where.ScalarSelf, (hidden, 0.0, made))
    graph.output(made)
    torch.manual_seed(2)
    given = [torch.randn(B, H, length, D) for length in (L, S, S)]
    given += [torch.randn(*sizes), torch.rand(*(mask or (1,))) > 0.5]
    return fx.GraphModule(nn.Module(), graph), given


@torch.no_grad()
@pytest.mark.parametrize(
    ("sizes", "fused"),
    [((B, 1, 1, S), True), ((1, H, L, S), True), ((H, L, S), False), ((B, 1, L, 1), False)],
)
def test_a_bias_is_fused_if_the_operator_takes_it(sizes: tuple[int, ...], fused: bool) -> None:
    module, given = with_bias(sizes)
    wanted = module(*given)
    fuse_attention(module, Shapes(module, [given]))
    module.recompile()
    torch.testing.assert_close(module(*given), wanted)
    assert calls(module.graph, fused_attention) == fused


@torch.no_grad()
@pytest.mark.parametrize(
    ("mask", "joined"),
    [((B, 1, L, 1), True), ((B, H, L, 1), False), ((B, 1, L, D), False), ((L, 1), False)],
)
def test_rows_are_chosen_of_all_heads_at_once(mask: tuple[int, ...], joined: bool) -> None:
    module, given = with_bias((B, 1, 1, S), mask)
    wanted = module(*given)
    fuse_attention(module, Shapes(module, [given]))
    module.recompile()
    torch.testing.assert_close(module(*given), wanted)
    (node,) = module.graph.find_nodes(op="call_function", target=aten.where.ScalarSelf)
    assert (node.args[2].target is fused_attention) == joined


@torch.no_grad()
def test_a_sum_with_a_factor_stays() -> None:
    def write(graph: fx.Graph, given: Sequence[fx.Node], total: fx.Node) -> fx.Node:
        zeros = graph.call_function(aten.zeros.default, ([D],))
        return graph.call_function(aten.add.Tensor, (zeros, given[1]), {"alpha": 2})

    module, runs = step_of(write)
    wanted = [module(*given) for given in runs]
    remove_masks(module, Shapes(module, runs), 40)
    module.recompile()
    torch.testing.assert_close([module(*given) for given in runs], wanted)


def test_a_mask_of_values_stays() -> None:
    def write(graph: fx.Graph, given: Sequence[fx.Node], total: fx.Node) -> fx.Node:
        hidden = graph.call_function(aten.gt.Scalar, (given[2], 1e9))
        return graph.call_function(aten.masked_fill.Scalar, (given[1], hidden, -1e9))

    module, runs = step_of(write)
    remove_masks(module, Shapes(module, runs), 40)
    assert calls(module.graph, aten.masked_fill.Scalar)


def test_a_mask_that_counts_rows_of_the_batch_stays() -> None:
    def write(graph: fx.Graph, given: Sequence[fx.Node], total: fx.Node) -> fx.Node:
        batch = graph.call_function(aten.sym_size.int, (given[0], 0))
        rows = graph.call_function(aten.arange.default, (batch,))
        column = graph.call_function(aten.reshape.default, (rows, [-1, 1, 1, 1]))
        hidden = graph.call_function(aten.gt.Scalar, (column, 0))
        return graph.call_function(aten.masked_fill.Scalar, (given[1], hidden, -1e9))

    module, runs = step_of(write)
    remove_masks(module, Shapes(module, runs), 40)
    assert calls(module.graph, aten.masked_fill.Scalar)


class Layer(nn.Module):
    """Attention of one token as a step computes it, batch second, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, H * D)
        self.qkv, self.out = nn.Linear(H * D, 3 * H * D), nn.Linear(H * D, H * D)
        self.norm, self.head = nn.LayerNorm(H * D), nn.Linear(H * D, 11)


def write_layer(
    graph: fx.Graph, given: Sequence[fx.Node], total: fx.Node, past: Sequence[int] = (1, 2)
) -> Any:
    def call(target: Any, *args: Any) -> fx.Node:
        return graph.call_function(target, args)

    def held(name: str) -> fx.Node:
        return graph.get_attr(name)

    turned = call(aten.transpose.int, given[0], 0, 1)  # (1, B)
    x = call(aten.embedding.default, held("table.weight"), turned)  # (1, B, E)
    x = call(aten.mul.Tensor, x, 2.0)
    first = call(aten.transpose.int, x, 0, 1)  # (B, 1, E)
    packed = call(aten.linear.default, first, held("qkv.weight"), held("qkv.bias"))
    parts = call(aten.chunk.default, packed, 3, -1)
    heads = []
    for i in range(3):
        split = call(aten.view.default, call(operator.getitem, parts, i), [-1, 1, H, D])
        heads.append(call(aten.transpose.int, split, 1, 2))  # (B, H, 1, D)
    caches = [
        call(aten.cat.default, [given[number], row], 2)
        for number, row in zip(past, heads[1:], strict=True)
    ]
    context = call(attention, heads[0], *caches, None, 0.5)
    joined = call(aten.contiguous.default, call(aten.transpose.int, context, 1, 2))
    joined = call(aten.view.default, joined, [-1, 1, H * D])
    made = call(aten.linear.default, joined, held("out.weight"), held("out.bias"))
    x = call(aten.add.Tensor, x, call(aten.transpose.int, made, 0, 1))
    x = call(aten.layer_norm.default, x, [H * D], held("norm.weight"), held("norm.bias"))
    logits = call(aten.linear.default, x, held("head.weight"), held("head.bias"))  # (1, B, V)
    rows = call(aten.log_softmax.int, call(aten.transpose.int, logits, 0, 1), -1)
    return call(aten.select.int, rows, 1, 0), tuple(caches)


def layer_step(past: Sequence[int] = (1, 2)) -> tuple[fx.GraphModule, list[list[Tensor]]]:
    torch.manual_seed(1)
    return step_of(
        lambda graph, given, total: write_layer(graph, given, total, past), Layer().eval()
    )


@torch.no_grad()
def test_a_layer_becomes_one_operator_without_moves() -> None:
    module, runs = layer_step()
    wanted = [module(*given) for given in runs]
    lighten(module, runs, 40, fused=True)
    torch.testing.assert_close([module(*given) for given in runs], wanted)
    graph = module.graph
    assert calls(graph, fused_step) == 1
    for move in (aten.transpose.int, aten.contiguous.default, aten.cat.default, aten.view.default):
        assert not calls(graph, move)


@torch.no_grad()
def test_keys_and_values_of_one_cache_are_not_appended_twice() -> None:
    module, runs = layer_step(past=(1, 1))
    wanted = [module(*given) for given in runs]
    lighten(module, runs, 40, fused=True)
    torch.testing.assert_close([module(*given) for given in runs], wanted)
    assert not calls(module.graph, fused_step)
    assert calls(module.graph, fused_attention) == 1


@torch.no_grad()
def test_standard_operators_stay_where_they_are_asked_for() -> None:
    module, runs = layer_step()
    lighten(module, runs, 40, fused=False)
    assert not calls(module.graph, fused_step)
    assert calls(module.graph, attention) == 1


@torch.no_grad()
def test_the_head_is_the_last_layer() -> None:
    module, runs = layer_step()
    lighten(module, runs, 40, fused=True)
    found = find_head(module, Shapes(module, runs))
    assert found is not None
    head, step = found
    for given in runs:
        logits, caches = module(*given)
        states, same = step(*given)
        assert tuple(states.shape) == (given[0].size(0), 1, H * D)
        of_states = F.linear(states[:, 0], head.weight, head.bias).log_softmax(-1)
        torch.testing.assert_close(of_states, logits)
        torch.testing.assert_close(same, caches)


@torch.no_grad()
def test_logits_that_are_scaled_have_no_head() -> None:
    module, runs = layer_step()
    (output,) = module.graph.find_nodes(op="output")
    logits, after = output.args[0]
    with module.graph.inserting_before(output):
        scaled = module.graph.call_function(aten.mul.Tensor, (logits, 0.5))
    output.args = ((scaled, after),)
    module.recompile()
    assert find_head(module, Shapes(module, runs)) is None
