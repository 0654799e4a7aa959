"""Passes over the graphs of encoder and step: fused attention, masks and moves without effect.

Axes: B batch, H heads, L queries, S keys, P past, D head size, E = H * D.
"""

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from tfexport.export import torch_names
from tfexport.export.incremental.attention import attention, order_of
from tfexport.export.incremental.program_values import ProgramValues
from tfexport.export.ir_tools.nodes import MULTI_HEAD_ATTENTION
from tfexport.export.modules.contract import Head
from tfexport.export.operators import (
    GROUPED_AXES,
    LOG_SOFTMAX,
    NEW_FILLED,
    SIZE_ARITHMETIC,
    VIEWS,
    aten,
)

Shape = tuple[int, ...]
PAST_AXIS = "past_axis"  # in the ``meta`` of a cache that a step takes: the axis of its rows


def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, heads: int, scale: float
) -> Tensor:
    """Queries (B, L, E), keys and values (B, S, E) or (B, H, S, D) to (B, L, E)."""
    if torch.compiler.is_exporting():
        inputs = [query, key, value, None, None, _of_all_queries(bias, query)]
        found: Tensor = torch.onnx.ops.symbolic(
            MULTI_HEAD_ATTENTION,
            inputs,
            attrs={"num_heads": heads, "scale": scale},
            dtype=query.dtype,
            shape=query.shape,
            version=1,
        )
        return found
    queries, keys, values = (x if x.dim() == 4 else _split(x, heads) for x in (query, key, value))
    return attention(queries, keys, values, bias, scale).transpose(1, 2).flatten(2)


def fused_step(
    tensors: Sequence[Tensor], bias: Tensor | None, past: Sequence[Tensor], heads: int, scale: float
) -> tuple[Tensor, ...]:
    """Query, key and value (B, 1, E) of one token, and the cache (B, H, P, D) of keys and values.

    Returns:
        context: (B, 1, E).
        key, value: (B, H, P + 1, D).
    """
    query, key, value = tensors
    if torch.compiler.is_exporting():
        batch, _, length, size = past[0].shape
        present = (batch, heads, length + 1, size)
        found = torch.onnx.ops.symbolic_multi_out(
            MULTI_HEAD_ATTENTION,
            [query, key, value, None, None, bias, *past],
            attrs={"num_heads": heads, "scale": scale},
            dtypes=(query.dtype,) * 3,
            shapes=(query.shape, present, present),
            version=1,
        )
        return tuple(found)
    keys, values = (
        torch.cat([before, _split(x, heads)], dim=2)
        for before, x in zip(past, (key, value), strict=True)
    )
    return fused_attention(query, keys, values, bias, heads, scale), keys, values


def _split(x: Tensor, heads: int) -> Tensor:
    split: Tensor = x.unflatten(2, (heads, -1))
    return split.transpose(1, 2)


def _of_all_queries(bias: Tensor | None, query: Tensor) -> Tensor | None:
    """The operator broadcasts a bias over batch and heads only."""
    if bias is None or query.size(1) == 1:
        return bias
    return bias.expand(-1, -1, query.size(1), -1)


class Shapes(dict[fx.Node, tuple[Shape, ...]]):
    """The shapes of a graph's tensors, in every run, without computing the tensors.

    A pass that changes the graph keeps the shapes of the nodes that it keeps.

    Args:
        module: whose shapes follow from those of its inputs.
        runs: inputs; only their shapes and types matter.
    """

    def __init__(self, module: fx.GraphModule, runs: Sequence[Sequence[Tensor]]) -> None:
        super().__init__()
        self._graph = module.graph
        self._sizes = [tuple(each.shape for each in given) for given in runs]
        self._runs = dict(zip(self._sizes, runs, strict=True))
        kind = torch_names.find(torch_names.WITHOUT_VALUES)
        self._mode = None if kind is None else kind(allow_non_fake_inputs=True)
        self._fakes: dict[tuple[torch.Size, ...], ProgramValues] = {}
        self.add()

    @torch.no_grad()
    def add(self) -> None:
        """Find the shapes of the nodes that have none yet."""
        of_runs = {sizes: self._of_run(sizes) for sizes in self._runs}
        for node in of_runs[self._sizes[0]]:
            self[node] = tuple(of_runs[sizes][node] for sizes in self._sizes)

    def _of_run(self, sizes: tuple[torch.Size, ...]) -> dict[fx.Node, Shape]:
        given, nodes = self._runs[sizes], list(self._graph.nodes)
        if self._mode is not None:
            try:
                with self._mode as mode:  # tensors without values are kept for nodes to come
                    if sizes not in self._fakes:
                        self._fakes[sizes] = self._values(map(mode.from_tensor, given))
                    return _shapes_of(self._fakes[sizes].run(nodes, set(nodes)))
            except RuntimeError:  # of a size that depends on values
                self._mode = None
                self._fakes.clear()
        return _shapes_of(self._values(given).run(nodes, ()))

    def _values(self, inputs: Iterable[Tensor]) -> ProgramValues:
        placeholders = self._graph.find_nodes(op="placeholder")
        return ProgramValues(dict(zip(placeholders, inputs, strict=True)))


