"""Attention that is recognised in a program, however it is written, as one operator.

``softmax(scale * q k^T, masked) v`` becomes a call of ``attention``. It then has its own rule,
its keys and values are what a cache or the memory holds, and the graphs compute it as
onnxruntime's ``MultiHeadAttention``.

Axes: B batch, H heads, L queries, S keys, D head size.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from tfexport.export.operators import (
    BATCHED_PRODUCTS,
    SAME_VALUES,
    SOFTMAX,
    aten,
    einsum_axes,
)

# What masks are filled with here: far enough from 0 that a row without a key is uniform, as it is
# with any other number that is added to all of its scores.
_MASKED = -1e30
_LEAST_FILL = -1e3  # with which a key has no weight
_RANK = 4


def attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float
) -> Tensor:
    """Queries (B, H, L, D), keys and values (B, H, S, D) to (B, H, L, D).

    Args:
        query: of each position.
        key: of each position.
        value: of each position.
        bias: added to the scores; broadcasts to (B, H, L, S).
        scale: of the scores, before the bias.
    """
    scores = (query * scale) @ key.transpose(-2, -1)
    return (scores if bias is None else scores + bias).softmax(-1) @ value


def recognise(graph: fx.Graph, numbers: Mapping[fx.Node, float]) -> None:
    """Replace what computes attention by calls of ``attention``.

    Args:
        graph: of a program, with the shapes of its values.
        numbers: constants of one number, by node.
    """
    _compute_once(graph)
    found = _Recogniser(graph, numbers)
    products = [
        (product, value, node)
        for node in list(graph.nodes)
        if node.target in SOFTMAX and _last(node, node.args[1])
        for product, value in found.products(node)
    ]
    places = {node: i for i, node in enumerate(graph.nodes)}
    for product, value, node in sorted(products, key=lambda each: places[each[0]]):
        found.replace(product, value, node)
    graph.eliminate_dead_code()


def _compute_once(graph: fx.Graph) -> None:
    """Merge nodes that compute the same, such as the masks of each layer."""
    known: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        tags = getattr(node.target, "tags", None)
        if node.op != "call_function" or tags is None or torch.Tag.nondeterministic_seeded in tags:
            continue
        key = node.target, repr(node.args), repr(sorted(node.kwargs.items()))
        earlier = known.setdefault(key, node)
        if earlier is not node:
            node.replace_all_uses_with(earlier)


@dataclass
class _Scores:
    """Scores before the softmax.

    Attributes:
        query: (B, H, L, D), before it is scaled.
        key: (B, H, S, D).
        scale: of the product.
        added: what is added, each with its factor.
        masks: where a score is replaced; each with whether True keeps the score.
        fill: by what; None without masks.
    """

    query: fx.Node
    key: fx.Node
    scale: float
    added: list[tuple[fx.Node, float]] = field(default_factory=list)
    masks: list[tuple[fx.Node, bool]] = field(default_factory=list)
    fill: float | None = None


class _Recogniser:
    """Looks for attention around a softmax."""

    def __init__(self, graph: fx.Graph, numbers: Mapping[fx.Node, float]) -> None:
        self.graph, self.numbers = graph, numbers
        self._made: dict[Any, fx.Node] = {}

    def replace(self, product: fx.Node, value: Any, softmax: Any) -> None:
        """Replace the product of weights with values, if the scores have a known form."""
        if not (_is_heads(product) and _is_heads(value)):
            return
        with self.graph.inserting_before(product):
            scores = self._scores(softmax.args[0])
            if scores is None or not _fits(scores, value, product):
                return
            bias = self._bias(scores, softmax)
            if bias is _NO_BIAS:
                return
            given = (scores.query, scores.key, value, bias, scores.scale)
            made = self._call(attention, given, softmax, product)
        product.replace_all_uses_with(made)

    def products(self, weights: fx.Node) -> list[tuple[fx.Node, Any]]:
        """The products of weights, each with its values."""
        found: list[tuple[fx.Node, Any]] = []
        for user in list(weights.users):
            if _is_same(user) and user.args[0] is weights:
                found += self.products(user)
            elif user.target in BATCHED_PRODUCTS and user.args[0] is weights:
                found.append((user, user.args[1]))
            elif user.target is aten.einsum.default:
                found += self._einsum_of_weights(user, weights)
        return found

    def _einsum_of_weights(self, user: Any, weights: fx.Node) -> list[tuple[fx.Node, Any]]:
        letters = _equation(user)
        tensors = user.args[1]
        if letters is None or tensors[0] is not weights:
            return []
        (b, h, q, k), of_value, result = tuple(letters[0]), *letters[1:]
        rest = set(of_value) - {b, h, k}
        if len(rest) != 1 or q in rest or set(result) != {b, h, q, *rest}:
            return []
        (d,) = rest
        with self.graph.inserting_before(user):
            value = self._permuted(tensors[1], [of_value.index(c) for c in (b, h, k, d)], user)
            product = self._call(aten.matmul.default, (weights, value), user, None)
            product.meta["val"] = _permute_value(user, [result.index(c) for c in (b, h, q, d)])
            after = self._permuted(product, [(b, h, q, d).index(c) for c in result], user)
        user.replace_all_uses_with(after)
        return [(product, value)]

    def _scores(self, node: Any) -> _Scores | None:
        """Read scores, from the softmax back to the product of queries and keys."""
        if not isinstance(node, fx.Node):
            return None
        target, args = node.target, node.args
        if _is_same(node):
            return self._scores(args[0])
        if target in BATCHED_PRODUCTS:
            return self._product(args[0], args[1], node)
        if target is aten.einsum.default:
            return self._einsum_of_scores(node)
        if (factor := self._factor(node)) is not None:
            return self._scaled(self._scores(args[0]), factor)
        if target is aten.add.Tensor and not node.kwargs:
            return self._added(args[0], args[1]) or self._added(args[1], args[0])
        masked = self._masked(node)
        if masked is None:
            return None
        scores, mask, keeps, fill = masked
        found = self._scores(scores)
        if found is None or (found.fill is not None and found.fill != fill):
            return None
        found.fill = fill
        found.masks.append((mask, keeps))
        return found

    def _added(self, scores: Any, bias: Any) -> _Scores | None:
        found = self._scores(scores) if isinstance(bias, fx.Node) else None
        # What is added to masked scores decides in a row without a key.
        if found is None or found.masks or not _broadcasts(bias) or not _is_float(bias):
            return None
        found.added.append((bias, 1.0))
        return found

    def _scaled(self, found: _Scores | None, factor: float) -> _Scores | None:
        if found is None or factor <= 0:
            return None
        found.scale *= factor
        found.added = [(bias, of_bias * factor) for bias, of_bias in found.added]
        found.fill = None if found.fill is None else found.fill * factor
        return found

    def _masked(self, node: Any) -> tuple[Any, fx.Node, bool, float] | None:
        """Scores, mask, whether True keeps a score, and what replaces it."""
        target, args = node.target, node.args
        if target in (aten.masked_fill.Scalar, aten.masked_fill.Tensor):
            scores, mask, keeps, fill = args[0], args[1], False, args[2]
        elif target in (aten.where.self, aten.where.ScalarOther):
            mask, scores, fill, keeps = args[0], args[1], args[2], True
        else:
            return None
        number = self._number(fill)
        if number is None and keeps:  # where(mask, number, scores)
            scores, keeps, number = args[2], False, self._number(args[1])
        if number is None or not _broadcasts(mask) or mask.meta["val"].dtype != torch.bool:
            return None
        return scores, mask, keeps, number

    def _product(self, query: Any, key: Any, node: fx.Node) -> _Scores | None:
        """Queries (B, H, L, D) times keys (B, H, D, S)."""
        if not (_is_heads(query) and _is_heads(key) and _is_heads(node)):
            return None
        scale = 1.0
        while True:
            if _is_same(query):
                query = query.args[0]
            elif (factor := self._factor(query)) is not None and factor > 0:
                scale, query = scale * factor, query.args[0]
            else:
                break
        return _Scores(query, self._permuted(key, [0, 1, 3, 2], node), scale)

    def _einsum_of_scores(self, node: Any) -> _Scores | None:
        letters = _equation(node)
        if letters is None:
            return None
        of_query, of_key, (b, h, q, k) = *letters[:2], tuple(letters[2])
        rest = set(of_query) - {b, h, q}
        if len(rest) != 1 or set(of_key) != {b, h, k, *rest} or q in of_key:
            return None
        (d,) = rest
        query = self._permuted(node.args[1][0], [of_query.index(c) for c in (b, h, q, d)], node)
        key = self._permuted(node.args[1][1], [of_key.index(c) for c in (b, h, k, d)], node)
        return _Scores(query, key, 1.0)

    def _bias(self, scores: _Scores, before: Any) -> Any:
        """All biases and masks of scores as one tensor; None if there are none."""
        terms: list[fx.Node] = []
        for bias, factor in scores.added:
            scaled = bias
            if factor != 1:
                scaled = self._once(aten.mul.Tensor, (bias, factor), bias.meta["val"], before)
            terms.append(scaled)
        if scores.masks:
            if scores.fill is None or not scores.fill <= _LEAST_FILL:
                return _NO_BIAS
            fill = -math.inf if math.isinf(scores.fill) else _MASKED
            masks = [
                self._once(aten.logical_not.default, (mask,), mask.meta["val"], before)
                if keeps
                else mask
                for mask, keeps in scores.masks
            ]
            whole = masks[0]
            for mask in masks[1:]:
                value = _broadcast(whole, mask)
                whole = self._once(aten.logical_or.default, (whole, mask), value, before)
            value = whole.meta["val"].float()
            zeros = self._once(aten.zeros_like.default, (whole,), value, before, torch.float32)
            terms.append(self._once(aten.masked_fill.Scalar, (zeros, whole, fill), value, before))
        if not terms:
            return None
        total = terms[0]
        for each in terms[1:]:
            value = _broadcast(total, each)
            total = self._once(aten.add.Tensor, (total, each), value, before)
        while total.meta["val"].dim() < _RANK:
            value = total.meta["val"].unsqueeze(0)
            total = self._once(aten.unsqueeze.default, (total, 0), value, before)
        return total

    def _once(
        self, target: Any, args: tuple[Any, ...], value: Any, like: Any, dtype: Any = None
    ) -> fx.Node:
        """A node, or an earlier one that computes the same."""
        key = target, args
        if key not in self._made:
            made = self._call(target, args, like, None)
            made.meta["val"] = value
            if dtype is not None:
                made.kwargs = {"dtype": dtype}
            self._made[key] = made
        return self._made[key]

    def _permuted(self, node: Any, order: list[int], like: fx.Node) -> Any:
        """A tensor with its axes in another order; one permutation takes the place of two."""
        if order == list(range(len(order))):
            return node
        value = _permute_value(node, order)
        before = order_of(node, len(order))
        if before is not None:
            node, order = node.args[0], [before[axis] for axis in order]
            if order == list(range(len(order))):
                return node
        made = self._call(aten.permute.default, (node, order), like, None)
        made.meta["val"] = value
        return made

    def _call(self, target: Any, args: tuple[Any, ...], like: fx.Node, value: Any) -> fx.Node:
        made = self.graph.call_function(target, args)
        if "stack_trace" in like.meta:
            made.meta["stack_trace"] = like.meta["stack_trace"]
        if value is not None:
            made.meta["val"] = value.meta["val"]
        return made

    def _factor(self, node: Any) -> float | None:
        """The number by which a node multiplies its first argument; None if there is none."""
        if node.target not in (aten.mul.Tensor, aten.div.Tensor, aten.mul.Scalar, aten.div.Scalar):
            return None
        number = self._number(node.args[1])
        if not number or node.kwargs or not isinstance(node.args[0], fx.Node):
            return None
        return number if "mul" in str(node.target) else 1 / number

    def _number(self, value: Any) -> float | None:
        """A number of Python or a constant of one number, through operators that keep it."""
        while isinstance(value, fx.Node) and (
            _is_same(value) or value.target is aten.lift_fresh_copy.default
        ):
            value = value.args[0]
        if isinstance(value, fx.Node):
            return self.numbers.get(value)
        return float(value) if isinstance(value, int | float) else None


_NO_BIAS: Any = object()


def _is_same(node: Any) -> bool:
    """Whether a node gives its first argument, with the same type."""
    if not isinstance(node, fx.Node) or not node.args or not isinstance(node.args[0], fx.Node):
        return False
    if node.target is aten.dropout.default:
        return bool(node.args[2] is False or node.args[1] == 0)
    if node.target not in SAME_VALUES:
        return False
    return bool(node.meta["val"].dtype == node.args[0].meta["val"].dtype)


def _last(node: fx.Node, axis: Any) -> bool:
    rank = node.meta["val"].dim()
    return rank == _RANK and int(axis) % rank == rank - 1 and not node.kwargs


def _is_heads(node: Any) -> bool:
    """Whether a node has a tensor of four axes, of float32."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return isinstance(value, Tensor) and value.dim() == _RANK and value.dtype == torch.float32


