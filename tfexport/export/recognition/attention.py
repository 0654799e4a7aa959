"""Attention sublayers, recognised by what they compute.

The projections are linear maps. What is done to the scores before the softmax is run on drawn
values: it may multiply them with a number, mask them, and add numbers that depend on the distance.

Axes: B batch, L queries, S keys, H heads, D head size, E width.
"""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from tfexport.export.incremental.attention import attention
from tfexport.export.operators import BATCHED_PRODUCTS, PRODUCTS, SOFTMAX, aten, einsum_axes
from tfexport.export.recognition.dataflow import (
    Dataflow,
    Linear,
    NotRecognisedError,
)

MOST_DISTANCE = 600  # of relative positions with a bias of their own
_MOST_OPERATORS = 40  # between a product and the softmax
MASKED = -1e3  # a score below has no weight
_PRODUCTS = (*BATCHED_PRODUCTS, aten.einsum.default)


class AllMaskedError(NotRecognisedError):
    """Attention to nothing, as where a mask is taken for its opposite."""


@dataclass(frozen=True)
class RecognisedAttention:
    """An attention sublayer.

    Attributes:
        source: the queries' vectors (B, L, E).
        memory: those of the keys and values (B, S, E).
        heads: H.
        query: matrix (H * D, E) and bias (H * D,).
        key: the same.
        value: the same.
        out: matrix (E, H * D) and bias (E,).
        scale: of the scores.
        masked: whether each key is masked for each query (L, S).
        rotary: whether queries and keys are turned by their positions.
        strip: what is added to the scores of each head (H, 2 L - 1), by the distance of key and
            query from -L + 1 on, NaN where keys are masked; None for nothing.
    """

    source: fx.Node
    memory: fx.Node
    heads: int
    query: tuple[Tensor, Tensor]
    key: tuple[Tensor, Tensor]
    value: tuple[Tensor, Tensor]
    out: tuple[Tensor, Tensor]
    scale: float
    masked: Tensor
    rotary: bool = False
    strip: Tensor | None = None


@dataclass(frozen=True)
class _Heads:
    """One product of weights and values, and the heads in it.

    Axes of operands are named by a letter: of an einsum, or as if it was one.

    Attributes:
        result: the product.
        query: what meets the keys.
        key: what meets the queries.
        value: what meets the weights.
        letters: of each of them, ``result`` last; L, S and D as below, others are batch.
        scores: the product of queries and keys, to the softmax's input; None if ``scale`` is given.
        scale: of the scores.
        bias: what is added to them.
    """

    result: fx.Node
    query: fx.Node
    key: fx.Node
    value: fx.Node
    letters: tuple[str, str, str, str]
    scores: tuple[fx.Node, fx.Node] | None
    scale: float = 1.0
    bias: fx.Node | None = None


def read_attention(
    flow: Dataflow, other: Dataflow | None, result: fx.Node, prev: fx.Node
) -> RecognisedAttention:
    """The attention sublayer between a stream and what is added to it.

    Args:
        flow: of the program, of this side.
        other: of the encoder, if this is the decoder.
        result: what is added.
        prev: the stream.

    Raises:
        NotRecognisedError: it is none, or of a form that is not known.
    """
    ends = flow.leaves(result, prev)
    parts = [_heads_of(flow, end) for end in ends]
    found = [_read_heads(flow, other, part, prev, result, ends) for part in parts]
    if len({(each.source, each.memory) for each in found}) != 1:
        raise NotRecognisedError(
            f"{flow.program.line_of(result)}: heads that attend to different tensors"
        )
    if len({each.scale for each in found}) != 1 or any(
        not torch.equal(each.masked, found[0].masked) for each in found
    ):
        raise NotRecognisedError(
            f"{flow.program.line_of(result)}: heads with different scales or masks"
        )
    first = found[0]
    if len(found) == 1:
        return first
    query, key, value = (
        (
            torch.cat([getattr(each, name)[0] for each in found]),
            torch.cat([getattr(each, name)[1] for each in found]),
        )
        for name in ("query", "key", "value")
    )
    out = torch.cat([each.out[0] for each in found], 1), first.out[1]
    heads = sum(each.heads for each in found)
    strips = [each.strip for each in found if each.strip is not None]
    if len(strips) not in (0, len(found)):
        raise NotRecognisedError(f"{flow.program.line_of(result)}: heads with other positions")
    return RecognisedAttention(
        first.source, first.memory, heads, query, key, value, out, first.scale, first.masked,
        first.rotary, torch.cat(strips) if len(strips) == len(found) else None,
    )  # fmt: skip


