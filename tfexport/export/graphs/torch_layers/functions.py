"""Functions of torch that have another form while exporting."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tfexport.export import torch_names
from tfexport.export.graphs.torch_layers import attention
from tfexport.export.graphs.torch_layers.capture import conditions
from tfexport.export.graphs.torch_layers.recurrent import CELLS, PackedLengths, unlisted
from tfexport.export.graphs.torch_layers.replaced import refusal

# Pooling over axes whose size is not known while exporting: for some of them torch's exporter takes
# the size of the example.


def max_pool1d(
    inputs: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,  # F.max_pool1d_with_indices is another function
) -> Tensor:
    """See ``torch.nn.functional.max_pool1d``; over the last axis of (..., C, L)."""
    stride = stride or kernel_size  # torch takes an empty list for None
    pooled: Tensor = F.max_pool2d(
        inputs.unsqueeze(-2),
        (1, _single(kernel_size)),
        (1, _single(stride)),
        (0, _single(padding)),
        (1, _single(dilation)),
        ceil_mode,
    )
    return pooled.squeeze(-2)


def _single(size: int | Sequence[int]) -> int:
    return size if isinstance(size, int) else size[0]


def adaptive_pool(
    inputs: Tensor, output_size: int | Sequence[int | None], axes: int, maximum: bool
) -> Tensor:
    """Adaptive pooling of the last axes, each of any size.

    Output ``i`` of ``n`` covers the inputs from ``floor(i * size / n)`` to before
    ``ceil((i + 1) * size / n)``. Source: torch.nn.AdaptiveAvgPool2d.

    Args:
        inputs: (..., the pooled axes).
        output_size: the size of each pooled axis, or one size for all; None keeps an axis.
        axes: the number of pooled axes.
        maximum: take the maximum instead of the mean.
    """
    wanted = [output_size] * axes if isinstance(output_size, int) else list(output_size)
    if len(wanted) == 1:
        wanted *= axes
    for axis, count in zip(range(-axes, 0), wanted, strict=True):
        if count is None or count is inputs.size(axis):
            continue
        moved = inputs.movedim(axis, -1)
        if count == 1:
            pooled = moved.amax(-1, True) if maximum else moved.mean(-1, True)
        else:
            pooled = _windows_pooled(moved, count, maximum)
        inputs = pooled.movedim(-1, axis)
    return inputs


def _windows_pooled(inputs: Tensor, count: int, maximum: bool) -> Tensor:
    """Pool the last axis to ``count`` values."""
    size = inputs.size(-1)
    number = torch.arange(count).unsqueeze(1)
    start = number * size // count
    end = ((number + 1) * size + count - 1) // count
    position = torch.arange(size)
    inside = (position >= start) & (position < end)  # (count, size)
    if maximum:
        return inputs.unsqueeze(-2).masked_fill(~inside, -torch.inf).amax(-1)
    share = inside.to(inputs.dtype) / (end - start).to(inputs.dtype)
    return inputs @ share.T


# Complex tensors, of rotary positions for example, are exported as real ones with one more axis of
# size 2. torch's exporter has no form for these views of complex tensors.


def unsqueeze(own: Any, values: Tensor, dim: int) -> Tensor:
    """Replaces ``unsqueeze``; ``own`` is the original."""
    if not values.is_complex():
        result: Tensor = own(values, dim)
        return result
    return torch.view_as_complex(torch.view_as_real(values).unsqueeze(dim if dim >= 0 else dim - 1))


def get_item(own: Any, values: Tensor, index: Any) -> Tensor:
    """Replaces indexing; ``own`` is the original."""
    if not values.is_complex():
        result: Tensor = own(values, index)
        return result
    parts = index if isinstance(index, tuple) else (index,)
    if any(part is Ellipsis for part in parts):
        parts = (*parts, slice(None))
    return torch.view_as_complex(torch.view_as_real(values)[parts])


Form = Callable[..., Any]  # takes the function itself before the function's own arguments


def functions(lengths: PackedLengths) -> Mapping[Any, Form]:
    """Each function's form.

    Args:
        lengths: the lengths of the sequences that are packed during the export.
    """
    forms: dict[Any, Form] = {
        F.scaled_dot_product_attention: _without_own(attention.scaled_dot_product_attention),
        F.multi_head_attention_forward: attention.attention_function,
        F.max_pool1d: _without_own(max_pool1d),
        torch.max_pool1d: _without_own(max_pool1d),
        # None in a torch without them; no function is None.
        torch_names.find(torch_names.PACK): _without_own(lengths.pack),
        torch_names.find(torch_names.UNPACK): _without_own(lengths.unpack),
        torch.as_tensor: unlisted,
        torch.tensor: unlisted,
        **{function: _adaptive(axes, maximum) for function, (axes, maximum) in _ADAPTIVE.items()},
        **dict.fromkeys(_WITH_INDICES, _indices),
        **dict.fromkeys(_DROPOUTS, _dropout),
        torch.dropout: _torch_dropout,
        F.rrelu: _rrelu,
        Tensor.unsqueeze: unsqueeze,
        torch.unsqueeze: unsqueeze,
        Tensor.__getitem__: get_item,
        **dict.fromkeys((torch.triu, torch.tril, Tensor.triu, Tensor.tril), _triangle),
        F.rms_norm: _rms_norm,
        torch.rms_norm: _rms_norm,
        Tensor.squeeze: _squeeze,
        torch.squeeze: _squeeze,
        torch.repeat_interleave: _repeat_interleave,
        Tensor.repeat_interleave: _repeat_interleave,
        torch.isin: _isin,
        F.one_hot: _one_hot,
        **dict.fromkeys((torch.var, torch.std, Tensor.var, Tensor.std), _spread),
        **dict.fromkeys((torch.diff, Tensor.diff), _diff),
        **{cell: _without_own(form) for cell, form in CELLS.items()},
        Tensor.data.__get__: _data,  # type: ignore[attr-defined]
    }
    return {**{function: _every_call(form) for function, form in forms.items()}, **conditions()}


_ADAPTIVE: Mapping[Any, tuple[int, bool]] = {
    F.adaptive_avg_pool1d: (1, False),
    F.adaptive_avg_pool2d: (2, False),
    F.adaptive_avg_pool3d: (3, False),
    F.adaptive_max_pool1d: (1, True),
    F.adaptive_max_pool2d: (2, True),
    F.adaptive_max_pool3d: (3, True),
}
_WITH_INDICES = (
    F.max_pool1d_with_indices,
    F.adaptive_max_pool1d_with_indices,
    F.adaptive_max_pool2d_with_indices,
    F.adaptive_max_pool3d_with_indices,
)
_DROPOUTS = (
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.alpha_dropout,
    F.feature_alpha_dropout,
)


def _one_hot(own: Any, tensor: Tensor, num_classes: int = -1) -> Tensor:
    """Where the number of classes is a size, which torch would take of the example."""
    if isinstance(num_classes, int):
        found: Tensor = own(tensor, num_classes)
        return found
    return (tensor.unsqueeze(-1) == torch.arange(num_classes)).long()


class _OtherCallError(Exception):
    """A function is called with arguments that its form does not know."""


def _every_call(form: Form) -> Form:
    """A form that takes every call that torch takes: what it does not know is torch's own."""

    def call(own: Any, *args: Any, **kwargs: Any) -> Any:
        out = kwargs.get("out")
        try:
            if out is None:
                return form(own, *args, **kwargs)
            others = {name: value for name, value in kwargs.items() if name != "out"}
            result = form(own, *args, **others)
        except _OtherCallError:
            return own(*args, **kwargs)
        if result.shape != out.shape or result.dtype != out.dtype:
            return own(*args, **kwargs)  # which resizes and converts, or refuses
        return out.copy_(result)

    return call