def _shapes_of(values: Iterable[tuple[fx.Node, Any]]) -> dict[fx.Node, Shape]:
    return {node: tuple(value.shape) for node, value in values if isinstance(value, Tensor)}


@torch.no_grad()
def without_values(compute: Callable[..., Any], given: Sequence[Tensor]) -> Any:
    """The results of a function of tensors, with shapes and types.

    Without values, if torch can compute shapes without them.
    """
    kind = torch_names.find(torch_names.WITHOUT_VALUES)
    if kind is None:
        return compute(*given)
    try:
        with kind(allow_non_fake_inputs=True) as mode:
            return compute(*map(mode.from_tensor, given))
    except RuntimeError:  # of a size that depends on values
        return compute(*given)


def lighten(
    module: fx.GraphModule, runs: Sequence[Sequence[Tensor]], longest: int, fused: bool
) -> Shapes:
    """Remove what has no effect from the graph of a step or an encoder, and fuse its attention.

    Args:
        module: changed in place.
        runs: what it is given at several sizes.
        longest: tokens of a row; 0 for an encoder.
        fused: compute attention by an operator of onnxruntime.

    Returns:
        The shapes of its tensors.
    """
    shapes = Shapes(module, runs)
    if longest:
        remove_masks(module, shapes, longest)
    if fused:
        fuse_attention(module, shapes)
        shapes.add()
        remove_moves(module, shapes)
    module.graph.lint()
    module.recompile()
    return shapes


# Masks.


def remove_masks(module: fx.GraphModule, shapes: Shapes, longest: int) -> None:
    """Remove masks of the step's token that hide nothing, whatever its position.

    Only a mask that follows from the length alone is removed, after it was computed for each.

    Args:
        module: the step.
        shapes: of its tensors.
        longest: tokens of a row.
    """
    graph = module.graph
    lengths = _OfLength(module, shapes, longest)
    for node in list(graph.nodes):
        if node.target is attention and node.args[3] in lengths:
            if lengths.always(node.args[3], _zero):
                node.args = (*node.args[:3], None, node.args[4])
            continue
        for kept, mask, neutral in _masked_arguments(node):
            if (
                mask in lengths
                and isinstance(kept, fx.Node)
                and node not in lengths
                and shapes.get(kept) == shapes.get(node)
                and lengths.always(mask, neutral)
            ):
                node.replace_all_uses_with(kept)
                break
    graph.eliminate_dead_code()


def _zero(mask: Tensor) -> bool:
    return bool((mask == 0).all())


def _one(mask: Tensor) -> bool:
    return bool((mask == 1).all())


def _masked_arguments(node: fx.Node) -> list[tuple[Any, Any, Callable[[Tensor], bool]]]:
    """Pairs of arguments of which a node returns the first if the second, a mask, is neutral.

    The third value of each tells whether a mask is neutral: all zeros, or all ones.
    """
    if node.op != "call_function" or node.kwargs:
        return []
    target, args = node.target, node.args
    if target in (aten.masked_fill.Scalar, aten.masked_fill.Tensor):
        return [(args[0], args[1], _zero)]
    if target in (aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf):
        return [(args[1], args[0], _one), (args[2], args[0], _zero)]
    if target in (aten.add.Tensor, aten.logical_or.default, aten.bitwise_or.Tensor,
                  aten.__or__.Tensor):  # fmt: skip
        neutral = _zero
    elif target in (aten.mul.Tensor, aten.logical_and.default, aten.bitwise_and.Tensor,
                    aten.__and__.Tensor):  # fmt: skip
        neutral = _one
    else:
        return []
    return [(args[0], args[1], neutral), (args[1], args[0], neutral)]


# Operators whose result does not depend on the values of the sizes that they are given.
_OF_SIZES = {
    *NEW_FILLED, aten.expand.default, aten.repeat.default, aten.full.default, aten.zeros.default,
    aten.ones.default, aten.view.default, aten.reshape.default,
}  # fmt: skip


