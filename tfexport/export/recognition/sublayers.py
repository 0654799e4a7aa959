"""Norms, feed-forward sublayers and attention, recognised by what they compute.

What is between two nodes is run on drawn values, and compared with the formula of each form that a
``TransformerConfig`` has.

Axes: B batch, L queries, S keys, H heads, D head size, E width, F width of the feed-forward.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from tfexport.export.incremental.attention import attention
from tfexport.export.recognition.dataflow import PRODUCTS, Dataflow, NotRecognisedError, aten

MOST_OPERATORS = 40  # of a norm
MOST_DISTANCE = 600  # of relative positions with a bias of their own
_SAME = 2e-5  # relative difference of two formulas that are equal but for rounding
_MASKED = -1e3  # a score below has no weight
_PRODUCTS = (aten.matmul.default, aten.bmm.default, aten.einsum.default)
_SOFTMAX = (aten.softmax.int, aten._softmax.default)
_ENDS_OF_NORMS = (
    aten.add.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.layer_norm.default,
    aten.rms_norm.default,
)  # fmt: skip


# Norms.


@dataclass(frozen=True)
class Norm:
    """A norm.

    Attributes:
        source: what is normalised.
        result: its result.
        kind: as in ``TransformerConfig.norm``.
        eps: its epsilon.
        weight: (E,).
        bias: (E,); None if there is none.
    """

    source: fx.Node
    result: fx.Node
    kind: str
    eps: float
    weight: Tensor
    bias: Tensor | None


def _layer(x: Tensor, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()


def _annotated(x: Tensor, eps: float) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + eps)


def _rms(x: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


_NORMS = {"layer": _layer, "annotated": _annotated, "rms": _rms}


def find_norms(flow: Dataflow) -> dict[fx.Node, Norm]:
    """All norms, by their results."""
    found = {}
    for node in flow.side:
        if any(isinstance(each, float) for each in node.args[:2]):
            continue  # a factor after a norm is none of its weights
        if node.target in _ENDS_OF_NORMS and (norm := find_norm(flow, node)) is not None:
            found[node] = norm
    return found


def find_norm(flow: Dataflow, result: fx.Node) -> Norm | None:
    """The norm that gives a node; None if none does."""
    if result not in flow.side or flow.values[result].dim() != 3:
        return None
    for source in flow.dominators(result):
        value = flow.values[source]
        if not isinstance(value, Tensor) or value.shape != flow.values[result].shape:
            continue
        nodes = flow.between(source, result)
        if len(nodes) > MOST_OPERATORS or any(node.target in PRODUCTS for node in nodes):
            return None
        if (found := _read_norm(flow, source, result, nodes)) is not None:
            return found
    return None


def _read_norm(
    flow: Dataflow, source: fx.Node, result: fx.Node, nodes: Sequence[fx.Node]
) -> Norm | None:
    shape = flow.values[source].shape
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    # Small values too, on which epsilon acts.
    probes = [drawn * 2 + 0.5, drawn * 1e-2, drawn * 1e-3 + 1e-3, drawn * 1e-5]
    try:
        made = [flow.run(nodes, {source: x}) for x in probes]
        zero = flow.run(nodes, {source: torch.zeros(shape)})
    except RuntimeError:
        return None
    if any(not isinstance(y, Tensor) or y.shape != shape for y in (*made, zero)):
        return None
    zero = zero.nan_to_num()[0, 0]
    held = [t for n in nodes for t in _static_vectors(flow, n, shape[-1])]
    best: tuple[float, Norm] | None = None
    for kind, formula in _NORMS.items():
        for eps in _numbers(nodes, flow):
            normed = [formula(x, eps) for x in probes]
            bias = None if kind == "rms" or not zero.any() else zero
            weight = _weight(normed[0], made[0] - zero, held)
            error = max(
                _error(one * weight + (0 if bias is None else bias), two)
                for one, two in zip(normed, made, strict=True)
            )
            if error <= _SAME and (best is None or error < best[0]):
                best = error, Norm(source, result, kind, eps, weight, bias)
    return None if best is None else best[1]


def _weight(normed: Tensor, result: Tensor, held: Sequence[Tensor]) -> Tensor:
    """The factor of each value: the vector of the program that it is, else as computed."""
    one, two = normed.double().flatten(0, 1), result.double().flatten(0, 1)
    computed = ((one * two).sum(0) / one.square().sum(0)).float()
    near = [each for each in held if torch.allclose(each, computed, rtol=1e-4, atol=1e-5)]
    return (
        min(near, key=lambda each: float((each - computed).abs().sum())).clone()
        if near
        else computed
    )


def _static_vectors(flow: Dataflow, node: fx.Node, width: int) -> Iterator[Tensor]:
    yield torch.ones(width)
    for each in node.all_input_nodes:
        value = flow.values.get(each)
        if not isinstance(value, Tensor) or each not in flow.static:
            continue
        if value.is_floating_point() and value.numel() in (1, width):
            yield value.detach().flatten().float().expand(width)


def _numbers(nodes: Sequence[fx.Node], flow: Dataflow) -> list[float]:
    """What epsilon may be: small numbers of the operators, and their defaults."""
    found = {0.0}
    for node in nodes:
        values: list[Any] = [*node.args, *node.kwargs.values()]
        if node.target is aten.layer_norm.default and len(values) < 5:
            found.add(1e-5)
        if node.target is aten.rms_norm.default:
            found.add(torch.finfo(torch.float32).eps)
        for value in values:
            if isinstance(value, fx.Node) and value in flow.static:
                held = flow.values.get(value)
                value = held.item() if isinstance(held, Tensor) and held.numel() == 1 else None
            if isinstance(value, float) and 0 < value < 0.1:
                found |= {value, value * value}
    return sorted(found)


def _error(one: Tensor, two: Tensor) -> float:
    scale = two.abs().max().clamp(min=1e-30)
    found = float(((one - two).abs() / scale).max())
    return math.inf if math.isnan(found) else found


# Feed-forward.


@dataclass(frozen=True)
class FeedForward:
    """A feed-forward sublayer.

    Attributes:
        source: (B, L, E).
        activation: as in ``TransformerConfig``.
        up: matrix (F, E) and bias (F,).
        gate: the same, of what the activation takes if ``up`` is multiplied with it.
        down: matrix (E, F) and bias (E,).
    """

    source: fx.Node
    activation: str
    up: tuple[Tensor, Tensor]
    gate: tuple[Tensor, Tensor] | None
    down: tuple[Tensor, Tensor]


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
}


def read_feed_forward(
    flow: Dataflow, result: fx.Node, inner: fx.Node, prev: fx.Node
) -> FeedForward:
    """The feed-forward sublayer between a stream and what is added to it.

    Args:
        flow: of the program.
        result: what is added.
        inner: (B, L, F), what the last matrix takes.
        prev: the stream.

    Raises:
        NotRecognisedError: it is none.
    """
    down = flow.read_vectors(inner, result)
    for source in flow.dominators(inner):
        if not _same_shape(flow, source, inner):
            break
        name = _activation(flow, source, inner)
        if name is not None:
            entry = _only_leaf(flow, source, prev)
            return FeedForward(entry, name, flow.read_vectors(entry, source), None, down)
    return _read_gated(flow, inner, prev, down)


def _same_shape(flow: Dataflow, one: fx.Node, two: fx.Node) -> bool:
    first, second = flow.values[one], flow.values[two]
    return isinstance(first, Tensor) and bool(first.shape == second.shape)


def _activation(flow: Dataflow, source: fx.Node, result: fx.Node) -> str | None:
    value = torch.linspace(-6, 6, flow.values[source].numel()).view_as(flow.values[source])
    nodes = flow.between(source, result)
    if any(node.target in PRODUCTS for node in nodes):
        return None
    made = flow.run(nodes, {source: value})
    for name, formula in ACTIVATIONS.items():
        if made.shape == value.shape and _error(formula(value), made) <= _SAME / 10:
            return name
    return None


def _read_gated(
    flow: Dataflow, inner: fx.Node, prev: fx.Node, down: tuple[Tensor, Tensor]
) -> FeedForward:
    for entry in flow.dominators(inner):
        tensor = isinstance(flow.values[entry], Tensor)
        if entry is not prev and (not tensor or flow.is_linear(entry)):
            continue
        nodes = flow.between(entry, inner)
        ends = _nonlinear_from(flow, entry, nodes)
        if len(ends) != 2:
            break
        shape = flow.values[inner].shape
        draws = [torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i in (0, 1)]
        given = {end: draw * 3 for end, draw in zip(ends, draws, strict=True)}
        if not all(_same_shape(flow, end, inner) for end in ends):
            break
        made = flow.run(flow.between(ends, inner), given)
        for gate, up in (ends, ends[::-1]):
            for name, formula in ACTIVATIONS.items():
                if _error(formula(given[gate]) * given[up], made) <= _SAME / 10:
                    of_gate, of_up = (flow.read_vectors(entry, end) for end in (gate, up))
                    return FeedForward(entry, name, of_up, of_gate, down)
        break
    raise NotRecognisedError(f"{flow.program.line_of(inner)} is no known activation")


def _nonlinear_from(flow: Dataflow, entry: fx.Node, nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Where the linear maps from a node end, without factors of single numbers."""
    linear, ends = {entry}, dict[fx.Node, None]()
    for node in nodes:
        if flow.is_linear(node) and all(each in linear for each in flow.before(node)):
            linear.add(node)
            continue
        for each in flow.before(node):
            if each in linear:
                ends[_unscaled(flow, each)] = None
    return list(ends)


