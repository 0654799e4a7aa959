"""The two kinds of layer: residual connections, normalisation, and the feed-forward sublayer.

Axes: B batch, T target, S source, P past, H heads, D head size, E model width.
"""

import torch
from torch import Tensor, nn

from tfexport.model_src.attention import Attention


class FeedForward(nn.Module):
    """down(dropout(activation(up(x)))). Source: Vaswani et al. 2017, section 3.3."""

    def __init__(
        self, d_model: int, d_ff: int, activation: nn.Module, bias: bool, dropout: float
    ) -> None:
        super().__init__()
        self.up_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.activation = activation
        self.dropout = nn.Dropout(dropout)
        self.down_proj = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, E) to (B, T, E)."""
        x = self.down_proj(self.dropout(self.activation(self.up_proj(x))))
        return x


class QuickGELU(nn.Module):
    """x * sigmoid(1.702 x). Source: Hendrycks and Gimpel 2016, section 2; Marian-NMT's gelu."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        return x * torch.sigmoid(1.702 * x)


class GatedFeedForward(FeedForward):
    """down(dropout(activation(gate(x)) * up(x))). Source: Shazeer 2020."""

    def __init__(
        self, d_model: int, d_ff: int, activation: nn.Module, bias: bool, dropout: float
    ) -> None:
        super().__init__(d_model, d_ff, activation, bias, dropout)
        self.gate_proj = nn.Linear(d_model, d_ff, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, E) to (B, T, E)."""
        gate = self.activation(self.gate_proj(x))
        x = self.down_proj(self.dropout(gate * self.up_proj(x)))
        return x


class Residual(nn.Module):
    """A residual connection: f reads ``enter(x)``, and ``leave(x, y)`` adds its output y to x.

    x is multiplied by ``scale`` first. Source of the scale: Wang et al. 2022 (DeepNet).
    """

    def __init__(self, norm: nn.Module, dropout: float, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.norm = norm
        self.dropout = nn.Dropout(dropout)

    def enter(self, x: Tensor) -> Tensor:
        """The sublayer's input from the residual stream x: (B, T, E) to (B, T, E)."""
        return x

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the sublayer's output y to the residual stream x, both (B, T, E)."""
        return self.scaled(x) + y

    def scaled(self, x: Tensor) -> Tensor:
        """The residual stream as a sublayer's output is added to it."""
        return x if self.scale == 1.0 else x * self.scale


class PostNormResidual(Residual):
    """norm(x + dropout(f(x))). Source: Vaswani et al. 2017."""

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        """See ``Residual``."""
        x = self.norm(self.scaled(x) + self.dropout(y))
        return x


class PreNormResidual(Residual):
    """x + dropout(f(norm(x))). Source: Xiong et al. 2020."""

    def enter(self, x: Tensor) -> Tensor:
        """See ``Residual``."""
        x = self.norm(x)
        return x

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        """See ``Residual``."""
        x = self.scaled(x) + self.dropout(y)
        return x


class ResPostNormResidual(Residual):
    """x + norm(dropout(f(x))). Source: Liu et al. 2022 (Swin V2), section 3.2."""

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        """See ``Residual``."""
        x = self.scaled(x) + self.norm(self.dropout(y))
        return x


class EncoderLayer(nn.Module):
    """Self-attention, feed-forward."""

    def __init__(
        self,
        self_attn: Attention,
        feed_forward: FeedForward,
        self_attn_residual: Residual,
        feed_forward_residual: Residual,
    ) -> None:
        super().__init__()
        self.self_attn = self_attn
        self.self_attn_residual = self_attn_residual
        self.feed_forward = feed_forward
        self.feed_forward_residual = feed_forward_residual

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """(B, S, E) and a bias that broadcasts to (B, H, S, S), to (B, S, E)."""
        y = self.self_attn_residual.enter(x)
        x = self.self_attn_residual.leave(x, self.self_attn(y, y, y, bias))
        y = self.feed_forward(self.feed_forward_residual.enter(x))
        x = self.feed_forward_residual.leave(x, y)
        return x


class DecoderLayer(nn.Module):
    """Cached self-attention, cross-attention, feed-forward."""

    def __init__(
        self,
        self_attn: Attention,
        cross_attn: Attention,
        feed_forward: FeedForward,
        self_attn_residual: Residual,
        cross_attn_residual: Residual,
        feed_forward_residual: Residual,
    ) -> None:
        super().__init__()
        self.self_attn = self_attn
        self.self_attn_residual = self_attn_residual
        self.cross_attn = cross_attn
        self.cross_attn_residual = cross_attn_residual
        self.feed_forward = feed_forward
        self.feed_forward_residual = feed_forward_residual

    @torch.jit.export
    def project_memory(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Encoder states (B, S, E) to this layer's cross_key and cross_value."""
        return self.cross_attn.project_key_value(hidden, hidden)

    def new_positions(self, x: Tensor) -> int:
        """T, the positions by which (B, T, E) extends a cache."""
        return self.self_attn.new_positions(x)

    def forward_alone(self, x: Tensor, self_bias: Tensor) -> Tensor:
        """Advance without an encoder: queries, keys and values of cross-attention all come from x.

        Args:
            x: (B, T, E).
            self_bias: broadcasts to (B, H, T, T).
        """
        y = self.self_attn_residual.enter(x)
        x = self.self_attn_residual.leave(x, self.self_attn(y, y, y, self_bias))
        y = self.cross_attn_residual.enter(x)
        y = self.cross_attn(y, y, y, torch.zeros(1, device=x.device, dtype=x.dtype))
        x = self.cross_attn_residual.leave(x, y)
        y = self.feed_forward(self.feed_forward_residual.enter(x))
        x = self.feed_forward_residual.leave(x, y)
        return x

    def forward(
        self,
        x: Tensor,
        self_bias: Tensor,
        past_key: Tensor,
        past_value: Tensor,
        cross_key: Tensor,
        cross_value: Tensor,
        cross_bias: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Advance by T positions.

        Args:
            x: (B, T, E).
            self_bias: broadcasts to (B, H, T, P + T).
            past_key: (B, H, P, D); P may be 0.
            past_value: (B, H, P, D).
            cross_key: (B, H, S, D), from ``project_memory``.
            cross_value: (B, H, S, D).
            cross_bias: broadcasts to (B, H, T, S).

        Returns:
            x: (B, T, E).
            present_key, present_value: (B, H, P + T, D).
            weights: the cross-attention weights, (B, H, T, S).
        """
        y = self.self_attn_residual.enter(x)
        y, key, value = self.self_attn.attend_cached(y, past_key, past_value, self_bias)
        x = self.self_attn_residual.leave(x, y)
        y = self.cross_attn_residual.enter(x)
        y, weights = self.cross_attn.attend(y, cross_key, cross_value, cross_bias)
        x = self.cross_attn_residual.leave(x, y)
        y = self.feed_forward(self.feed_forward_residual.enter(x))
        x = self.feed_forward_residual.leave(x, y)
        return x, key, value, weights


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
