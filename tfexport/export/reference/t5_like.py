"""The formulas of T5, MT5 and UMT5, on a checkpoint's own tensors.

Source: Raffel et al. 2020; transformers, models/t5/modeling_t5.py.
"""

import math

import torch
from torch import Tensor

from tfexport.errors import ExportError
from tfexport.export.reference.formulas import ACTIVATIONS, causal, linear
from tfexport.export.reference.original import Original
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.config import TransformerConfig

_BIAS = "layer.0.SelfAttention.relative_attention_bias.weight"
_LAST_NORM = "decoder.final_layer_norm.weight"


class T5LikeReference:
    """Pre-norm RMSNorm without biases, unscaled scores, a bias for each distance."""

    title = "T5 (reference formulas)"
    no_original: str | None = None

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._config = checkpoint.config
        self._state = {key: tensor.float() for key, tensor in checkpoint.state_dict.items()}
        names = ("shared.weight", *(f"{it}.embed_tokens.weight" for it in ("encoder", "decoder")))
        self._head = next(self._state[it] for it in ("lm_head.weight", *names) if it in self._state)
        self._table = next(
            self._state[it] for it in (*names, "lm_head.weight") if it in self._state
        )
        self._scale = self._output_scale(checkpoint.weights["decoder.norm.weight"])

    def _output_scale(self, folded: Tensor) -> float:
        """The factor of the states before the projection, recovered from the last norm."""
        norm, scale = self._state[_LAST_NORM], self._config.d_model**-0.5
        for factor in (1.0, scale):
            if torch.allclose(folded, norm * factor, rtol=1e-6, atol=0.0):
                return factor
        raise ExportError(
            f"{_LAST_NORM} was read neither as it is nor with the output's scale, {scale:g}."
        )

    @torch.no_grad()
    def encode(self, inputs: Tensor, attention_mask: Tensor) -> Tensor:
        """See ``Reference``."""
        x = self._table[inputs]
        blocked = (attention_mask == 0)[:, None, None, :]
        for i in range(self._config.num_encoder_layers):
            block, bias = f"encoder.block.{i}", self._relative("encoder", i, x.size(1))
            y = self._norm(f"{block}.layer.0.layer_norm", x)
            x = x + self._attention(f"{block}.layer.0.SelfAttention", y, y, bias, blocked)
            x = x + self._feed_forward(f"{block}.layer.1", x)
        return self._norm("encoder.final_layer_norm", x)

    @torch.no_grad()
    def decode(
        self,
        hidden: Tensor,
        attention_mask: Tensor,
        decoder_inputs: Tensor,
        last_only: bool = False,
    ) -> Tensor:
        """See ``Reference``."""
        x = self._table[decoder_inputs]
        padding, none = (attention_mask == 0)[:, None, None, :], torch.zeros(1)
        future = causal(x.size(1))
        for i in range(self._config.num_decoder_layers):
            block, bias = f"decoder.block.{i}", self._relative("decoder", i, x.size(1))
            y = self._norm(f"{block}.layer.0.layer_norm", x)
            x = x + self._attention(f"{block}.layer.0.SelfAttention", y, y, bias, future)
            y = self._norm(f"{block}.layer.1.layer_norm", x)
            x = x + self._attention(f"{block}.layer.1.EncDecAttention", y, hidden, none, padding)
            x = x + self._feed_forward(f"{block}.layer.2", x)
        x = self._norm("decoder.final_layer_norm", x[:, -1:] if last_only else x)
        logits: Tensor = self._scale * x @ self._head.T
        return logits

    def _relative(self, stack: str, layer: int, length: int) -> Tensor:
        """Biases (1, H, T, T), by the table of the layer, or else of the first one."""
        name = f"{stack}.block.{layer}.{_BIAS}"
        table = self._state[name if name in self._state else f"{stack}.block.0.{_BIAS}"]
        distance = torch.arange(length)[None, :] - torch.arange(length)[:, None]
        buckets = _buckets(distance, self._config, bidirectional=stack == "encoder")
        return table[buckets].permute(2, 0, 1)[None]

    def _attention(
        self, name: str, x: Tensor, memory: Tensor, bias: Tensor, blocked: Tensor
    ) -> Tensor:
        def heads(part: str, source: Tensor) -> Tensor:
            y = linear(self._state, f"{name}.{part}", source)
            return y.reshape(*y.shape[:2], self._config.num_heads, -1).transpose(1, 2)

        scores = heads("q", x) @ heads("k", memory).transpose(-2, -1) + bias
        weights = scores.masked_fill(blocked, self._config.mask_fill).softmax(-1)
        y = (weights @ heads("v", memory)).transpose(1, 2).flatten(2)
        return linear(self._state, f"{name}.o", y)

    def _feed_forward(self, block: str, x: Tensor) -> Tensor:
        name, act = f"{block}.DenseReluDense", ACTIVATIONS[self._config.activation]
        y = self._norm(f"{block}.layer_norm", x)
        if self._config.gated_feed_forward:
            up = linear(self._state, f"{name}.wi_1", y)
            return linear(
                self._state, f"{name}.wo", act(linear(self._state, f"{name}.wi_0", y)) * up
            )
        return linear(self._state, f"{name}.wo", act(linear(self._state, f"{name}.wi", y)))

    def _norm(self, name: str, x: Tensor) -> Tensor:
        mean_square = x.pow(2).mean(-1, keepdim=True)
        return self._state[f"{name}.weight"] * x / (mean_square + self._config.norm_eps).sqrt()


def _buckets(distance: Tensor, config: TransformerConfig, bidirectional: bool) -> Tensor:
    """The bucket of each distance, key minus query."""
    count, furthest = config.relative_buckets, config.relative_max_distance
    later = torch.zeros_like(distance)
    if bidirectional:
        count //= 2
        later = torch.where(distance > 0, count, 0)
        distance = distance.abs()
    else:
        distance = -distance.clamp(max=0)
    exact = count // 2
    ratio = torch.log(distance.float() / exact) / math.log(furthest / exact)
    # Of distance 0 the logarithm is infinite, and not used.
    far = exact + torch.where(distance > 0, ratio * (count - exact), 0).long()
    return later + torch.where(distance < exact, distance, far.clamp(max=count - 1))


def is_t5(config: TransformerConfig) -> bool:
    """Whether the formulas cover these settings."""
    return (
        config.norm == "rms"
        and config.norm_placement == "pre"
        and config.decoder_norm_placement in ("same", "pre")
        and config.positions == "none"
        and config.relative_positions in ("buckets", "buckets_every_layer")
        and config.residual_scale == 1.0
        and config.decoder.num_heads == config.num_heads
        and not (config.scale_embeddings or config.scale_scores)
        and not (config.share_encoder_layers or config.share_decoder_layers)
        and config.source_embedding_norm == config.target_embedding_norm == "none"
    )


ORIGINAL = Original(T5LikeReference, is_t5)