def _unscaled(flow: Dataflow, node: fx.Node) -> fx.Node:
    while node.target in (aten.mul.Tensor, aten.div.Tensor) and len(flow.before(node)) == 1:
        others = [each for each in node.args if each is not flow.before(node)[0]]
        if any(isinstance(each, fx.Node) and flow.values[each].numel() > 1 for each in others):
            break
        (node,) = flow.before(node)
    return node


def _only_leaf(flow: Dataflow, node: fx.Node, prev: fx.Node | None) -> fx.Node:
    leaves = flow.leaves(node, prev)
    if len(leaves) != 1:
        raise NotRecognisedError(f"{flow.program.line_of(node)} adds up several tensors")
    return leaves[0]


# Attention.


@dataclass(frozen=True)
class Attention:
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
) -> Attention:
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
    return Attention(
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
    operands = args[1] if node.target is aten.einsum.default else args[:2]
    weights, value = operands
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
        if len(before) != 1 or seen > MOST_OPERATORS:
            raise wrong
        (product,) = before
    of_one, of_two, of_scores = _letters(flow, product)
    one, two = product.args[1] if product.target is aten.einsum.default else product.args[:2]
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


def _letters(flow: Dataflow, node: fx.Node) -> tuple[str, str, str]:
    """The axes of two operands and of their product."""
    if node.target is aten.einsum.default:
        left, _, right = str(node.args[0]).replace(" ", "").partition("->")
        operands = left.split(",")
        if len(operands) != 2 or not right or "." in left:
            raise NotRecognisedError(f"{flow.program.line_of(node)}: an einsum of another form")
        return operands[0], operands[1], right
    rank = flow.values[node].dim()
    batch = "abcefg"[: rank - 2]
    if any(flow.values[each].dim() != rank for each in node.all_input_nodes[:2]):
        raise NotRecognisedError(f"{flow.program.line_of(node)} broadcasts")
    return f"{batch}xy", f"{batch}yz", f"{batch}xz"


def _softmax_of(flow: Dataflow, node: Any) -> Any:
    """The softmax that gives a node through operators that arrange its values."""
    while isinstance(node, fx.Node) and node in flow.side:
        if node.target in _SOFTMAX:
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
) -> Attention:
    line = flow.program.line_of(heads.result)
    of_keys = flow if heads.key in flow.side else other
    if of_keys is None or heads.key not in of_keys.side or heads.value not in of_keys.side:
        raise NotRecognisedError(f"{line}: keys and values are of neither side")
    stop = prev if of_keys is flow else None
    source, turned = _entry(flow, heads.query, prev)
    memory, keys_turned = _entry(of_keys, heads.key, stop)
    if memory is not _only_leaf(of_keys, heads.value, stop):
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
    return Attention(source, memory, count, query, key, value, out, scale, masked, turned, strip)


