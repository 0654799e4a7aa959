"""The formulas of the RMSNorm Transformer on a checkpoint's own tensors, head by head."""

import torch
from torch import Tensor

from tfexport.export.reference.formulas import ACTIVATIONS, attend, causal, linear, sinusoids
from tfexport.export.reference.original import Original
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.config import TransformerConfig


class RMSNormReference:
    """Post-norm, no attention or feed-forward biases, no final norms."""

    title = "the RMSNorm Transformer (reference formulas)"
    no_original: str | None = None

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._config = checkpoint.config
        self._state = {key: tensor.float() for key, tensor in checkpoint.state_dict.items()}

    @torch.no_grad()
    def encode(self, inputs: Tensor, attention_mask: Tensor) -> Tensor:
        """See ``Reference``."""
        x = self._embed("input", inputs)
        padding = (attention_mask == 0)[:, None, :]
        for i in range(self._config.num_encoder_layers):
            block = f"encoder_blocks.{i}"
            y = self._attention(f"{block}.multi_head_attention", x, x, padding)
            x = self._norm(f"{block}.rms_norm1", x + y)
            x = self._norm(f"{block}.rms_norm2", x + self._feed_forward(block, x))
        return x

    @torch.no_grad()
    def decode(
        self,
        hidden: Tensor,
        attention_mask: Tensor,
        decoder_inputs: Tensor,
        last_only: bool = False,
    ) -> Tensor:
        """See ``Reference``."""
        x = self._embed("output", decoder_inputs)
        padding, future = (attention_mask == 0)[:, None, :], causal(x.size(1))
        for i in range(self._config.num_decoder_layers):
            block = f"decoder_blocks.{i}"
            y = self._attention(f"{block}.masked_multi_head_attention", x, x, future)
            x = self._norm(f"{block}.rms_norm1", x + y)
            y = self._attention(f"{block}.multi_head_attention", x, hidden, padding)
            x = self._norm(f"{block}.rms_norm2", x + y)
            x = self._norm(f"{block}.rms_norm3", x + self._feed_forward(block, x))
        return linear(self._state, "linear", x[:, -1:] if last_only else x)

    def _embed(self, side: str, ids: Tensor) -> Tensor:
        x = self._state[f"{side}_embedding.weight"][ids]
        return x + sinusoids(ids.size(1), self._config.d_model)

    def _attention(self, name: str, x: Tensor, memory: Tensor, blocked: Tensor) -> Tensor:
        heads = []
        for head in range(self._config.num_heads):
            block = f"{name}.attention_blocks.{head}"
            q = linear(self._state, f"{block}.Q_net", x)
            k = linear(self._state, f"{block}.K_net", memory)
            v = linear(self._state, f"{block}.V_net", memory)
            heads.append(attend(q, k, v, blocked, self._config.mask_fill))
        return linear(self._state, f"{name}.W_net", torch.cat(heads, dim=-1))

    def _feed_forward(self, block: str, x: Tensor) -> Tensor:
        hidden = linear(self._state, f"{block}.feed_forward.net.0", x)
        hidden = ACTIVATIONS[self._config.activation](hidden)
        return linear(self._state, f"{block}.feed_forward.net.2", hidden)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        mean_square = x.pow(2).mean(-1, keepdim=True)
        return self._state[f"{name}.weight"] * x / (mean_square + self._config.norm_eps).sqrt()


def is_rmsnorm(config: TransformerConfig) -> bool:
    """Whether the formulas cover these settings."""
    return (
        config.norm == "rms"
        and config.norm_placement == "post"
        and config.positions == "sinusoidal"
        and not config.scale_embeddings
        and not (config.tie_embeddings or config.tie_output)
        and not (config.share_encoder_layers or config.share_decoder_layers)
        and not config.positions_every_layer
    )


ORIGINAL = Original(RMSNormReference, is_rmsnorm)
