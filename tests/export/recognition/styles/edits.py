"""Other calls in place of torch's functions, for mutations: other axes, numbers, activations.

Axes: B batch, S source, T target, E model width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SOURCE_LENGTH, TARGET_LENGTH = 7, 6  # of the run in which calls are looked at
_WINDOW = 3  # earlier keys that are still seen where far ones are hidden
_FILLED = -1e3  # numbers below it fill scores that are masked
_SMALL = 1e-2  # numbers below it, which are added, are the epsilon of a norm

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Function = Callable[..., Any]


@dataclass(frozen=True)
class Edit:
    """Another call in place of one of torch's functions.

    Attributes:
        kind: what it does.
        names: of the functions and methods.
        fits: whether arguments are such a call.
        call: computes it otherwise.
    """

    kind: str
    names: tuple[str, ...]
    fits: Callable[[Args, Kwargs], bool]
    call: Callable[[Function, Args, Kwargs], Any]


# ---- which calls ---------------------------------------------------------------------------------


def _any(args: Args, kwargs: Kwargs) -> bool:
    return True


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _of_scores(args: Args, kwargs: Kwargs) -> bool:
    """A tensor of scores, with more than two axes."""
    return _is_float(args[0]) and args[0].dim() > 2


def _with_number(args: Args, kwargs: Kwargs) -> bool:
    """A tensor of several axes and one number, or a tensor of one number."""
    if len(args) < 2 or not _is_float(args[0]) or args[0].dim() < 3:
        return False
    return _number(args[1]) is not None


def _with_epsilon(args: Args, kwargs: Kwargs) -> bool:
    number = _number(args[1]) if _with_number(args, kwargs) else None
    return number is not None and 0 < number < _SMALL


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor):
        is_number = value.numel() == 1 and value.is_floating_point()
        return float(value.detach()) if is_number else None
    return float(value) if isinstance(value, int | float) else None


def _of_two(args: Args, kwargs: Kwargs) -> bool:
    """Two tensors of one shape (., ., E), such as a residual connection."""
    return (
        len(args) > 1
        and _is_float(args[0])
        and _is_float(args[1])
        and args[0].dim() == 3
        and args[0].shape == args[1].shape
    )


def _of_positions(args: Args, kwargs: Kwargs) -> bool:
    """Tokens (B, T, E), and positions that are the same for each row."""
    return (
        len(args) > 1
        and _is_float(args[0])
        and _is_float(args[1])
        and args[0].dim() == 3
        and args[1].numel() < args[0].numel()
        and args[1].dim() > 1
        and args[0].shape[-1] == args[1].shape[-1] > 1
    )


def _of_heads(args: Args, kwargs: Kwargs) -> bool:
    """Two tensors (B, H, ., .)."""
    return (
        len(args) > 1
        and all(_is_float(each) and each.dim() == 4 for each in args[:2])
        and args[0].shape[1] == args[1].shape[1] > 1
    )


def _with_fill(args: Args, kwargs: Kwargs) -> bool:
    """Scores that are filled with a number."""
    filled = _given(args, kwargs, 2, "value", None)
    return _of_scores(args, kwargs) and _number(filled) is not None


def _where_filled(args: Args, kwargs: Kwargs) -> bool:
    """A choice between a value and a fill, which is far below 0."""
    return any((_number(each) or 0) < _FILLED for each in args[1:3])


def _of_square(args: Args, kwargs: Kwargs) -> bool:
    """Scores (..., T, T) that are filled."""
    sizes = args[0].shape[-2:] if _with_fill(args, kwargs) else ()
    return tuple(sizes) == (TARGET_LENGTH, TARGET_LENGTH)


def _with_bias(args: Args, kwargs: Kwargs) -> bool:
    return _given(args, kwargs, 2, "bias", None) is not None


def _norm_has_bias(args: Args, kwargs: Kwargs) -> bool:
    return _given(args, kwargs, 3, "bias", None) is not None


def _is_causal(args: Args, kwargs: Kwargs) -> bool:
    return bool(kwargs.get("is_causal"))


def _has_mask(args: Args, kwargs: Kwargs) -> bool:
    return kwargs.get("attn_mask") is not None


def _of_square_weight(args: Args, kwargs: Kwargs) -> bool:
    return bool(args[1].shape[0] == args[1].shape[1])


def _of_positions_in_order(args: Args, kwargs: Kwargs) -> bool:
    """The lookup of positions 0, 1, 2, ... in a table with more rows."""
    index, table = args[0], args[1]
    order = torch.arange(max(index.shape)) if index.dim() else index
    axis = max(range(index.dim()), key=lambda i: index.shape[i]) if index.dim() else 0
    rows = index.movedim(axis, -1) if index.dim() else index
    return bool(table.shape[0] > rows.shape[-1] and (rows == order).all())


def _of_like_parts(args: Args, kwargs: Kwargs) -> bool:
    """Several floats of one shape."""
    parts = args[0]
    return (
        isinstance(parts, tuple | list)
        and len(parts) > 1
        and all(_is_float(each) and each.shape == parts[0].shape for each in parts)
    )


# ---- what is called ------------------------------------------------------------------------------


def _with(args: Args, kwargs: Kwargs, place: int, name: str, value: Any) -> tuple[Args, Kwargs]:
    """Arguments with another value of one, which stands at a place or has a name."""
    if len(args) > place:
        return (*args[:place], value, *args[place + 1 :]), kwargs
    return args, {**kwargs, name: value}


def _given(args: Args, kwargs: Kwargs, place: int, name: str, default: Any) -> Any:
    return args[place] if len(args) > place else kwargs.get(name, default)


def _argument(place: int, name: str, value: Any) -> Callable[[Function, Args, Kwargs], Any]:
    """The call with another value of an argument."""

    def call(func: Function, args: Args, kwargs: Kwargs) -> Any:
        args, kwargs = _with(args, kwargs, place, name, value)
        return func(*args, **kwargs)

    return call


def _first(change: Callable[[Any], Any]) -> Callable[[Function, Args, Kwargs], Any]:
    """The call with another first argument."""
    return lambda func, args, kwargs: func(change(args[0]), *args[1:], **kwargs)


def _second(change: Callable[[Any], Any]) -> Callable[[Function, Args, Kwargs], Any]:
    """The call with another second argument."""
    return lambda func, args, kwargs: func(args[0], change(args[1]), *args[2:], **kwargs)


def _instead(change: Callable[..., Any]) -> Callable[[Function, Args, Kwargs], Any]:
    """Another function of the first arguments that are tensors."""

    def call(func: Function, args: Args, kwargs: Kwargs) -> Any:
        return change(*(each for each in args[:2] if isinstance(each, Tensor)))

    return call


def _another_axis(func: Function, args: Args, kwargs: Kwargs) -> Any:
    axis = int(_given(args, kwargs, 1, "dim", -1)) % args[0].dim()
    args, kwargs = _with(args, kwargs, 1, "dim", axis - 1)
    return func(*args, **kwargs)


def _filled_with(fill: float) -> Callable[[Function, Args, Kwargs], Any]:
    """A choice with another fill."""

    def call(func: Function, args: Args, kwargs: Kwargs) -> Any:
        given = [fill if (_number(each) or 0) < _FILLED else each for each in args[1:3]]
        return func(args[0], *given)

    return call


def _far_keys_hidden(func: Function, args: Args, kwargs: Kwargs) -> Any:
    queries, keys = (torch.arange(args[0].shape[axis]) for axis in (-2, -1))
    far = keys.unsqueeze(0) < queries.unsqueeze(1) - _WINDOW
    return func(args[0], args[1] | far, *args[2:], **kwargs)


def _without_mean(func: Function, args: Args, kwargs: Kwargs) -> Any:
    x, weight = args[0], _given(args, kwargs, 2, "weight", None)
    bias = _given(args, kwargs, 3, "bias", None)
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + _given(args, kwargs, 4, "eps", 1e-5))
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _other_deviation(func: Function, args: Args, kwargs: Kwargs) -> Any:
    unbiased = kwargs.get("unbiased", True) and kwargs.get("correction", 1) != 0
    return func(args[0], -1, unbiased=not unbiased, keepdim=True)


def _tanh_or_not(func: Function, args: Args, kwargs: Kwargs) -> Any:
    form = kwargs.get("approximate", "none")
    return F.gelu(args[0], approximate="tanh" if form == "none" else "none")


def _moved(by: int) -> Callable[[Function, Args, Kwargs], Any]:
    def call(func: Function, args: Args, kwargs: Kwargs) -> Any:
        diagonal = _given(args, kwargs, 1, "diagonal", 0)
        args, kwargs = _with(args, kwargs, 1, "diagonal", diagonal + by)
        return func(*args, **kwargs)

    return call


def _scaled_attention(func: Function, args: Args, kwargs: Kwargs) -> Any:
    scale = kwargs.get("scale") or args[0].shape[-1] ** -0.5
    return func(*args, **{**kwargs, "scale": scale * 1.25})


def _heads_as_blocks(func: Function, args: Args, kwargs: Kwargs) -> Any:
    repeats, axis = args[1], _given(args, kwargs, 2, "dim", None)
    return torch.cat([args[0]] * repeats, dim=axis)


def _reversed_parts(func: Function, args: Args, kwargs: Kwargs) -> Any:
    return func(list(args[0])[::-1], *args[1:], **kwargs)


def _reversed_results(func: Function, args: Args, kwargs: Kwargs) -> Any:
    return tuple(func(*args, **kwargs))[::-1]


def _moved_result(func: Function, args: Args, kwargs: Kwargs) -> Any:
    return func(*args, **kwargs) + 1e-2


def _normalised_sum(x: Tensor, y: Tensor) -> Tensor:
    return F.layer_norm(x + y, x.shape[-1:])


def _edit(kind: str, names: str, fits: Callable[[Args, Kwargs], bool], call: Any) -> Edit:
    return Edit(kind, tuple(names.split()), fits, call)


_ADD = "add add_ __iadd__ __radd__"
_MUL = "mul mul_ __imul__ __rmul__ div div_ __itruediv__ true_divide"
_FILL = "masked_fill masked_fill_"
_SDPA = "scaled_dot_product_attention"
_NORM = "layer_norm rms_norm"
EDITS = (
    _edit("softmax over another axis", "softmax", _of_scores, _another_axis),
    _edit("scores scaled", "softmax", _of_scores, _first(lambda x: x * 1.25)),
    _edit("scores scaled", _SDPA, _any, _scaled_attention),
    _edit("causal mask left out", _SDPA, _is_causal, _argument(5, "is_causal", False)),
    _edit("mask left out", _SDPA, _has_mask, _argument(3, "attn_mask", None)),
    _edit("heads in another order", _SDPA, _of_heads, _second(lambda x: x.flip(1))),
    _edit("heads in another order", "matmul __matmul__", _of_heads, _second(lambda x: x.flip(1))),
    _edit("heads in another order", "repeat_interleave", _of_scores, _heads_as_blocks),
    _edit("masked with -1", _FILL, _with_fill, _argument(2, "value", -1.0)),
    _edit("masked with -8", _FILL, _with_fill, _argument(2, "value", -8.0)),
    _edit("masked with -1e4", _FILL, _with_fill, _argument(2, "value", -1e4)),
    _edit("masked with -1", "where", _where_filled, _filled_with(-1.0)),
    _edit("masked with -8", "where", _where_filled, _filled_with(-8.0)),
    _edit("far keys hidden", _FILL, _of_square, _far_keys_hidden),
    _edit("causal mask moved back", "tril triu", _any, _moved(-1)),
    _edit("causal mask moved on", "tril triu", _any, _moved(1)),
    _edit("epsilon 1e-3", "layer_norm", _any, _argument(4, "eps", 1e-3)),
    _edit("epsilon 1e-3", "rms_norm", _any, _argument(3, "eps", 1e-3)),
    _edit("epsilon 1e-2", "add", _with_epsilon, _argument(1, "other", 1e-2)),
    _edit("epsilon 1e-3", "rsqrt sqrt", _of_scores, _first(lambda x: x + 1e-3)),
    _edit("norm left out", _NORM, _any, lambda func, args, kwargs: args[0]),
    _edit("norm without bias", "layer_norm", _norm_has_bias, _argument(3, "bias", None)),
    _edit("norm without mean", "layer_norm", _any, _without_mean),
    _edit("mean moved", "mean", _of_scores, _moved_result),
    _edit("other deviation", "std var", _of_scores, _other_deviation),
    _edit("gelu", "relu relu_ silu", _any, _instead(F.gelu)),
    _edit("silu", "relu relu_ gelu", _any, _instead(F.silu)),
    _edit("relu", "gelu silu tanh", _any, _instead(F.relu)),
    _edit("leaky relu", "relu relu_", _any, _instead(lambda x: F.leaky_relu(x, 0.05))),
    _edit("gelu's other form", "gelu", _any, _tanh_or_not),
    _edit("sum without its first", _ADD, _of_two, _instead(lambda x, y: y)),
    _edit("sum without its second", _ADD, _of_two, _instead(lambda x, y: x)),
    _edit("half of the first in a sum", _ADD, _of_two, _instead(lambda x, y: x * 0.5 + y)),
    _edit("sum normalised", _ADD, _of_two, _instead(_normalised_sum)),
    _edit("no positions", _ADD, _of_positions, _instead(lambda x, y: x)),
    _edit("positions twice", _ADD, _of_positions, _instead(lambda x, y: x + y * 2)),
    _edit("factor left out", _MUL, _with_number, lambda func, args, kwargs: args[0]),
    _edit("factor changed", _MUL, _with_number, _second(lambda number: number * 1.125)),
    _edit("bias left out", "linear", _with_bias, _argument(2, "bias", None)),
    _edit("bias left out", "addmm", _any, lambda func, args, kwargs: torch.mm(*args[1:3])),
    _edit("weight transposed", "linear", _of_square_weight, _second(lambda weight: weight.t())),
    _edit(
        "positions from one", "embedding", _of_positions_in_order, _first(lambda index: index + 1)
    ),
    _edit("parts in another order", "chunk split unbind", _of_scores, _reversed_results),
    _edit("parts joined in another order", "cat concat stack", _of_like_parts, _reversed_parts),
    _edit("angles changed", "cos sin", _any, _first(lambda x: x * 1.125)),
    _edit("temperature", "log_softmax", _any, _first(lambda x: x * 1.125)),
)
