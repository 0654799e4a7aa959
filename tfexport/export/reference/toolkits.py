"""The formulas of the toolkits' Transformers, on a checkpoint's own tensors.

``ToolkitReference`` computes what all share; a subclass a toolkit finds its tensors.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from tfexport.export.reference.formulas import ACTIVATIONS, attend, causal
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.config import TransformerConfig

Affine = tuple[Tensor, Tensor | None]  # a matrix (out, in) and a bias


class ToolkitReference(ABC):
    """An encoder and a decoder; a subclass finds the tensors of one toolkit.

    Sublayers are called "self", "cross" and "ff", stacks "encoder" and "decoder".
    """

    title = ""
    no_original: str | None = None

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.config = checkpoint.config
        self.state = {key: tensor.float() for key, tensor in checkpoint.state_dict.items()}

    @abstractmethod
    def embed(self, stack: str, ids: Tensor) -> Tensor:
        """Ids (B, T) to vectors (B, T, E), with positions."""

    @abstractmethod
    def projections(self, stack: str, layer: int, sublayer: str) -> Sequence[Affine]:
        """The projections to queries, keys, values, and of the output of an attention."""

    @abstractmethod
    def feed_forward(self, stack: str, layer: int) -> Sequence[Affine]:
        """The projections up and down; of a gated one the gate, up and down."""

    @abstractmethod
    def norm(self, stack: str, layer: int | None, sublayer: str) -> Affine | None:
        """Scale and shift of a sublayer's norm, or of a stack's last ("last"), if there is one."""

    @abstractmethod
    def output(self) -> Affine:
        """The projection to logits."""

    @torch.no_grad()
    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """See ``Reference``."""
        x = self.embed("encoder", input_ids)
        padding = (attention_mask == 0)[:, None, None, :]
        for i in range(self.config.num_encoder_layers):
            x = self._sublayer("encoder", i, "self", x, None, padding)
            x = self._sublayer("encoder", i, "ff", x)
        return self._normed("encoder", None, "last", x)

    @torch.no_grad()
    def decode(
        self,
        hidden: Tensor,
        attention_mask: Tensor,
        decoder_input_ids: Tensor,
        last_only: bool = False,
    ) -> Tensor:
        """See ``Reference``."""
        x = self.embed("decoder", decoder_input_ids)
        padding = (attention_mask == 0)[:, None, None, :]
        future = causal(x.size(1))
        for i in range(self.config.num_decoder_layers):
            x = self._sublayer("decoder", i, "self", x, None, future)
            x = self._sublayer("decoder", i, "cross", x, hidden, padding)
            x = self._sublayer("decoder", i, "ff", x)
        x = self._normed("decoder", None, "last", x)
        weight, bias = self.output()
        return F.linear(x[:, -1:] if last_only else x, weight, bias)

    def _sublayer(
        self,
        stack: str,
        layer: int,
        name: str,
        x: Tensor,
        memory: Tensor | None = None,
        blocked: Tensor | None = None,
    ) -> Tensor:
        decoder = self.config.decoder.norm_placement
        placement = decoder if stack == "decoder" else self.config.norm_placement
        y = self._normed(stack, layer, name, x) if placement == "pre" else x
        if blocked is None:
            y = self._feed_forward(stack, layer, y)
        else:
            y = self._attention((stack, layer, name), y, y if memory is None else memory, blocked)
        y = self.config.residual_scale * x + y
        return y if placement == "pre" else self._normed(stack, layer, name, y)

    def _attention(
        self, where: tuple[str, int, str], x: Tensor, memory: Tensor, blocked: Tensor
    ) -> Tensor:
        *parts, last = self.projections(*where)
        heads = self.config.num_heads
        heads = self.config.decoder.num_heads if where[0] == "decoder" else heads
        q, k, v = (
            F.linear(given, *part).unflatten(-1, (heads, -1)).transpose(1, 2)
            for given, part in zip((x, memory, memory), parts, strict=True)
        )
        mixed = self.mix(where, q, k, v, blocked)
        return F.linear(mixed.transpose(1, 2).flatten(2), *last)

    def mix(
        self, where: tuple[str, int, str], q: Tensor, k: Tensor, v: Tensor, blocked: Tensor
    ) -> Tensor:
        """An attention of heads, (B, H, T, D); ``where`` are its stack, layer and sublayer."""
        return attend(q, k, v, blocked, self.config.mask_fill)

    def _feed_forward(self, stack: str, layer: int, x: Tensor) -> Tensor:
        *parts, down = self.feed_forward(stack, layer)
        hidden = ACTIVATIONS[self.config.activation](F.linear(x, *parts[0]))
        if len(parts) > 1:
            hidden = hidden * F.linear(x, *parts[1])
        return F.linear(hidden, *down)

    def _normed(self, stack: str, layer: int | None, sublayer: str, x: Tensor) -> Tensor:
        found = self.norm(stack, layer, sublayer)
        if found is None:
            return x
        return self.normalise(x, *found)

    def normalise(self, x: Tensor, scale: Tensor, shift: Tensor | None) -> Tensor:
        """A LayerNorm, or an RMSNorm where that is what the model has."""
        if self.config.norm == "rms":
            root = (x.pow(2).mean(-1, keepdim=True) + self.config.norm_eps).sqrt()
            return scale * x / root
        return F.layer_norm(x, x.shape[-1:], scale, shift, self.config.norm_eps)

    def affine(self, name: str) -> Affine:
        """``name.weight`` and ``name.bias``, if there is one."""
        return self.state[f"{name}.weight"], self.state.get(f"{name}.bias")


def covers_toolkits(config: TransformerConfig) -> bool:
    """Whether the formulas here cover these settings."""
    return (
        config.norm in ("layer", "rms")
        and "res_post" not in (config.norm_placement, config.decoder.norm_placement)
        and config.relative_positions != "buckets"
        and config.scale_scores
        and not (config.share_encoder_layers or config.share_decoder_layers)
        and not config.positions_every_layer
    )
