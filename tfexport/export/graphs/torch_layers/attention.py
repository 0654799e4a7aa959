"""Attention of torch and the layers of ``nn.TransformerEncoder``, in forms that its exporter keeps.

Axes: B batch, L target length, S source length, H heads, D head size, E model width.
"""

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tfexport.export.graphs.torch_layers.replaced import refusal


def attend(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, empty: float
) -> tuple[Tensor, Tensor]:
    """Attention of queries that are scaled already.

    Args:
        query: (..., L, D).
        key: (..., S, D).
        value: (..., S, D).
        bias: added to the scores, -inf where a key is masked; broadcasts to (..., L, S).
        empty: the result where all keys are masked. onnxruntime's Softmax gives their mean there,
            torch NaN or 0.

    Returns:
        context: (..., L, D).
        weights: (..., L, S).
    """
    scores = query @ key.transpose(-2, -1)
    if bias is None:
        weights = scores.softmax(-1)
        return weights @ value, weights
    weights = (scores + bias).softmax(-1)
    masked = bias.amax(-1, keepdim=True) == -math.inf
    return torch.where(masked, empty, weights @ value), torch.where(masked, empty, weights)


def as_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Zeros, and -inf where a boolean mask is True."""
    return torch.zeros((), dtype=dtype).masked_fill(mask, -math.inf)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """See ``torch.nn.functional.scaled_dot_product_attention``.

    Raises:
        ExportError: it drops weights at random.
    """
    if dropout_p:
        raise refusal(
            "F.scaled_dot_product_attention",
            f"dropout_p={dropout_p} drops weights at random, in eval mode too",
            "pass self.dropout if self.training else 0.0",
        )
    if is_causal and attn_mask is not None:
        raise refusal(
            "F.scaled_dot_product_attention",
            "attn_mask and is_causal are both given, which torch refuses",
            "put the causal mask into attn_mask",
        )
    bias = None
    if is_causal:  # aligned with the first key, as in torch, for every S
        visible = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool).tril()
        bias = as_bias(~visible, query.dtype)
    elif attn_mask is not None:
        bias = as_bias(~attn_mask, query.dtype) if attn_mask.dtype == torch.bool else attn_mask
    factor = 1.0 / math.sqrt(query.size(-1)) if scale is None else scale
    query = query * factor
    groups = query.size(-3) // key.size(-3) if enable_gqa else 1
    if groups == 1:
        return attend(query, key, value, bias, 0.0)[0]
    # (..., H, L, D) to (..., S's heads, groups, L, D): keys are not copied for each query head.
    query = query.unflatten(-3, (key.size(-3), groups))
    if bias is not None and bias.dim() > 2:
        shared = bias.size(-3) == 1
        bias = bias.unsqueeze(-3) if shared else bias.unflatten(-3, (key.size(-3), groups))
    context, _ = attend(query, key.unsqueeze(-3), value.unsqueeze(-3), bias, 0.0)
    return context.flatten(-4, -3)


# Packed weights are split before exporting: torch's exporter would split them at every run.


_WEIGHTS = ("onnx_q_weight", "onnx_k_weight", "onnx_v_weight")
_BIASES = ("onnx_q_bias", "onnx_k_bias", "onnx_v_bias")


@contextlib.contextmanager
def split_weights(module: nn.Module) -> Iterator[None]:
    """Give each ``nn.MultiheadAttention`` the thirds of its weights as buffers, inside the block.

    Args:
        module: the module.
    """
    layers = [part for part in module.modules() if isinstance(part, nn.MultiheadAttention)]
    try:
        for layer in layers:
            _add(layer, _WEIGHTS, layer.in_proj_weight)
            _add(layer, _BIASES, layer.in_proj_bias)
        yield
    finally:
        for layer in layers:
            for name in _WEIGHTS + _BIASES:
                layer._buffers.pop(name, None)
                layer._non_persistent_buffers_set.discard(name)


def _add(layer: nn.Module, names: tuple[str, ...], packed: Tensor | None) -> None:
    if packed is None:
        return
    for name, third in zip(names, packed.detach().chunk(3), strict=True):
        layer.register_buffer(name, third.clone(), persistent=False)


def split_projections(layer: nn.Module) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]] | None:
    """Weights and biases of queries, keys and values; None outside of ``split_weights``.

    Args:
        layer: an ``nn.MultiheadAttention`` with packed weights; there are no biases if it has none.
    """
    if _WEIGHTS[0] not in layer._buffers:
        return None
    weights, biases = (
        tuple(found for name in names if (found := layer._buffers.get(name)) is not None)
        for names in (_WEIGHTS, _BIASES)
    )
    return weights, biases


# In eval mode without gradients torch computes self-attention by other code, its fast path. That
# differs in rows whose keys are all masked: it gives NaN, where the other code gives 0 if no
# weights are asked for. The layers here give the results of the fast path where eager code takes
# it.
#
# Axes: B batch, L target length, S source length, H heads, D head size, E model width.


NAN = float("nan")
_FUNCTION = "F.multi_head_attention_forward"
Inputs = tuple[Tensor, Tensor, Tensor]  # query, key, value
Split = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Projections:
    """The weights of one attention.

    Attributes:
        num_heads: H.
        weights: of queries, keys and values, each (E, width of its input); or one (3 * E, E) of
            all three.
        bias: the biases of queries, keys and values, (3 * E,); None without.
        out_weight: (E, E).
        out_bias: (E,) or None.
        bias_k: (1, 1, E), one more key for all rows; None without.
        bias_v: the value of ``bias_k``.
        add_zero_attn: add one key and value of zeros.
        split: ``weights`` and ``bias`` in thirds, where they are weights of the graph.
    """

    num_heads: int
    weights: tuple[Tensor, ...]
    bias: Tensor | None
    out_weight: Tensor
    out_bias: Tensor | None
    bias_k: Tensor | None = None
    bias_v: Tensor | None = None
    add_zero_attn: bool = False
    split: Split | None = None


def projections(layer: nn.MultiheadAttention) -> Projections:
    """The weights of a module."""
    if layer.in_proj_weight is not None:
        weights: tuple[Tensor, ...] = (layer.in_proj_weight,)
    else:
        weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    return Projections(
        layer.num_heads,
        weights,
        layer.in_proj_bias,
        layer.out_proj.weight,
        layer.out_proj.bias,
        layer.bias_k,
        layer.bias_v,
        layer.add_zero_attn,
        split_projections(layer),
    )


def _projected(parts: Projections, inputs: Inputs) -> tuple[Tensor, ...]:
    """Queries, keys and values, each (B, length, E)."""
    query, key, value = inputs
    if len(parts.weights) == 1 and query is key and key is value:
        return F.linear(query, parts.weights[0], parts.bias).chunk(3, -1)
    if parts.split is not None:
        weights, biases = parts.split
    else:
        weights = parts.weights if len(parts.weights) == 3 else parts.weights[0].chunk(3)
        biases = () if parts.bias is None else parts.bias.chunk(3)
    return tuple(
        F.linear(x, weight, bias)
        for x, weight, bias in zip(inputs, weights, biases or (None,) * 3, strict=True)
    )


def multi_head(
    parts: Projections,
    inputs: Inputs,
    bias: Tensor | None,
    empty: float,
) -> tuple[Tensor, Tensor]:
    """Attention with its projections.

    Args:
        parts: the weights.
        inputs: query (B, L, width), key and value (B, S, width).
        bias: added to the scores; broadcasts to (B, H, L, S).
        empty: the context where all keys are masked.

    Returns:
        output: (B, L, E).
        weights: (B, H, L, S).
    """
    query, key, value = _projected(parts, inputs)
    if parts.bias_k is not None and parts.bias_v is not None:
        batch = key.size(0)
        key = torch.cat([key, parts.bias_k.expand(batch, -1, -1)], 1)
        value = torch.cat([value, parts.bias_v.expand(batch, -1, -1)], 1)
        bias = None if bias is None else F.pad(bias, (0, 1))
    if parts.add_zero_attn:
        key, value = F.pad(key, (0, 0, 0, 1)), F.pad(value, (0, 0, 0, 1))
        bias = None if bias is None else F.pad(bias, (0, 1))
    heads = [x.unflatten(-1, (parts.num_heads, -1)).transpose(1, 2) for x in (query, key, value)]
    scale = 1.0 / math.sqrt(heads[0].size(-1))
    context, weights = attend(heads[0] * scale, heads[1], heads[2], bias, empty)
    return F.linear(context.transpose(1, 2).flatten(2), parts.out_weight, parts.out_bias), weights


def merged_bias(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, num_heads: int, dtype: torch.dtype
) -> Tensor | None:
    """Both masks as one bias that broadcasts to (B, H, L, S).

    Args:
        attn_mask: (L, S) or (B * H, L, S), boolean (True is masked) or added to the scores.
        key_padding_mask: (B, S), as ``attn_mask``.
        num_heads: H.
        dtype: the dtype of the scores.
    """
    bias = None
    if attn_mask is not None:
        bias = as_bias(attn_mask, dtype) if attn_mask.dtype == torch.bool else attn_mask
        if bias.dim() == 3:
            bias = bias.unflatten(0, (-1, num_heads))
    if key_padding_mask is None:
        return bias
    padding = key_padding_mask
    padding = as_bias(padding, dtype) if padding.dtype == torch.bool else padding
    padding = padding[:, None, None]
    return padding if bias is None else bias + padding


@dataclass(frozen=True)
class AttentionCall:
    """How one attention is called.

    Attributes:
        attn_mask: see ``merged_bias``.
        key_padding_mask: see ``merged_bias``.
        need_weights: whether to return the weights.
        average_attn_weights: whether to return the mean over the heads.
        is_causal: a hint that ``attn_mask`` is causal.
    """

    attn_mask: Tensor | None
    key_padding_mask: Tensor | None
    need_weights: bool
    average_attn_weights: bool
    is_causal: bool


def attention_module(
    own: Callable[..., Any], layer: nn.MultiheadAttention, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Replaces ``nn.MultiheadAttention.forward``; ``own`` is the original."""
    given = inspect.signature(own).bind(layer, *args, **kwargs)
    given.apply_defaults()
    inputs = (given.arguments["query"], given.arguments["key"], given.arguments["value"])
    call = _call(given.arguments)
    fast = takes_fast_path(layer, inputs, call)
    dropout = layer.dropout if layer.training else 0.0
    turned = not layer.batch_first and inputs[0].dim() == 3
    return _attention(projections(layer), inputs, call, _Eager(fast, dropout, turned))