def _heads_of(flow: Dataflow, node: fx.Node) -> _Heads:
    """The operands of attention whose result is a node.

    Raises:
        NotRecognisedError: it is no attention.
    """
    wrong = NotRecognisedError(f"{flow.program.line_of(node)} is no known attention")
    args: Any = node.args
    letters = ("bhld", "bhsd", "bhsd", "bhld")
    if node.target is attention:
        query, key, value, bias, scale = args
        return _Heads(node, query, key, value, letters, None, scale, bias)
    if node.target is not aten.einsum.default and node.target not in _PRODUCTS:
        raise wrong
    of_weights, of_values, of_result = _letters(flow, node)
    weights, value = _operands(node)
    softmax = _softmax_of(flow, weights)
    if softmax is None:
        weights, value, of_weights, of_values = value, weights, of_values, of_weights
        softmax = _softmax_of(flow, weights)
    if softmax is None:
        raise wrong
    scores = softmax.args[0]
    product: Any = scores
    seen = 0
    while product.target not in _PRODUCTS or len(flow.before(product) + _others(flow, product)) < 2:
        before = flow.before(product)
        seen += 1
        if len(before) != 1 or seen > _MOST_OPERATORS:
            raise wrong
        (product,) = before
    of_one, of_two, of_scores = _letters(flow, product)
    one, two = _operands(product)
    rank = flow.values[softmax].dim()
    axis = int(softmax.args[1]) % rank
    if rank != len(of_scores) and axis != rank - 1:
        raise wrong
    keys = of_scores[axis if rank == len(of_scores) else -1]
    if keys in of_one:  # keys come first
        one, two, of_one, of_two = two, one, of_two, of_one
    lengths = [c for c in of_scores if c in of_one and c not in of_two and c != keys]
    contracted = [c for c in of_one if c in of_two and c not in of_scores]
    summed = [c for c in of_values if c in of_weights and c not in of_result]
    kept = [c for c in of_values if c in of_result and c not in of_weights]
    queries = [c for c in of_weights if c in of_result and c not in of_values]
    if keys not in of_two or any(
        len(each) != 1 for each in (lengths, contracted, summed, kept, queries)
    ):
        raise wrong
    return _Heads(
        node, one, two, value,
        (_named(of_one, lengths[0], "", contracted[0]), _named(of_two, "", keys, contracted[0]),
         _named(of_values, "", summed[0], kept[0]), _named(of_result, queries[0], "", kept[0])),
        (product, scores),
    )  # fmt: skip


def _others(flow: Dataflow, node: fx.Node) -> list[fx.Node]:
    return [each for each in node.all_input_nodes if flow.of_other_side(each)]


def _named(letters: str, query: str, key: str, inner: str) -> str:
    names = {query: "l", key: "s", inner: "d"}
    return "".join(names.get(c, c.upper()) for c in letters)


def _operands(product: Any) -> Sequence[Any]:
    """The two tensors of a product."""
    tensors: Sequence[Any] = product.args
    return tensors[1] if product.target is aten.einsum.default else tensors[:2]


def _letters(flow: Dataflow, node: fx.Node) -> tuple[str, str, str]:
    """The axes of two operands and of their product."""
    if node.target is aten.einsum.default:
        operands, result = einsum_axes(node) or ([], "")
        if len(operands) != 2:
            raise NotRecognisedError(f"{flow.program.line_of(node)}: an einsum of another form")
        return operands[0], operands[1], result
    rank = flow.values[node].dim()
    batch = "abcefg"[: rank - 2]
    if any(flow.values[each].dim() != rank for each in node.all_input_nodes[:2]):
        raise NotRecognisedError(f"{flow.program.line_of(node)} broadcasts")
    return f"{batch}xy", f"{batch}yz", f"{batch}xz"


def _softmax_of(flow: Dataflow, node: Any) -> Any:
    """The softmax that gives a node through operators that arrange its values."""
    while isinstance(node, fx.Node) and node in flow.side:
        if node.target in SOFTMAX:
            return node
        if not flow.is_linear(node) or len(flow.before(node)) != 1 or node.target in PRODUCTS:
            return None
        (node,) = flow.before(node)
    return None