class _OfLength:
    """Nodes that depend only on the number of tokens, and their values for each number."""

    def __init__(self, module: fx.GraphModule, shapes: Shapes, longest: int) -> None:
        self.longest = longest
        self.nodes: set[fx.Node] = set()
        self._moving: set[fx.Node] = set()  # those that change with the length
        self._batch: set[fx.Node] = set()
        self._lengths: dict[fx.Node, int] = {}  # what a size is more than the tokens of the past
        (token,) = (each for each in module.graph.nodes if each.name == "token")
        batches = tuple(shape[0] for shape in shapes[token])
        (past, *_) = (*(e for e in module.graph.nodes if PAST_AXIS in e.meta), None)
        pasts = () if past is None else tuple(s[past.meta[PAST_AXIS]] for s in shapes[past])
        for node in module.graph.nodes:
            if node.target is aten.sym_size.int and node.args[0] not in self.nodes:
                sizes = tuple(shape[node.args[1]] for shape in shapes.get(node.args[0], ()))
                more = {size - of_past for size, of_past in zip(sizes, pasts, strict=False)}
                if sizes == batches:
                    self._batch.add(node)
                elif len(more) == 1:
                    self._lengths[node] = more.pop()
                    self.nodes.add(node)
                    self._moving.add(node)
            elif self._follows(node):
                self.nodes.add(node)
                if not self._moving.isdisjoint(node.all_input_nodes):
                    self._moving.add(node)

    def __contains__(self, node: Any) -> bool:
        return isinstance(node, fx.Node) and node in self.nodes

    def _follows(self, node: fx.Node) -> bool:
        if node.op == "get_attr":
            return True
        if node.op != "call_function" or not (
            hasattr(node.target, "overloadpacket") or node.target in SIZE_ARITHMETIC
        ):
            return False
        inputs = node.all_input_nodes
        if any(each in self._batch for each in inputs) and node.target not in _OF_SIZES:
            return False
        return all(each in self.nodes or each in self._batch for each in inputs)

    def always(self, mask: fx.Node, holds: Callable[[Tensor], bool]) -> bool:
        """Whether ``holds`` is true of a mask for every number of tokens."""
        moving = mask in self._moving
        if moving and self.longest > _MOST_LENGTHS:
            return False
        try:
            return all(
                holds(self._values(past)[mask]) for past in range(self.longest if moving else 1)
            )
        except (RuntimeError, IndexError, TypeError, ValueError):
            return False

    def _values(self, past: int) -> ProgramValues:
        lengths = {node: past + more for node, more in self._lengths.items()}
        return ProgramValues({**dict.fromkeys(self._batch, 1), **lengths})


_MOST_LENGTHS = 4096


# Attention.


