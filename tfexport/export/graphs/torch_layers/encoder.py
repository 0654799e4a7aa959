"""``nn.TransformerEncoder`` and its layer, with the results of torch's fast path.

In eval mode without gradients torch computes them by other code, which takes every value of a mask
that is not zero for masked, and gives zeros at padded positions where it packs rows of unequal
length. An exported graph agrees with what the user's eager code gives.

Axes: B batch, S length, E model width.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tfexport.export.graphs.torch_layers.attention import NAN, merged_bias, multi_head, projections


def is_causal_hint(
    own: Callable[..., Any],
    mask: Tensor | None,
    is_causal: bool | None = None,
    size: int | None = None,
) -> bool:
    """Replaces torch's check whether a mask is causal, which depends on its values.

    A mask that is given is used as it is.
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
    """Replaces ``nn.TransformerEncoderLayer.forward``, which is ``own``."""
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
    """Replaces ``nn.TransformerEncoder.forward``, which is ``own``.

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
