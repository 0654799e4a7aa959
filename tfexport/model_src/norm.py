"""Normalisation over the last axis, in the three forms that checkpoints use."""

import torch
from torch import Tensor, nn


class AnnotatedLayerNorm(nn.Module):
    """weight * (x - mean) / (std + eps) + bias, std unbiased and eps outside the root.

    Not torch.nn.LayerNorm: that one divides by n and adds eps under the root.
    Source: the LayerNorm of The Annotated Transformer (Rush 2018).
    """

    def __init__(self, d_model: int, eps: float = 1e-6, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model)) if bias else None
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """(..., E) to (..., E)."""
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.pow(2).sum(-1, keepdim=True) / (x.size(-1) - 1)
        y = self.weight * centred / (variance.sqrt() + self.eps)
        return y if self.bias is None else y + self.bias


class RMSNorm(nn.Module):
    """weight * x / sqrt(mean(x^2) + eps). Source: Zhang and Sennrich 2019."""

    def __init__(self, d_model: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """(..., E) to (..., E)."""
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))
