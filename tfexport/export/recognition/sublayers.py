"""Norms and feed-forward sublayers, recognised by what they compute.

What is between two nodes is run on drawn values, and compared with the formula of each form that a
``TransformerConfig`` has.

Axes: B batch, L length of one side, E width, F width of the feed-forward.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from tfexport.export.operators import PRODUCTS, aten
from tfexport.export.recognition.dataflow import Dataflow, NotRecognisedError

MOST_OPERATORS = 40  # of a norm
_SAME = 2e-5  # relative difference of two formulas that are equal but for rounding
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
    if flow.values[result].shape[-1] == 1:  # one value has no deviation
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
        made = [flow.values.recomputed(nodes, {source: x}) for x in probes]
        zero = flow.values.recomputed(nodes, {source: torch.zeros(shape)})
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
        value = flow.values[each] if each in flow.static else None
        if not isinstance(value, Tensor):
            continue
        if value.is_floating_point() and value.numel() in (1, width):
            yield value.detach().flatten().float().expand(width)


def _numbers(nodes: Sequence[fx.Node], flow: Dataflow) -> list[float]:
    """Small numbers of the operators and their defaults, one of which is epsilon."""
    found = {0.0}
    for node in nodes:
        values: list[Any] = [*node.args, *node.kwargs.values()]
        if node.target is aten.layer_norm.default and len(values) < 5:
            found.add(1e-5)
        if node.target is aten.rms_norm.default:
            found.add(torch.finfo(torch.float32).eps)
        for value in values:
            if isinstance(value, fx.Node) and value in flow.static:
                held = flow.values[value]
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
class RecognisedFeedForward:
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
) -> RecognisedFeedForward:
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
            entry = flow.only_leaf(source, prev)
            return RecognisedFeedForward(entry, name, flow.read_vectors(entry, source), None, down)
    return _read_gated(flow, inner, prev, down)


def _same_shape(flow: Dataflow, one: fx.Node, two: fx.Node) -> bool:
    first, second = flow.values[one], flow.values[two]
    return isinstance(first, Tensor) and bool(first.shape == second.shape)


def _activation(flow: Dataflow, source: fx.Node, result: fx.Node) -> str | None:
    value = torch.linspace(-6, 6, flow.values[source].numel()).view_as(flow.values[source])
    nodes = flow.between(source, result)
    if any(node.target in PRODUCTS for node in nodes):
        return None
    made = flow.values.recomputed(nodes, {source: value})
    for name, formula in ACTIVATIONS.items():
        if made.shape == value.shape and _error(formula(value), made) <= _SAME / 10:
            return name
    return None


def _read_gated(
    flow: Dataflow, inner: fx.Node, prev: fx.Node, down: tuple[Tensor, Tensor]
) -> RecognisedFeedForward:
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
        made = flow.values.recomputed(flow.between(ends, inner), given)
        for gate, up in (ends, ends[::-1]):
            for name, formula in ACTIVATIONS.items():
                if _error(formula(given[gate]) * given[up], made) <= _SAME / 10:
                    of_gate, of_up = (flow.read_vectors(entry, end) for end in (gate, up))
                    return RecognisedFeedForward(entry, name, of_up, of_gate, down)
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