def _read_heads(
    flow: Dataflow,
    other: Dataflow | None,
    heads: _Heads,
    prev: fx.Node,
    result: fx.Node,
    ends: Sequence[fx.Node],
) -> RecognisedAttention:
    line = flow.program.line_of(heads.result)
    of_keys = flow if heads.key in flow.side else other
    if of_keys is None or heads.key not in of_keys.side or heads.value not in of_keys.side:
        raise NotRecognisedError(f"{line}: keys and values are of neither side")
    stop = prev if of_keys is flow else None
    source, turned = _entry(flow, heads.query, prev)
    memory, keys_turned = _entry(of_keys, heads.key, stop)
    if memory is not of_keys.only_leaf(heads.value, stop):
        raise NotRecognisedError(f"{line}: keys and values of different tensors")
    if turned != keys_turned:
        raise NotRecognisedError(f"{line}: positions of queries and keys differ")
    query, count, order = _projection(flow, source, heads.query, heads.letters[0], turned)
    key, of_key, of_keys_order = _projection(of_keys, memory, heads.key, heads.letters[1], turned)
    value, of_value, _ = _projection(of_keys, memory, heads.value, heads.letters[2])
    if not count == of_key == of_value or order != of_keys_order:
        counts = f"{count} heads of queries, {of_key} of keys, {of_value} of values"
        raise NotRecognisedError(f"{line}: {counts}")
    out = _output(flow, heads, result, ends)
    scale, masked, adds = _scores(flow, heads)
    strip = _strip(flow, heads, count) if adds else None
    return RecognisedAttention(
        source, memory, count, query, key, value, out, scale, masked, turned, strip
    )


def _entry(flow: Dataflow, node: fx.Node, stop: fx.Node | None) -> tuple[fx.Node, bool]:
    """Where the projection of queries or keys begins, and whether positions turn its result."""
    plain = flow.leaves(node, stop)
    with flow.rotations():
        turned = flow.leaves(node, stop) != plain
        return flow.only_leaf(node, stop), turned


def _projection(
    flow: Dataflow, source: fx.Node, result: fx.Node, letters: str, turned: bool = False
) -> tuple[tuple[Tensor, Tensor], int, str]:
    """Matrix (H * D, E) and bias of queries, keys or values; H; and which pairs are turned."""
    with flow.rotations() if turned else contextlib.nullcontext():
        return _read_projection(flow, source, result, letters, turned)


def _read_projection(
    flow: Dataflow, source: fx.Node, result: fx.Node, letters: str, turned: bool
) -> tuple[tuple[Tensor, Tensor], int, str]:
    of = flow.linear(source, result)
    shape = flow.values[result].shape
    length = "l" if "l" in letters else "s"
    axes = [i for i, c in enumerate(letters) if c not in (length, "d")]
    inner, indices, count = letters.index("d"), [], 0
    for place in flow.places(source):
        at = flow.reached(of, place).nonzero()
        if len({int(each[letters.index(length)]) for each in at}) != 1:
            raise NotRecognisedError(f"{flow.program.line_of(result)} mixes several positions")
        heads = sorted({tuple(int(each[i]) for i in axes) for each in at})
        order = sorted(at.tolist(), key=lambda each: (tuple(each[i] for i in axes), each[inner]))
        count = len(heads)
        if len(order) != count * shape[inner]:
            line = flow.program.line_of(result)
            raise NotRecognisedError(f"{line} has heads of different sizes")
        indices.append(torch.tensor([_flat(each, shape) for each in order]))
    matrix, bias = flow.read(of, indices, first_only=turned)
    if not turned:
        return (matrix, bias), count, ""
    drawn = torch.randn(flow.values[source].shape, generator=torch.Generator().manual_seed(0))
    made = flow.values.recomputed(of.nodes, {source: drawn}).flatten()
    found = [
        (flow.canonical(source, drawn)[place], made[at], place[1])
        for place, at in zip(flow.places(source), indices, strict=True)
    ]
    for name, pairs in _pairs(shape[inner]).items():
        kept = torch.cat([pairs + head * shape[inner] for head in range(count)])
        weight, constant = matrix[kept], bias[kept]
        if all(
            torch.allclose(
                _turned(weight @ x + constant, position, shape[inner]), y[kept],
                rtol=1e-4, atol=1e-5,
            )
            for x, y, position in found
        ):  # fmt: skip
            return (weight, constant), count, name
    raise NotRecognisedError(
        f"{flow.program.line_of(result)}: positions of a form that is not known"
    )


def _pairs(depth: int) -> dict[str, Tensor]:
    """The order in which neighbours are turned together."""
    halves = torch.arange(depth).view(2, -1).t().flatten() if depth % 2 == 0 else torch.arange(0)
    return {"neighbours": torch.arange(depth), "halves": halves} if depth % 2 == 0 else {}


