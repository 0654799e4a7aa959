"""nn.Transformer rebuilt around shared layers, with torch's functions on its own tensors."""

import torch
from torch import Tensor
from torch.nn import functional as F

from tfexport.export.reference.formulas import (
    ACTIVATIONS,
    causal,
    linear,
    packed_projections,
    sinusoids,
)
from tfexport.export.reference.original import Original
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.config import TransformerConfig


class RebuiltReference:
    """One layer applied repeatedly, post-norm; positions are added before each encoder layer."""

    title = "nn.Transformer rebuilt, on torch's own functions"
    no_original: str | None = None

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._config = checkpoint.config
        state = {
            key.removeprefix("transformer."): tensor.float()
            for key, tensor in checkpoint.state_dict.items()
        }
        self._state = packed_projections(state)

    @torch.no_grad()
    def encode(self, inputs: Tensor, attention_mask: Tensor) -> Tensor:
        """See ``Reference``."""
        positions = sinusoids(inputs.size(1), self._config.d_model)
        x = inputs + positions
        for _ in range(self._config.num_encoder_layers):
            x = x + positions
            y = self._attention("encoder.layer.self_attn", x, x, padding=attention_mask == 0)
            x = self._norm("encoder.layer.norm1", x + y)
            x = self._norm("encoder.layer.norm2", x + self._feed_forward("encoder.layer", x))
        return self._norm("encoder.norm", x) if "encoder.norm.weight" in self._state else x

    @torch.no_grad()
    def decode(
        self,
        hidden: Tensor,
        attention_mask: Tensor,
        decoder_inputs: Tensor,
        last_only: bool = False,
    ) -> Tensor:
        """See ``Reference``."""
        x, name = decoder_inputs, "decoder.layer"
        future, padding = causal(x.size(1)), attention_mask == 0
        for _ in range(self._config.num_decoder_layers):
            y = self._attention(f"{name}.self_attn", x, x, mask=future)
            x = self._norm(f"{name}.norm1", x + y)
            y = self._attention(f"{name}.multihead_attn", x, hidden, padding=padding)
            x = self._norm(f"{name}.norm2", x + y)
            x = self._norm(f"{name}.norm3", x + self._feed_forward(name, x))
        x = x[:, -1:] if last_only else x
        return self._norm("decoder.norm", x) if "decoder.norm.weight" in self._state else x

    def _attention(
        self,
        name: str,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        padding: Tensor | None = None,
    ) -> Tensor:
        output, _ = F.multi_head_attention_forward(
            x.transpose(0, 1),
            memory.transpose(0, 1),
            memory.transpose(0, 1),
            self._config.d_model,
            self._config.num_heads,
            self._state[f"{name}.in_proj_weight"],
            self._state.get(f"{name}.in_proj_bias"),
            None,
            None,
            False,
            0.0,
            self._state[f"{name}.out_proj.weight"],
            self._state.get(f"{name}.out_proj.bias"),
            training=False,
            key_padding_mask=padding,
            need_weights=False,
            attn_mask=mask,
        )
        return output.transpose(0, 1)

    def _feed_forward(self, name: str, x: Tensor) -> Tensor:
        hidden = ACTIVATIONS[self._config.activation](linear(self._state, f"{name}.linear1", x))
        return linear(self._state, f"{name}.linear2", hidden)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return F.layer_norm(
            x,
            (self._config.d_model,),
            self._state[f"{name}.weight"],
            self._state.get(f"{name}.bias"),
            self._config.norm_eps,
        )


def is_rebuilt(config: TransformerConfig) -> bool:
    """Whether the written-out form covers these settings."""
    return (
        config.norm == "layer"
        and config.norm_placement == "post"
        and config.positions == "sinusoidal"
        and not config.has_embeddings
        and config.share_encoder_layers
        and config.share_decoder_layers
        and config.positions_every_layer
        and config.mask_fill == float("-inf")
        and config.head_dim * config.num_heads == config.d_model
    )


ORIGINAL = Original(RebuiltReference, is_rebuilt)