def _is_float(node: Any) -> bool:
    return bool(node.meta["val"].dtype == torch.float32)


def _broadcasts(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return isinstance(value, Tensor) and value.dim() <= _RANK


def _fits(scores: _Scores, value: Any, product: fx.Node) -> bool:
    """Whether heads and their size are numbers, the same of queries, keys and values."""
    shapes = [each.meta["val"].shape for each in (scores.query, scores.key, value, product)]
    if not all(isinstance(shape[axis], int) for shape in shapes for axis in (1, 3)):
        return False
    heads, sizes = {shape[1] for shape in shapes}, {shape[3] for shape in shapes}
    batches = {str(shape[0]) for shape in shapes}
    return len(heads) == len(sizes) == len(batches) == 1


def _equation(node: Any) -> tuple[str, str, str] | None:
    """The letters in an einsum of two tensors of four axes, and of their result."""
    operands, result = einsum_axes(node) or ([], "")
    if len(operands) != 2:
        return None
    letters = (operands[0], operands[1], result)
    return letters if all(len(set(each)) == len(each) == _RANK for each in letters) else None


def order_of(node: Any, rank: int) -> list[int] | None:
    """The order in which a node puts the axes of its input; None if it does not move axes."""
    if node.target is aten.permute.default:
        return [int(axis) % rank for axis in node.args[1]]
    if node.target is aten.t.default:
        return list(reversed(range(rank)))
    if node.target is aten.transpose.int:
        order = list(range(rank))
        one, two = (int(axis) % rank for axis in node.args[1:])
        order[one], order[two] = order[two], order[one]
        return order
    return None


def _permute_value(node: fx.Node, order: list[int]) -> Any:
    return node.meta["val"].permute(order)


def _broadcast(one: fx.Node, two: fx.Node) -> Any:
    """A value with the broadcast shape of two tensors."""
    return (
        one.meta["val"] + two.meta["val"]
        if one.meta["val"].dtype != torch.bool
        else (one.meta["val"] | two.meta["val"])
    )