def _turned(values: Tensor, position: int, depth: int) -> Tensor:
    """Rotary positions (Su et al. 2021) of all heads (H * D,), neighbours together."""
    angles = position * 10000.0 ** (-torch.arange(0, depth, 2) / depth)
    one, two = values.view(-1, depth // 2, 2).unbind(-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([one * cos - two * sin, one * sin + two * cos], -1).flatten()


def _output(
    flow: Dataflow, heads: _Heads, result: fx.Node, ends: Sequence[fx.Node]
) -> tuple[Tensor, Tensor]:
    """Matrix (E, H * D) and bias (E,) after attention."""
    of = flow.linear(heads.result, result, ends)
    like, letters = flow.values[heads.result], heads.letters[3]
    canonical = flow.canonical(result, torch.zeros_like(flow.values[result]))
    batch = len(canonical)
    axes = [i for i, c in enumerate(letters) if c not in ("l", "d")]
    inner, at = letters.index("d"), letters.index("l")
    # Which heads are of a row: those from which its values come.
    groups: dict[int, list[tuple[int, ...]]] = {b: [] for b in range(batch)}
    sizes = [range(like.shape[i]) for i in axes]
    for head in torch.cartesian_prod(*map(torch.tensor, sizes)).reshape(-1, len(axes)).tolist():
        value = torch.zeros_like(like)
        value[_index(letters, axes, head, at, 0, inner, slice(None))] = 1.0
        made = flow.canonical(result, flow.homogeneous(of, value, drawn=True)) != 0
        rows = made.any(-1).nonzero()
        if len(rows) != 1 or int(rows[0, 1]) != 0:
            raise NotRecognisedError(
                f"{flow.program.line_of(result)} mixes the values of several positions"
            )
        groups[int(rows[0, 0])].append(tuple(head))
    heads_of = [sorted(group) for group in groups.values()]
    matrix = _output_matrix(flow, of, letters, heads_of[0])
    bias = flow.canonical(result, flow.constant(of))
    if not torch.allclose(bias, bias[:1, :1].expand_as(bias), rtol=1e-5, atol=1e-6):
        raise NotRecognisedError(f"{flow.program.line_of(result)} adds to some positions only")
    return matrix, bias[0, 0].clone()


def _output_matrix(
    flow: Dataflow, of: Linear, letters: str, heads: Sequence[tuple[int, ...]]
) -> Tensor:
    """The matrix (E, H * D) after attention, of the heads of the first row."""
    like = flow.values[of.source]
    axes = [i for i, c in enumerate(letters) if c not in ("l", "d")]
    inner, at = letters.index("d"), letters.index("l")
    depth, places = like.shape[inner], range(min(like.shape[at], flow.most_places))
    drawn = torch.randn(like.shape, generator=torch.Generator().manual_seed(0))
    made = flow.canonical(of.result, flow.homogeneous(of, drawn))[0]
    given = torch.stack([
        torch.cat([drawn[_index(letters, axes, head, at, place, inner, slice(None))]
                   for head in heads])
        for place in places
    ])  # fmt: skip
    if (held := flow.held_matrix(of, given, made[: len(places)])) is not None:
        return held
    matrix = torch.empty(made.shape[-1], len(heads) * depth)
    for column in range(len(heads) * depth):
        value = torch.zeros_like(like)
        head = heads[column // depth]
        value[_index(letters, axes, head, at, 0, inner, column % depth)] = 1.0
        matrix[:, column] = flow.canonical(of.result, flow.homogeneous(of, value))[0, 0]
    return matrix


def _index(
    letters: str, axes: Sequence[int], head: Sequence[int], at: int, place: int, inner: int, d: Any
) -> tuple[Any, ...]:
    found: list[Any] = [0] * len(letters)
    for axis, value in zip(axes, head, strict=True):
        found[axis] = value
    found[at], found[inner] = place, d
    return tuple(found)


def _flat(index: Sequence[int], shape: Sequence[int]) -> int:
    found = 0
    for each, size in zip(index, shape, strict=True):
        found = found * size + each
    return found


def _scores(flow: Dataflow, heads: _Heads) -> tuple[float, Tensor, bool]:
    """The scale of the scores, which keys (L, S) are masked, and whether something is added.

    Raises:
        NotRecognisedError: something else is done to the scores.
    """
    line = flow.program.line_of(heads.result)
    if flow.is_of_values(_beside_product(flow, heads)):
        raise NotRecognisedError(f"{line}: a mask of its own values")
    added = _added(flow, heads)
    masked = ~(added >= MASKED)
    if masked.all():
        raise AllMaskedError(f"{line}: masks all keys")
    adds = bool((added[~masked] != 0).any())
    shared = _alike(masked.flatten(0, -3), line)
    if heads.scores is None:
        return heads.scale, shared, adds
    product, scores = heads.scores
    nodes = flow.between(product, scores)
    drawn = torch.randn(
        flow.values[product].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32
    )
    at_one, at_drawn = (
        _in_order(flow, heads, flow.values.recomputed(nodes, {product: x}) if nodes else x) - added
        for x in (torch.ones_like(drawn), drawn)
    )
    scales = at_one[~masked]
    kept = _in_order(flow, heads, drawn)[~masked]
    scale = float(scales.median())
    if not (scales - scale).abs().max() <= 1e-5 * max(1, abs(scale)) or not torch.allclose(
        at_drawn[~masked], kept * scale, rtol=1e-4, atol=1e-5
    ):
        raise NotRecognisedError(f"{line}: scores that are not products times a number")
    usual = _usual_scale(flow, heads)
    return (usual if math.isclose(scale, usual, rel_tol=1e-5) else scale), shared, adds


def _usual_scale(flow: Dataflow, heads: _Heads) -> float:
    """One divided by the root of the size of a head."""
    return float(flow.values[heads.query].shape[heads.letters[0].index("d")] ** -0.5)


def _beside_product(flow: Dataflow, heads: _Heads) -> list[fx.Node]:
    """The nodes besides the product of queries and keys from which scores are computed."""
    if heads.scores is None:
        return [] if heads.bias is None else [heads.bias]
    product, scores = heads.scores
    reached = {product}
    for node in flow.between(product, scores):
        if any(each in reached for each in node.all_input_nodes):
            reached.add(node)
    return [each for node in reached - {product} for each in node.all_input_nodes
            if each not in reached]  # fmt: skip


def _added(flow: Dataflow, heads: _Heads) -> Tensor:
    """The numbers (…, L, S) that are added to scores."""
    if heads.scores is None:
        query, key = (flow.values[each].shape[2] for each in (heads.query, heads.key))
        if heads.bias is None:
            return torch.zeros(1, 1, query, key)
        bias: Tensor = flow.values[heads.bias]
        return bias.expand(*bias.shape[:-2], query, key)
    product, scores = heads.scores
    nodes, zeros = flow.between(product, scores), torch.zeros_like(flow.values[product])
    return _in_order(
        flow, heads, flow.values.recomputed(nodes, {product: zeros}) if nodes else zeros
    )


def _in_order(flow: Dataflow, heads: _Heads, scores: Tensor) -> Tensor:
    """Scores (…, L, S) from those of a product or of the same number of values."""
    assert heads.scores is not None
    product = heads.scores[0]
    axes = _score_axes(flow, heads, product, _letters(flow, product)[2])
    return scores.reshape(flow.values[product].shape).movedim(axes, (-2, -1))


def _strip(flow: Dataflow, heads: _Heads, count: int) -> Tensor:
    """The numbers that are added to scores, by distance; see ``RecognisedAttention.strip``.

    Raises:
        NotRecognisedError: it depends on something else.
    """
    with flow.at(MOST_DISTANCE):
        added = _added(flow, heads)
    length = added.shape[-1]
    if added.shape[-2] != length:
        raise NotRecognisedError(f"{flow.program.line_of(heads.result)}: adds to scores")
    by_row = added.reshape(-1, count, length, length) if added.shape[-3] % count == 0 else None
    if by_row is None or not torch.equal(by_row, by_row[:1].expand_as(by_row)):
        raise NotRecognisedError(f"{flow.program.line_of(heads.result)}: adds to scores")
    kept = torch.where(by_row[0] >= MASKED, by_row[0], torch.nan)
    strip = torch.full((count, 2 * length - 1), torch.nan)
    for distance in range(-length + 1, length):
        diagonal = kept.diagonal(distance, -2, -1)
        if not torch.equal(diagonal.nan_to_num(), diagonal[:, :1].expand_as(diagonal).nan_to_num()):
            raise NotRecognisedError(f"{flow.program.line_of(heads.result)}: adds to scores")
        strip[:, distance + length - 1] = diagonal[:, 0]
    return strip


def _score_axes(flow: Dataflow, heads: _Heads, product: fx.Node, letters: str) -> tuple[int, int]:
    one, two, _ = _letters(flow, product)
    if _operands(product)[0] is not heads.query:
        one, two = two, one
    query = one[heads.letters[0].index("l")]
    key = two[heads.letters[1].index("s")]
    return letters.index(query), letters.index(key)


def _alike(masked: Tensor, line: str) -> Tensor:
    """The mask (L, S) of all rows and heads.

    Raises:
        NotRecognisedError: they have different ones.
    """
    if not torch.equal(masked, masked[:1].expand_as(masked)):
        raise NotRecognisedError(f"{line}: heads or rows have different masks")
    return masked[0]
