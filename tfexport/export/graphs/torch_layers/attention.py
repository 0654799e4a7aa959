"""Attention of torch.nn and torch.nn.functional, in operators that keep every axis dynamic.

Axes: B batch, L target length, S source length, H heads, D head size, E model width.
"""

import math

import torch
from torch import Tensor

from tfexport.export.graphs.torch_layers.refusal import refusal


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
    if is_causal:  # aligned with the first key, as in torch, whatever S is
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