def _entry(flow: Dataflow, node: fx.Node, stop: fx.Node | None) -> tuple[fx.Node, bool]:
    """Where the projection of queries or keys begins, and whether positions turn its result."""
    plain = flow.leaves(node, stop)
    with flow.rotations():
        turned = flow.leaves(node, stop) != plain
        return _only_leaf(flow, node, stop), turned


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
    made = flow.run(of.nodes, {source: drawn}).flatten()
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
    batch, _, width = canonical.shape
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
    count, depth = len(heads_of[0]), like.shape[inner]
    matrix = torch.empty(width, count * depth)
    for column in range(count * depth):
        value = torch.zeros_like(like)
        head = heads_of[0][column // depth]
        value[_index(letters, axes, head, at, 0, inner, column % depth)] = 1.0
        matrix[:, column] = flow.canonical(result, flow.homogeneous(of, value))[0, 0]
    bias = flow.canonical(result, flow.constant(of))
    if not torch.allclose(bias, bias[:1, :1].expand_as(bias), rtol=1e-5, atol=1e-6):
        raise NotRecognisedError(f"{flow.program.line_of(result)} adds to some positions only")
    return matrix, bias[0, 0].clone()


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
    added = _added(flow, heads)
    masked = ~(added >= _MASKED)
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
        _in_order(flow, heads, flow.run(nodes, {product: x}) if nodes else x) - added
        for x in (torch.ones_like(drawn), drawn)
    )
    scales = at_one[~masked]
    kept = _in_order(flow, heads, drawn)[~masked]
    scale = float(scales.median())
    if not (scales - scale).abs().max() <= 1e-5 * max(1, abs(scale)) or not torch.allclose(
        at_drawn[~masked], kept * scale, rtol=1e-4, atol=1e-5
    ):
        raise NotRecognisedError(f"{line}: scores that are not products times a number")
    usual = heads_scale(flow, heads)
    return (usual if math.isclose(scale, usual, rel_tol=1e-5) else scale), shared, adds


