"""Residual connections and the two kinds of layer.

Axes: B batch, T target, S source, P past, H heads, D head size, E model width.
"""

import torch
from torch import Tensor, nn

from tfexport.model_src.attention import Attention
from tfexport.model_src.feed_forward import FeedForward


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
            weights: of the cross-attention, (B, H, T, S).
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
