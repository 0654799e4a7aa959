"""The formulas of the Annotated Transformer, on a checkpoint's own tensors."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from tfexport.export.reference.formulas import ACTIVATIONS, attend, causal, linear, sinusoids
from tfexport.export.reference.original import Original
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.config import TransformerConfig


class AnnotatedReference:
    """Residuals are ``pre``, as in the notebook, or ``res_post``, as in the walkthrough."""

    title = "The Annotated Transformer (reference formulas)"
    no_original: str | None = None

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._config = checkpoint.config
        self._state = {key: tensor.float() for key, tensor in checkpoint.state_dict.items()}

    @torch.no_grad()
    def encode(self, inputs: Tensor, attention_mask: Tensor) -> Tensor:
        """See ``Reference``."""
        x = self._embed("src", inputs)
        blocked = (attention_mask == 0)[:, None, None, :]
        for i in range(self._config.num_encoder_layers):
            layer = f"encoder.layers.{i}"
            x = self._residual(f"{layer}.sublayer.0", x, f"{layer}.self_attn", None, blocked)
            x = self._residual(f"{layer}.sublayer.1", x, f"{layer}.feed_forward")
        return self._norm("encoder.norm", x) if "encoder.norm.a_2" in self._state else x

    @torch.no_grad()
    def decode(
        self,
        hidden: Tensor,
        attention_mask: Tensor,
        decoder_inputs: Tensor,
        last_only: bool = False,
    ) -> Tensor:
        """See ``Reference``."""
        x = self._embed("tgt", decoder_inputs)
        padding = (attention_mask == 0)[:, None, None, :]
        future = causal(x.size(1))
        for i in range(self._config.num_decoder_layers):
            layer = f"decoder.layers.{i}"
            x = self._residual(f"{layer}.sublayer.0", x, f"{layer}.self_attn", None, future)
            x = self._residual(f"{layer}.sublayer.1", x, f"{layer}.src_attn", hidden, padding)
            x = self._residual(f"{layer}.sublayer.2", x, f"{layer}.feed_forward")
        if "decoder.norm.a_2" in self._state:
            x = self._norm("decoder.norm", x)
        x = x[:, -1:] if last_only else x
        weight = self._state.get("generator.proj.weight")
        weight = self._table("tgt") if weight is None else weight
        return F.linear(x, weight, self._state.get("generator.proj.bias"))

    def _embed(self, side: str, ids: Tensor) -> Tensor:
        scale = math.sqrt(self._config.d_model) if self._config.scale_embeddings else 1
        x = self._table(side)[ids] * scale
        if self._config.positions == "none":
            return x
        positions = self._state.get(f"{side}_embed.1.pe")
        if positions is None:
            positions = sinusoids(ids.size(1), self._config.d_model)
        return x + positions.reshape(-1, self._config.d_model)[: ids.size(1)]

    def _table(self, side: str) -> Tensor:
        """One side's embedding table, or the other side's if the file holds one for both."""
        other = {"src": "tgt", "tgt": "src"}[side]
        table = self._state.get(f"{side}_embed.0.lut.weight")
        return self._state[f"{other}_embed.0.lut.weight"] if table is None else table

    def _residual(
        self,
        name: str,
        x: Tensor,
        sublayer: str,
        memory: Tensor | None = None,
        blocked: Tensor | None = None,
    ) -> Tensor:
        pre = self._config.norm_placement == "pre"
        y = self._norm(f"{name}.norm", x) if pre else x
        if blocked is None:
            hidden = ACTIVATIONS[self._config.activation](linear(self._state, f"{sublayer}.w_1", y))
            y = linear(self._state, f"{sublayer}.w_2", hidden)
        else:
            y = self._attention(sublayer, y, y if memory is None else memory, blocked)
        return x + (y if pre else self._norm(f"{name}.norm", y))

    def _attention(self, name: str, x: Tensor, memory: Tensor, blocked: Tensor) -> Tensor:
        q, k, v = (
            linear(self._state, f"{name}.linears.{i}", source)
            .unflatten(-1, (self._config.num_heads, -1))
            .transpose(1, 2)
            for i, source in enumerate((x, memory, memory))
        )
        mixed = attend(q, k, v, blocked, self._config.mask_fill).transpose(1, 2).flatten(2)
        return linear(self._state, f"{name}.linears.3", mixed)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        scale, shift = self._state[f"{name}.a_2"], self._state[f"{name}.b_2"]
        deviation = x.std(-1, keepdim=True)  # unbiased
        return scale * (x - x.mean(-1, keepdim=True)) / (deviation + self._config.norm_eps) + shift


def is_annotated(config: TransformerConfig) -> bool:
    """Whether the formulas cover these settings."""
    return (
        config.norm == "annotated"
        and config.norm_placement in ("pre", "res_post")
        and config.norm_bias
        and not (config.share_encoder_layers or config.share_decoder_layers)
        and not config.positions_every_layer
    )


ORIGINAL = Original(AnnotatedReference, is_annotated)
