"""Recurrent layers in a program: run outside of ONNX, and one step at a time.

``torch_layers.recurrent`` makes them ONNX's operators, which have no values in eager PyTorch.
Source: ONNX, docs/Operators.md: GRU, LSTM, RNN.

Axes: T time, B batch, I input size, H hidden size, D directions, G gates.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from tfexport.export import torch_names

KINDS = ("GRU", "LSTM", "RNN")
_SYMBOLIC = "onnx_symbolic._symbolic_multi_out.default"
Tensors = list[Tensor | None]  # x, W, R, B, lengths, h, c, as the operator takes them


def is_recurrent(node: fx.Node) -> bool:
    """Whether a node is a recurrent layer."""
    return str(node.target) == _SYMBOLIC and node.args[1] in KINDS


def sequence(symbolic: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    """A layer over all steps: Y (T, D, B, H), Y_h, and Y_c of an LSTM.

    Args:
        symbolic: the operator of the node.
        *args: the operator's.
        **kwargs: the operator's.
    """
    if torch.compiler.is_exporting() or not _has_values(args[0][0]):
        found: tuple[Tensor, ...] = symbolic(*args, **kwargs)
        return found
    tensors, kind = list(args[0]), args[1]
    x, w, r, b, lengths, *states = padded(tensors)
    directions = [
        _direction(
            kind,
            _activation(kwargs),
            (x, w[i], r[i], None if b is None else b[i]),
            lengths,
            [None if each is None else each[i] for each in states],
            backwards=i == 1,
        )
        for i in range(w.size(0))
    ]
    return tuple(
        torch.stack(each, dim=1 if i == 0 else 0)
        for i, each in enumerate(zip(*directions, strict=True))
    )


def _has_values(tensor: Tensor) -> bool:
    kind = torch_names.find(torch_names.TENSOR_WITHOUT_VALUES)
    return kind is None or not isinstance(tensor, kind)


def padded(tensors: list[Any]) -> list[Any]:
    """All seven tensors of a layer; None for those that it does not have."""
    return [*tensors, *[None] * (7 - len(tensors))]


def one_step(
    kind: str, activation: str, tensors: Tensors, states: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """X (1, B, I), W, R, B and states (1, B, H) to the next states."""
    x, w, r, b = tensors[:4]
    assert x is not None
    assert w is not None
    assert r is not None
    made = cell(kind, activation, (x[0], w[0], r[0], None if b is None else b[0]), [
        each[0] for each in states
    ])  # fmt: skip
    return tuple(each.unsqueeze(0) for each in made)


def activation_of(node: fx.Node) -> str:
    """The function of an RNN."""
    return _activation(node.kwargs)


def _activation(kwargs: Any) -> str:
    return "relu" if "Relu" in kwargs.get("attr_strs", ()) else "tanh"


def cell(
    kind: str,
    activation: str,
    weights: tuple[Tensor, Tensor, Tensor, Tensor | None],
    states: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """One step of one direction: x (B, I), states (B, H) each."""
    x, w, r, b = weights
    of_input, of_state = (None, None) if b is None else b.chunk(2)
    given, h = functional.linear(x, w, of_input), states[0]
    seen = functional.linear(h, r, of_state)
    if kind == "GRU":  # update, reset, new
        update, reset = ((given + seen).chunk(3, -1)[i].sigmoid() for i in (0, 1))
        new = (given.chunk(3, -1)[2] + reset * seen.chunk(3, -1)[2]).tanh()
        return ((1 - update) * new + update * h,)
    if kind == "LSTM":  # input, output, forget, cell
        i, o, f, g = (given + seen).chunk(4, -1)
        c = f.sigmoid() * states[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
    return ((given + seen).relu() if activation == "relu" else (given + seen).tanh(),)


def _direction(
    kind: str,
    activation: str,
    weights: tuple[Tensor, Tensor, Tensor, Tensor | None],
    lengths: Tensor | None,
    begun: Sequence[Tensor | None],
    backwards: bool,
) -> tuple[Tensor, ...]:
    """All steps of one direction: y (T, B, H), h (B, H), and c of an LSTM."""
    x, w, r, b = weights
    zeros = x.new_zeros(x.size(1), r.size(1))
    count = 2 if kind == "LSTM" else 1
    states = tuple(zeros if each is None else each for each in begun[:count])
    found = []
    steps = range(x.size(0))
    for t in reversed(steps) if backwards else steps:
        after = cell(kind, activation, (x[t], w, r, b), states)
        if lengths is None:
            states = after
            found.append(after[0])
        else:  # a row that has ended keeps its state, and gives zeros
            inside = (t < lengths).unsqueeze(1)
            states = tuple(
                torch.where(inside, new, old) for new, old in zip(after, states, strict=True)
            )
            found.append(torch.where(inside, after[0], zeros))
    return (torch.stack(found[::-1] if backwards else found), *states)
