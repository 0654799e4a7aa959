"""The formulas of BART and similar models of Hugging Face, on a checkpoint's own tensors."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from tfexport.errors import ExportError
from tfexport.export.reference.formulas import ACTIVATIONS, attend, causal, linear
from tfexport.export.reference.original import Original
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.checkpoint.layouts import LAYOUTS
from tfexport.model_src.config import TransformerConfig

_EPS = 1e-5


@dataclass(frozen=True)
class Family:
    """Switches of a family, which its class decides.

    Attributes:
        pre: norms are before the sublayers, and after the stacks.
        positions: "learned", "halves" (sines, then cosines) or "t2t" (those of tensor2tensor).
        skipped_rows: the number of unused rows at the start of a learned table.
        embedding_norm: a norm of tokens plus positions.
        small: the decoder's embeddings are not scaled, and normed before positions are added.
    """

    pre: bool
    positions: Literal["learned", "halves", "t2t"]
    skipped_rows: int = 0
    embedding_norm: bool = False
    small: bool = False


FAMILIES: Mapping[str, Family] = {
    "marian": Family(pre=False, positions="halves"),
    "bart": Family(pre=False, positions="learned", skipped_rows=2, embedding_norm=True),
    "plbart": Family(pre=False, positions="learned", skipped_rows=2, embedding_norm=True),
    "mbart": Family(pre=True, positions="learned", skipped_rows=2, embedding_norm=True),
    "m2m-100": Family(pre=True, positions="t2t"),
    "pegasus": Family(pre=True, positions="halves"),
    "blenderbot": Family(pre=True, positions="learned"),
    "blenderbot-small": Family(pre=False, positions="learned", embedding_norm=True, small=True),
    "fsmt": Family(pre=False, positions="t2t"),
}


class BartLikeReference:
    """One of ``FAMILIES``, without a cache."""

    no_original: str | None = None

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.title = f"{LAYOUTS[checkpoint.layout].title} (reference formulas)"
        self._config = checkpoint.config
        if checkpoint.layout not in FAMILIES:
            raise ExportError(f"{checkpoint.name}: no row of {__name__}.FAMILIES is its layout's")
        self._family = FAMILIES[checkpoint.layout]
        tensors, layers = checkpoint.state_dict, "encoder.layers."
        prefix = next((key[: key.index(layers)] for key in tensors if layers in key), "")
        self._state = {key.removeprefix(prefix): tensor.float() for key, tensor in tensors.items()}

    @torch.no_grad()
    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """See ``Reference``."""
        x = self._embed("encoder", input_ids)
        blocked = (attention_mask == 0)[:, None, None, :]
        for i in range(self._config.num_encoder_layers):
            layer, heads = f"encoder.layers.{i}", self._config.num_heads
            x = self._attention(f"{layer}.self_attn", x, None, blocked, heads)
            x = self._feed_forward(layer, x)
        return self._norm("encoder.layer_norm", x) if self._family.pre else x

    @torch.no_grad()
    def decode(
        self,
        hidden: Tensor,
        attention_mask: Tensor,
        decoder_input_ids: Tensor,
        last_only: bool = False,
    ) -> Tensor:
        """See ``Reference``."""
        x = self._embed("decoder", decoder_input_ids)
        padding, future = (attention_mask == 0)[:, None, None, :], causal(x.size(1))
        heads = self._config.decoder_num_heads or self._config.num_heads
        for i in range(self._config.num_decoder_layers):
            layer = f"decoder.layers.{i}"
            x = self._attention(f"{layer}.self_attn", x, None, future, heads)
            x = self._attention(f"{layer}.encoder_attn", x, hidden, padding, heads)
            x = self._feed_forward(layer, x)
        x = self._norm("decoder.layer_norm", x) if self._family.pre else x
        x = x[:, -1:] if last_only else x
        names = ("lm_head", "decoder.output_projection", "shared", "decoder.embed_tokens")
        logits = F.linear(x, self._first(*names, "encoder.embed_tokens"))
        bias = self._state.get("final_logits_bias")
        return logits if bias is None else logits + bias

    def _embed(self, stack: str, ids: Tensor) -> Tensor:
        other = "decoder" if stack == "encoder" else "encoder"
        names = (f"{stack}.embed_tokens", "shared", f"{other}.embed_tokens", "lm_head")
        x = self._first(*names, "decoder.output_projection")[ids]
        small = self._family.small and stack == "decoder"
        if self._config.scale_embeddings and not small:
            x = x * math.sqrt(x.size(-1))
        if small:
            x = self._norm(f"{stack}.layernorm_embedding", x)
        positions = self._positions(stack, ids.size(1), x.size(-1))
        if stack == "decoder" and not self._config.padding_has_position:
            positions = positions * ids.ne(self._config.pad_id or 0)[..., None]
        x = x + positions
        if self._family.embedding_norm and not small:
            x = self._norm(f"{stack}.layernorm_embedding", x)
        return x

    def _positions(self, stack: str, length: int, width: int) -> Tensor:
        saved = self._state.get(f"{stack}.embed_positions.weight")
        first = self._family.skipped_rows
        if self._family.positions == "t2t":
            first = self._config.first_position
        if saved is not None:
            return saved[first : first + length]
        half = self._family.positions == "halves"
        return halves(length, width) if half else tensor2tensor(first, length, width)

    def _first(self, *names: str) -> Tensor:
        """The first of several names of a tied table that the file has."""
        return next(self._state[key] for name in names if (key := f"{name}.weight") in self._state)

    def _attention(
        self, name: str, x: Tensor, memory: Tensor | None, blocked: Tensor, heads: int
    ) -> Tensor:
        norm = f"{name}_layer_norm"
        y = self._norm(norm, x) if self._family.pre else x
        memory = y if memory is None else memory
        q, k, v = (
            linear(self._state, f"{name}.{part}_proj", source)
            .unflatten(-1, (heads, -1))
            .transpose(1, 2)
            for part, source in (("q", y), ("k", memory), ("v", memory))
        )
        mixed = attend(q, k, v, blocked, self._config.mask_fill).transpose(1, 2).flatten(2)
        y = x + linear(self._state, f"{name}.out_proj", mixed)
        return y if self._family.pre else self._norm(norm, y)

    def _feed_forward(self, layer: str, x: Tensor) -> Tensor:
        norm = f"{layer}.final_layer_norm"
        y = self._norm(norm, x) if self._family.pre else x
        hidden = ACTIVATIONS[self._config.activation](linear(self._state, f"{layer}.fc1", y))
        y = x + linear(self._state, f"{layer}.fc2", hidden)
        return y if self._family.pre else self._norm(norm, y)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        scale, shift = self._state[f"{name}.weight"], self._state[f"{name}.bias"]
        return F.layer_norm(x, x.shape[-1:], scale, shift, _EPS)


def halves(length: int, width: int) -> Tensor:
    """(T, E): sin(p / 10000^(2j / E)) for all j in the first half, their cosines in the second."""
    position = torch.arange(length, dtype=torch.float64)[:, None]
    column = torch.arange(width, dtype=torch.float64)
    half = (width + 1) // 2
    angle = position / 10000.0 ** (2 * torch.where(column < half, column, column - half) / width)
    return torch.where(column < half, angle.sin(), angle.cos()).float()


def tensor2tensor(first: int, length: int, width: int) -> Tensor:
    """(T, E): sin(p * f^j), then cos, f = 10000^(-1 / (E // 2 - 1)), p from ``first`` on; 0 last.

    The frequencies are of float32, as in every implementation.
    """
    half = width // 2
    frequency = (torch.arange(half).float() * -(math.log(10000) / (half - 1))).exp()
    angle = (first + torch.arange(length)).float()[:, None] * frequency
    zeros = torch.zeros(length, width - 2 * half)
    return torch.cat([angle.sin(), angle.cos(), zeros], dim=-1)


def is_bart_like(config: TransformerConfig) -> bool:
    """Whether the formulas cover these settings; the class fixes the others."""
    return (
        not (config.share_encoder_layers or config.share_decoder_layers)
        and not config.positions_every_layer
        and config.relative_positions == "none"
        and config.scale_scores
        and config.residual_scale == 1
    )


ORIGINAL = Original(BartLikeReference, is_bart_like)