def heads_scale(flow: Dataflow, heads: _Heads) -> float:
    """One divided by the root of the size of a head."""
    return float(flow.values[heads.query].shape[heads.letters[0].index("d")] ** -0.5)


def _added(flow: Dataflow, heads: _Heads) -> Tensor:
    """What is added to scores, (…, L, S)."""
    if heads.scores is None:
        query, key = (flow.values[each].shape[2] for each in (heads.query, heads.key))
        if heads.bias is None:
            return torch.zeros(1, 1, query, key)
        bias: Tensor = flow.values[heads.bias]
        return bias.expand(*bias.shape[:-2], query, key)
    product, scores = heads.scores
    nodes, zeros = flow.between(product, scores), torch.zeros_like(flow.values[product])
    return _in_order(flow, heads, flow.run(nodes, {product: zeros}) if nodes else zeros)


def _in_order(flow: Dataflow, heads: _Heads, scores: Tensor) -> Tensor:
    """Scores (…, L, S) from those of a product or of the same number of values."""
    assert heads.scores is not None
    product = heads.scores[0]
    axes = _score_axes(flow, heads, product, _letters(flow, product)[2])
    return scores.reshape(flow.values[product].shape).movedim(axes, (-2, -1))


def _strip(flow: Dataflow, heads: _Heads, count: int) -> Tensor:
    """What is added to scores by distance; see ``Attention.strip``.

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
    kept = torch.where(by_row[0] >= _MASKED, by_row[0], torch.nan)
    strip = torch.full((count, 2 * length - 1), torch.nan)
    for distance in range(-length + 1, length):
        diagonal = kept.diagonal(distance, -2, -1)
        if not torch.equal(diagonal.nan_to_num(), diagonal[:, :1].expand_as(diagonal).nan_to_num()):
            raise NotRecognisedError(f"{flow.program.line_of(heads.result)}: adds to scores")
        strip[:, distance + length - 1] = diagonal[:, 0]
    return strip


def _score_axes(flow: Dataflow, heads: _Heads, product: fx.Node, letters: str) -> tuple[int, int]:
    one, two, _ = _letters(flow, product)
    operands = product.args[1] if product.target is aten.einsum.default else product.args[:2]
    if operands[0] is not heads.query:  # type: ignore[index]
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