def attention_function(
    own: Callable[..., Any], *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Replaces ``torch.nn.functional.multi_head_attention_forward``; ``own`` is the original."""
    bound = inspect.signature(own).bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    if given["static_k"] is not None or given["static_v"] is not None:
        raise refusal(_FUNCTION, "static_k and static_v", "pass key and value")
    inputs = (given["query"], given["key"], given["value"])
    weights: tuple[Tensor, ...]
    if given["use_separate_proj_weight"]:
        weights = (given["q_proj_weight"], given["k_proj_weight"], given["v_proj_weight"])
    else:
        weights = (given["in_proj_weight"],)
    parts = Projections(
        given["num_heads"],
        weights,
        given["in_proj_bias"],
        given["out_proj_weight"],
        given["out_proj_bias"],
        given["bias_k"],
        given["bias_v"],
        given["add_zero_attn"],
    )
    dropout = given["dropout_p"] if given["training"] else 0.0
    return _attention(parts, inputs, _call(given), _Eager(False, dropout, inputs[0].dim() == 3))


def _call(given: Mapping[str, Any]) -> AttentionCall:
    return AttentionCall(*(given[field.name] for field in fields(AttentionCall)))


def takes_fast_path(layer: nn.MultiheadAttention, inputs: Inputs, call: AttentionCall) -> bool:
    """Whether eager code without gradients computes a module on torch's fast path.

    Its conditions are those of ``nn.MultiheadAttention.forward``.
    """
    query, key, value = inputs
    masks = (call.attn_mask, call.key_padding_mask)
    return (
        torch.backends.mha.get_fastpath_enabled()
        and query.dim() == 3
        and query is key
        and key is value
        and not layer.training
        and layer.in_proj_weight is not None
        and layer.in_proj_bias is not None
        and layer.num_heads % 2 == 0
        and layer.batch_first
        and layer.bias_k is None
        and not layer.add_zero_attn
        and not any(mask is not None and mask.is_floating_point() for mask in masks)
    )


@dataclass(frozen=True)
class _Eager:
    """How torch computes a call: on its fast path, with dropout, time first."""

    fast: bool
    dropout: float
    time_first: bool


def _each_once(change: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """Change the inputs, and keep what is one tensor one tensor."""
    changed = {key: change(x) for key, x in {id(x): x for x in inputs}.items()}
    query, key, value = inputs
    return changed[id(query)], changed[id(key)], changed[id(value)]


def _attention(
    parts: Projections, inputs: Inputs, call: AttentionCall, eager: _Eager
) -> tuple[Tensor, Tensor | None]:
    if eager.dropout:
        raise refusal(_FUNCTION, "it drops weights at random", "call .eval() first")
    query, key, value = inputs
    batched = query.dim() == 3
    padding, mask = call.key_padding_mask, call.attn_mask
    if not batched:
        query, key, value = _each_once(lambda x: x.unsqueeze(0), inputs)
        padding = None if padding is None else padding.unsqueeze(0)
    elif eager.time_first:
        query, key, value = _each_once(lambda x: x.transpose(0, 1), inputs)
    if call.is_causal and not eager.fast:
        if mask is None:
            raise refusal(_FUNCTION, "is_causal=True without attn_mask", "pass the causal mask")
        if padding is None and not call.need_weights:
            if parts.bias_k is not None or parts.add_zero_attn:
                raise refusal(
                    _FUNCTION,
                    "is_causal=True with add_bias_kv or add_zero_attn",
                    "omit is_causal: attn_mask is enough",
                )
            # torch takes the hint and drops the mask.
            mask = ~torch.ones(query.size(1), key.size(1), dtype=torch.bool).tril()
    bias = merged_bias(mask, padding, parts.num_heads, query.dtype)
    empty = NAN if eager.fast or call.need_weights else 0.0
    output, weights = multi_head(parts, (query, key, value), bias, empty)
    if not batched:
        output = output.squeeze(0)
    elif eager.time_first:
        output = output.transpose(0, 1)
    if not call.need_weights:
        return output, None
    weights = weights.mean(1) if call.average_attn_weights else weights
    return output, weights if batched else weights.squeeze(0)


# ``nn.TransformerEncoder`` and its layer have a fast path too. It takes every value of a mask that
# is not zero for masked, and gives zeros at padded positions where it packs rows of unequal length.
# An exported graph agrees with the user's eager code.


def is_causal_hint(
    own: Callable[..., Any],
    mask: Tensor | None,
    is_causal: bool | None = None,
    size: int | None = None,
) -> bool:
    """Replaces torch's check whether a mask is causal, which depends on its values.

    A given mask is used unchanged.
    """
    return is_causal is True


def encoder_layer(
    own: Callable[..., Any],
    layer: nn.TransformerEncoderLayer,
    src: Tensor,
    src_mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Replaces ``nn.TransformerEncoderLayer.forward``; ``own`` is the original."""
    if not _takes_fast_path(layer, src):
        result: Tensor = own(layer, src, src_mask, src_key_padding_mask, is_causal)
        return result
    padding, mask = (
        None if given is None else _nonzero(given) for given in (src_key_padding_mask, src_mask)
    )
    bias = merged_bias(mask, padding, layer.self_attn.num_heads, src.dtype)

    def attended(x: Tensor) -> Tensor:
        return multi_head(projections(layer.self_attn), (x, x, x), bias, NAN)[0]

    def fed_forward(x: Tensor) -> Tensor:
        hidden = layer.linear1(x)
        # The fast path knows one kind of GELU.
        hidden = F.gelu(hidden) if layer.activation_relu_or_gelu == 2 else F.relu(hidden)
        output: Tensor = layer.linear2(hidden)
        return output

    if layer.norm_first:
        src = src + attended(layer.norm1(src))
        return src + fed_forward(layer.norm2(src))
    src = layer.norm1(src + attended(src))
    result = layer.norm2(src + fed_forward(src))
    return result


def _nonzero(mask: Tensor) -> Tensor:
    return mask if mask.dtype == torch.bool else mask != 0


def _takes_fast_path(layer: nn.TransformerEncoderLayer, src: Tensor) -> bool:
    """The conditions of ``nn.TransformerEncoderLayer.forward``."""
    attention = layer.self_attn
    return (
        torch.backends.mha.get_fastpath_enabled()
        and src.dim() == 3
        and not layer.training
        and attention.batch_first
        and attention.in_proj_bias is not None
        and attention._qkv_same_embed_dim
        and layer.activation_relu_or_gelu != 0
        and layer.norm1.eps == layer.norm2.eps
        and attention.num_heads % 2 == 0
        and not any(part._forward_hooks or part._forward_pre_hooks for part in layer.modules())
    )


def encoder(
    own: Callable[..., Any],
    stack: nn.TransformerEncoder,
    src: Tensor,
    mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool | None = None,
) -> Tensor:
    """Replaces ``nn.TransformerEncoder.forward``; ``own`` is the original.

    Where torch packs the rows without their padding, the padded positions are zeros before the
    last norm. It does so only if every row is padded on the right, which is decided as the graph
    runs.
    """
    if src_key_padding_mask is None or not _packs_rows(stack, src, mask):
        output: Tensor = own(stack, src, mask, src_key_padding_mask, is_causal)
        return output
    padding = _nonzero(src_key_padding_mask)
    if not stack.mask_check:  # torch keeps as many positions as are valid, from the left
        valid = (~padding).sum(-1, keepdim=True)
        padding = torch.arange(src.size(1)) >= valid
    # True after a padded position: all later ones are padded too, if the padding is on the right.
    padded_since = padding.cumsum(-1).gt(0)
    on_the_right = padded_since.eq(padding).all()
    output = src
    for layer in stack.layers:
        output = layer(output, src_key_padding_mask=padding)
    output = output.masked_fill((padding & on_the_right).unsqueeze(-1), 0.0)
    return output if stack.norm is None else stack.norm(output)


def _packs_rows(stack: nn.TransformerEncoder, src: Tensor, mask: Tensor | None) -> bool:
    """Whether torch removes the padding; its conditions are those of the forward."""
    return (
        torch.backends.mha.get_fastpath_enabled()
        and stack.use_nested_tensor
        and not stack.layers[0].training
        and src.dim() == 3
        and mask is None
    )