def _without_own(form: Form) -> Form:
    try:
        signature = inspect.signature(form)
    except ValueError:  # one of torch's own, which takes what it takes
        signature = inspect.signature(lambda *args, **kwargs: None)

    def call(own: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise _OtherCallError from error
        return form(*args, **kwargs)

    return call


def _adaptive(axes: int, maximum: bool) -> Form:
    def pool(own: Any, *args: Any, **kwargs: Any) -> Any:
        given = _by_name(("input", "output_size", "return_indices"), args, kwargs)
        inputs, output_size = given["input"], given["output_size"]
        known = all(isinstance(size, int) for size in inputs.shape[-axes:])
        if known and not maximum:
            return own(inputs, output_size)
        return adaptive_pool(inputs, output_size, axes, maximum)

    return pool


def _indices(own: Any, *args: Any, **kwargs: Any) -> Any:
    name = own.__name__.removesuffix("_with_indices")
    raise refusal(f"F.{name}", "return_indices=True", "use the values only")


def _dropout(own: Any, *args: Any, **kwargs: Any) -> Any:
    given = inspect.signature(own).bind(*args, **kwargs)
    given.apply_defaults()
    _refuse_random(f"F.{own.__name__}", given.arguments["training"] and given.arguments["p"])
    return given.arguments["input"]


def _torch_dropout(own: Any, *args: Any, **kwargs: Any) -> Any:
    given = _by_name(("input", "p", "train"), args, kwargs)
    _refuse_random("torch.dropout", given["train"] and given["p"])
    return given["input"]


def _rrelu(own: Any, *args: Any, **kwargs: Any) -> Tensor:
    given = inspect.signature(own).bind(*args, **kwargs)
    given.apply_defaults()
    _refuse_random("F.rrelu", given.arguments["training"])
    slope = (given.arguments["lower"] + given.arguments["upper"]) / 2
    return F.leaky_relu(given.arguments["input"], slope)


def _squeeze(own: Any, *args: Any, **kwargs: Any) -> Tensor:
    """Remove the axes whose size is always 1; a dynamic axis stays."""
    given = _by_name(("input", "dim"), args, kwargs)
    inputs: Tensor = given["input"]
    axes = given.get("dim")
    axes = range(inputs.dim()) if axes is None else axes
    axes = [axes] if isinstance(axes, int) else axes
    known = {axis % inputs.dim() for axis in axes if isinstance(inputs.shape[axis], int)}
    # One at a time: torch's exporter traces a program with several again, to decompose them.
    for axis in sorted(known, reverse=True):
        inputs = own(inputs, axis)
    return inputs


def _triangle(own: Any, *args: Any, **kwargs: Any) -> Tensor:
    """Integers and truth values become int64: onnxruntime 1.18 takes no others."""
    given = dict(_by_name(("input", "diagonal"), args, kwargs))
    inputs: Tensor = given.pop("input")
    if inputs.is_floating_point() or inputs.is_complex():
        result: Tensor = own(inputs, **given)
        return result
    found: Tensor = own(inputs.long(), **given)
    return found.to(inputs.dtype)


def _repeat_interleave(own: Any, *args: Any, **kwargs: Any) -> Tensor:
    """With a number of repeats, which may be a size: torch's form of it fails in onnxruntime."""
    given = dict(_by_name(("input", "repeats", "dim", "output_size"), args, kwargs))
    inputs, repeats = given["input"], given.get("repeats")
    if repeats is None or isinstance(repeats, Tensor):
        result: Tensor = own(*args, **kwargs)
        return result
    if given.get("dim") is None:
        inputs, axis = inputs.flatten(), 0
    else:
        axis = given["dim"] % inputs.dim()
    sizes = [-1] * (inputs.dim() + 1)
    sizes[axis + 1] = repeats
    repeated: Tensor = inputs.unsqueeze(axis + 1).expand(sizes)
    return repeated.flatten(axis, axis + 1)


def _isin(own: Any, *args: Any, **kwargs: Any) -> Tensor:
    """Compare with each element: ONNX has no sorted search."""
    given = _by_name(("elements", "test_elements", "assume_unique", "invert"), args, kwargs)
    elements, wanted = (torch.as_tensor(given[name]) for name in ("elements", "test_elements"))
    found = (elements.unsqueeze(-1) == wanted.flatten()).any(-1)
    return found.logical_not() if given.get("invert") else found


def _spread(own: Any, *args: Any, **kwargs: Any) -> Tensor:
    """``var`` and ``std`` in steps that torch's exporter can use without another trace."""
    given = _by_name(("input", "dim", "unbiased", "keepdim", "correction"), args, kwargs)
    inputs, axes = given["input"], given.get("dim")
    axes = (axes,) if isinstance(axes, int) and not isinstance(axes, bool) else axes
    if not isinstance(axes, tuple | list) or not axes or not inputs.is_floating_point():
        result: Tensor = own(*args, **kwargs)  # of all elements, or of complex numbers
        return result
    less = given.get("correction")
    less = int(given.get("unbiased", True)) if less is None else less
    gap = inputs - inputs.mean(axes, keepdim=True)
    squares = (gap * gap).sum(axes, keepdim=given.get("keepdim", False))
    variance: Tensor = squares / (math.prod(inputs.size(axis) for axis in axes) - less)
    return variance.sqrt() if own.__name__ == "std" else variance


def _diff(own: Any, *args: Any, **kwargs: Any) -> Tensor:
    """In steps that torch's exporter can use without another trace."""
    given = dict(_by_name(("input", "n", "dim", "prepend", "append"), args, kwargs))
    inputs: Tensor = given["input"]
    if given.get("n", 1) != 1 or inputs.dtype == torch.bool:
        result: Tensor = own(*args, **kwargs)
        return result
    axis = given.get("dim", -1)
    ends = (given.get("prepend"), inputs, given.get("append"))
    parts = [each for each in ends if each is not None]
    joined = torch.cat(parts, axis) if len(parts) > 1 else inputs
    count = joined.size(axis) - 1
    return joined.narrow(axis, 1, count) - joined.narrow(axis, 0, count)


def stay_on_cpu(own: Any, layer: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """Replaces ``nn.Module.to``: a layer that a forward makes is where all else is.

    torch cannot move a layer while it traces.
    """
    devices = [*args, *(kwargs[name] for name in kwargs if name == "device")]
    on_cpu = all(str(each).partition(":")[0] == "cpu" for each in devices)
    if on_cpu and not set(kwargs) - {"device", "non_blocking"}:
        return layer
    moved: nn.Module = own(layer, *args, **kwargs)
    return moved


def _data(_own: Any, values: Tensor) -> Tensor:
    """``x.data``: without gradients, as all is while exporting."""
    return values.detach()


def _rms_norm(_own: Any, *args: Any, **kwargs: Any) -> Tensor:
    """RMS norm in steps that torch's exporter can use without another trace."""
    given = _by_name(("input", "normalized_shape", "weight", "eps"), args, kwargs)
    inputs: Tensor = given["input"]
    axes = [-1 - i for i in range(len(given["normalized_shape"]))]
    eps = given.get("eps")
    eps = torch.finfo(inputs.dtype).eps if eps is None else eps
    normed = inputs * torch.rsqrt(inputs.pow(2).mean(axes, keepdim=True) + eps)
    weight = given.get("weight")
    return normed if weight is None else normed * weight


def _refuse_random(name: str, random: Any) -> None:
    if random:
        raise refusal(name, "it is random, in eval mode too", "pass training=self.training")


def _by_name(
    names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The arguments of a builtin function, whose signature Python does not know.

    Raises:
        _OtherCallError: there are more, or others than these.
    """
    if len(args) > len(names) or not set(names).issuperset(kwargs):
        raise _OtherCallError
    return {**dict(zip(names, args, strict=False)), **kwargs}