def fuse_attention(module: fx.GraphModule, shapes: Shapes) -> None:
    """Write attention as calls of ``fused_attention`` and ``fused_step``."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.target is attention and _is_fusible(node, shapes):
            with graph.inserting_before(node):
                _fuse(graph, node, shapes)
    graph.eliminate_dead_code()


def _is_fusible(node: Any, shapes: Shapes) -> bool:
    """Whether the operator takes the bias of an attention."""
    query, key, _, bias, _ = node.args
    if bias is None:
        return True
    return bias in shapes and all(
        len(of_bias) == 4
        and of_bias[0] in (1, of_query[0])
        and of_bias[1] in (1, of_query[1])
        and of_bias[2] in (1, of_query[2])
        and of_bias[3] == of_key[2]
        for of_bias, of_query, of_key in zip(shapes[bias], shapes[query], shapes[key], strict=True)
    )


def _fuse(graph: fx.Graph, node: Any, shapes: Shapes) -> None:
    query, key, value, bias, scale = node.args
    _, heads, _, size = shapes[query][0]
    caches = [_past_and_row(each) for each in (key, value)]
    pasts = [each for each in caches if each is not None]
    of_step = all(shape[2] == 1 for shape in shapes[query])
    if of_step and len({state for state, _ in pasts}) == 2:
        tensors = [_joined(graph, each) for each in (query, *(row for _, row in pasts))]
        states = [state for state, _ in pasts]
        made = graph.call_function(fused_step, (tensors, bias, states, heads, scale))
        context = graph.call_function(operator.getitem, (made, 0))
        for i, cache in enumerate((key, value), 1):
            after = graph.call_function(operator.getitem, (made, i))
            cache.replace_all_uses_with(after, _later_than(graph, node))
    else:
        if not of_step:
            key, value = _joined(graph, key), _joined(graph, value)
        given = (_joined(graph, query), key, value, bias, heads, scale)
        context = graph.call_function(fused_attention, given)
    for user in list(node.users):
        _replace_where(graph, user, node, context, shapes, (heads, size))
    if node.users:
        node.replace_all_uses_with(_split_again(graph, context, (heads, size)))


def _later_than(graph: fx.Graph, node: fx.Node) -> Callable[[fx.Node], bool]:
    places = {each: i for i, each in enumerate(graph.nodes)}
    return lambda user: places[user] > places[node]


def _past_and_row(cache: Any) -> tuple[fx.Node, fx.Node] | None:
    """The state and the row that are joined along the rows."""
    if cache.target is not aten.cat.default or cache.args[1:] not in ((2,), (-2,)):
        return None
    tensors = cache.args[0]
    if len(tensors) != 2 or tensors[0].op != "placeholder":
        return None
    return tensors[0], tensors[1]


def _joined(graph: fx.Graph, heads: fx.Node) -> fx.Node:
    """(B, H, L, D) to (B, L, E)."""
    turned = graph.call_function(aten.transpose.int, (heads, 1, 2))
    return graph.call_function(aten.flatten.using_ints, (turned, 2, 3))


def _split_again(graph: fx.Graph, joined: fx.Node, sizes: tuple[int, int]) -> fx.Node:
    """(B, L, E) to (B, H, L, D)."""
    split = graph.call_function(aten.unflatten.int, (joined, 2, list(sizes)))
    return graph.call_function(aten.transpose.int, (split, 1, 2))


def _replace_where(
    graph: fx.Graph, user: Any, node: fx.Node, context: fx.Node, shapes: Shapes,
    sizes: tuple[int, int],
) -> None:  # fmt: skip
    """Replace a ``where`` of (B, H, L, D) by one of (B, L, E)."""
    if user.target is not aten.where.ScalarSelf or user.args[2] is not node:
        return
    mask, number, _ = user.args
    if any(len(shape) != 4 or shape[1] != 1 or shape[3] != 1 for shape in shapes[mask]):
        return
    with graph.inserting_before(user):
        mask = graph.call_function(aten.squeeze.dim, (mask, 1))
        made = graph.call_function(aten.where.ScalarSelf, (mask, number, context))
        user.replace_all_uses_with(_split_again(graph, made, sizes))
    graph.erase_node(user)


# The projection onto the vocabulary.


def find_head(module: fx.GraphModule, shapes: Shapes) -> tuple[Head, fx.GraphModule] | None:
    """The linear layer that gives a step's logits, or their softmax's logarithm.

    Returns:
        The layer, and the step with states (B, 1, E) in place of its logits.
    """
    (output,) = module.graph.find_nodes(op="output")
    node, after = output.args[0]
    vocabulary = shapes[node][0][-1]
    while node.target in LOG_SOFTMAX or _keeps_rows(node, shapes):
        if node.target in LOG_SOFTMAX and int(node.args[1]) not in (-1, len(shapes[node][0]) - 1):
            return None
        node = node.args[0]
    if node.target is not aten.linear.default or shapes[node][0][-1] != vocabulary:
        return None
    x, weight, *others = node.args
    bias = others[0] if others else None
    if weight.op != "get_attr" or (bias is not None and bias.op != "get_attr"):
        return None
    rows = [shape[0] for shape in shapes[output.args[0][0]]]
    if [math.prod(shape[:-1]) for shape in shapes[x]] != rows:
        return None
    values = ProgramValues()
    held = values[weight]
    if held.dtype != torch.float32:
        return None
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    graph.graph_copy(module.graph, copies)
    states = copies[x]
    if any(len(shape) != 3 or shape[1] != 1 for shape in shapes[x]):
        states = graph.call_function(aten.reshape.default, (states, [-1, 1, held.size(1)]))
    graph.output((states, fx.map_arg(after, lambda each: copies[each])))
    graph.eliminate_dead_code()
    of_bias = None if bias is None else values[bias]
    return Head(held, of_bias, str(weight.target)), fx.GraphModule(module, graph)


def _keeps_rows(node: Any, shapes: Shapes) -> bool:
    """Whether a node only reshapes its input, and keeps the logits of a row together."""
    if not isinstance(node, fx.Node) or not node.args or not isinstance(node.args[0], fx.Node):
        return False
    before, after = shapes.get(node.args[0]), shapes.get(node)
    if before is None or after is None or before[0][-1] != after[0][-1]:
        return False
    order = order_of(node, len(after[0]))
    axis: Any = node.args[1] if node.target is aten.select.int else None
    of_one_row = axis is not None and before[0][axis] == 1
    moved = node.target in _VIEWS or of_one_row or (order and _moves_ones(order, before))
    return bool(moved and math.prod(before[0]) == math.prod(after[0]))


# Moves.


_VIEWS = {
    *VIEWS, *GROUPED_AXES, aten.unsqueeze.default, aten.squeeze.dim, aten.contiguous.default,
    aten.clone.default,
}  # fmt: skip


def remove_moves(module: fx.GraphModule, shapes: Shapes) -> None:
    """Remove reshapes and transposes that have no effect together."""
    moves = _Moves(module.graph, shapes)
    for node in list(module.graph.nodes):
        if node.target in (aten.view.default, aten._unsafe_view.default):
            node.target = aten.reshape.default  # it takes tensors in any order of memory
        if node in shapes:
            moves.remove(node)
            moves.postpone(node)
    module.graph.eliminate_dead_code()


class _Moves:
    """Reshapes and transposes of a graph, and the tensors that they begin with.

    Attributes:
        origin: a tensor to an earlier one with the same numbers in the same order.
    """

    def __init__(self, graph: fx.Graph, shapes: Shapes) -> None:
        self.graph, self.shapes = graph, shapes
        self.origin: dict[fx.Node, fx.Node] = {}

    def remove(self, node: fx.Node) -> None:
        """Replace a move by an earlier tensor, or by one reshape."""
        if not node.args or not isinstance(node.args[0], fx.Node):
            return
        source, shape = node.args[0], self.shapes[node]
        order = order_of(node, len(shape[0]))
        if node.target not in _VIEWS and not (order and _moves_ones(order, self.shapes[source])):
            before = order_of(source, len(shape[0])) if order else None
            if order and before and [before[axis] for axis in order] == sorted(order):
                node.replace_all_uses_with(source.args[0])  # type: ignore[arg-type]
            return
        base = self.origin.get(source, source)
        if self.shapes[base] == shape:
            node.replace_all_uses_with(base)
            return
        self.origin[node] = base
        sizes = [each[0] if len(set(each)) == 1 else -1 for each in zip(*shape, strict=True)]
        if base is not source and sizes.count(-1) <= 1:
            self._replace(node, base, aten.reshape.default, (base, sizes))

    def postpone(self, node: fx.Node) -> None:
        """Compute (B, 1, E) where a row-wise operator computes (1, B, E), and move it after that.

        So the moves of a module that is batch second meet, and move nothing together.
        """
        if node.op != "call_function" or len(self.shapes[node][0]) != _BATCH_SECOND:
            return
        of_rows = _of_rows(node)
        args = list(node.args)
        for i in of_rows:
            each = args[i]
            if not isinstance(each, fx.Node):
                continue
            base = self._swapped(each)
            if base is not None:
                args[i] = base
            elif each not in self.shapes or any(
                size != 1 for shape in self.shapes[each] for size in shape[:-1]
            ):
                return
        if args == list(node.args):
            return
        with self.graph.inserting_before(node):
            made = self.graph.call_function(node.target, tuple(args), dict(node.kwargs))  # type: ignore[arg-type]
        self.shapes[made] = tuple((b, a, *rest) for a, b, *rest in self.shapes[node])
        self._replace(node, made, aten.transpose.int, (made, 0, 1))

    def _swapped(self, node: fx.Node) -> fx.Node | None:
        """The origin of a tensor, if only its first two axes differ; one of them has size 1."""
        base = self.origin.get(node)
        if base is None or len(self.shapes[base][0]) != len(self.shapes[node][0]):
            return None
        swapped = tuple((b, a, *rest) for a, b, *rest in self.shapes[node])
        return base if swapped == self.shapes[base] else None

    def _replace(self, node: fx.Node, base: fx.Node, target: Any, args: Any) -> None:
        with self.graph.inserting_before(node):
            made = self.graph.call_function(target, args)
        self.origin[made], self.shapes[made] = base, self.shapes[node]
        node.replace_all_uses_with(made)


_BATCH_SECOND = 3  # axes of (1, B, E)


def _of_rows(node: fx.Node) -> Sequence[int]:
    """The arguments of a row-wise operator that have the rows of its result."""
    target: Any = node.target
    if any(isinstance(each, fx.Node) for each in node.kwargs.values()):
        return ()
    if target is aten.linear.default or (
        target is aten.layer_norm.default and len(node.args[1]) == 1  # type: ignore[arg-type]
    ):
        return (0,)
    if target is aten.embedding.default:
        return (1,)
    if torch.Tag.pointwise in getattr(target, "tags", ()):
        return range(len(node.args))
    return ()


def _moves_ones(order: Sequence[int], shapes: Sequence[Shape]) -> bool:
    """Whether axes of more than one row keep their order."""
    kept = [axis for axis in order if any(shape[axis] != 1 for shape in shapes)]
    return kept == sorted(kept)
