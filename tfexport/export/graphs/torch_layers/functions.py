"""Functions of torch that have another form while exporting."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tfexport.export.graphs.torch_layers import attention, complex_numbers, multi_head, pooling
from tfexport.export.graphs.torch_layers.conditions import conditions
from tfexport.export.graphs.torch_layers.packed import PackedLengths, unlisted
from tfexport.export.graphs.torch_layers.refusal import refusal

Form = Callable[..., Any]  # takes the function itself before the function's own arguments


def functions(lengths: PackedLengths) -> Mapping[Any, Form]:
    """Each function's form.

    Args:
        lengths: of the sequences that are packed while exporting.
    """
    return {
        F.scaled_dot_product_attention: _without_own(attention.scaled_dot_product_attention),
        F.multi_head_attention_forward: multi_head.attention_function,
        F.max_pool1d: _without_own(pooling.max_pool1d),
        torch.max_pool1d: _without_own(pooling.max_pool1d),
        torch._C._VariableFunctions._pack_padded_sequence: _without_own(lengths.pack),
        torch._C._VariableFunctions._pad_packed_sequence: _without_own(lengths.unpack),
        torch.as_tensor: unlisted,
        torch.tensor: unlisted,
        **{function: _adaptive(axes, maximum) for function, (axes, maximum) in _ADAPTIVE.items()},
        **dict.fromkeys(_WITH_INDICES, _indices),
        **dict.fromkeys(_DROPOUTS, _dropout),
        torch.dropout: _torch_dropout,
        F.rrelu: _rrelu,
        Tensor.unsqueeze: complex_numbers.unsqueeze,
        torch.unsqueeze: complex_numbers.unsqueeze,
        Tensor.__getitem__: complex_numbers.get_item,
        **dict.fromkeys((torch.triu, torch.tril, Tensor.triu, Tensor.tril), _triangle),
        F.rms_norm: _rms_norm,
        torch.rms_norm: _rms_norm,
        Tensor.squeeze: _squeeze,
        torch.squeeze: _squeeze,
        torch.repeat_interleave: _repeat_interleave,
        Tensor.repeat_interleave: _repeat_interleave,
        torch.isin: _isin,
        Tensor.data.__get__: _data,  # type: ignore[attr-defined]
        **conditions(),
    }


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


def _without_own(form: Form) -> Form:
    def call(own: Any, *args: Any, **kwargs: Any) -> Any:
        return form(*args, **kwargs)

    return call


def _adaptive(axes: int, maximum: bool) -> Form:
    def pool(own: Any, *args: Any, **kwargs: Any) -> Any:
        given = _by_name(("input", "output_size"), args, kwargs)
        inputs, output_size = given["input"], given["output_size"]
        known = all(isinstance(size, int) for size in inputs.shape[-axes:])
        if known and not maximum:
            return own(inputs, output_size)
        return pooling.adaptive_pool(inputs, output_size, axes, maximum)

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
    """Without the axes whose size is 1 by design; a dynamic axis stays, whatever its size is."""
    given = _by_name(("input", "dim"), args, kwargs)
    inputs: Tensor = given["input"]
    axes = given.get("dim", range(inputs.dim()))
    axes = [axes] if isinstance(axes, int) else axes
    known = {axis % inputs.dim() for axis in axes if isinstance(inputs.shape[axis], int)}
    # One at a time: torch's exporter traces a program with several again, to decompose them.
    for axis in sorted(known, reverse=True):
        inputs = own(inputs, axis)
    return inputs


def _triangle(own: Any, *args: Any, **kwargs: Any) -> Tensor:
    """Of int64 in place of other integers and truth values: onnxruntime 1.18 has no others."""
    given = dict(_by_name(("input", "diagonal"), args, kwargs))
    inputs: Tensor = given.pop("input")
    if inputs.is_floating_point() or inputs.is_complex():
        result: Tensor = own(inputs, **given)
        return result
    found: Tensor = own(inputs.long(), **given)
    return found.to(inputs.dtype)


def _repeat_interleave(own: Any, *args: Any, **kwargs: Any) -> Tensor:
    """With a number of repeats, which may be a size: torch's form of it fails in onnxruntime."""
    given = dict(_by_name(("input", "repeats", "dim"), args, kwargs))
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
    """By comparing with each: ONNX has no sorted search."""
    given = _by_name(("elements", "test_elements"), args, kwargs)
    elements, wanted = (torch.as_tensor(given[name]) for name in ("elements", "test_elements"))
    found = (elements.unsqueeze(-1) == wanted.flatten()).any(-1)
    return found.logical_not() if given.get("invert") else found


def _data(_own: Any, values: Tensor) -> Tensor:
    """``x.data``: without gradients, as all is while exporting."""
    return values.detach()


def _rms_norm(_own: Any, *args: Any, **kwargs: Any) -> Tensor:
    """As torch computes it, written out: its exporter would trace the program again to do so."""
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
    """The arguments of a builtin function, whose signature Python does not know."""
    return {**dict(zip(names, args, strict=False)), **kwargs}
