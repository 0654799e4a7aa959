"""torch.nn.Transformer itself, and one rebuilt around shared layers, on a checkpoint's tensors."""

import contextlib
import math
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn
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

_TABLES = {
    "src": "src_tok_emb.embedding.weight",
    "tgt": "tgt_tok_emb.embedding.weight",
    "generator": "generator.weight",
}


class StockReference:
    """torch.nn.Transformer with the embeddings and the generator of PyTorch's tutorial."""

    title = "torch.nn.Transformer"
    no_original: str | None = None

    def __init__(self, checkpoint: Checkpoint) -> None:
        config = checkpoint.config
        state = {key: tensor.float() for key, tensor in checkpoint.state_dict.items()}
        self._state = packed_projections(state)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a fast path that is not wanted here
            self._transformer = nn.Transformer(
                config.d_model,
                config.num_heads,
                config.num_encoder_layers,
                config.num_decoder_layers,
                config.d_ff,
                dropout=0.0,
                activation=ACTIVATIONS[config.activation],
                layer_norm_eps=config.norm_eps,
                batch_first=True,
                norm_first=config.norm_placement == "pre",
                bias=config.attention_bias,
            ).eval()
        if not config.encoder_final_norm:
            self._transformer.encoder.norm = None
        if not config.decoder_final_norm:
            self._transformer.decoder.norm = None
        stacks = ("encoder.", "decoder.")
        own = {key.removeprefix("transformer."): tensor for key, tensor in self._state.items()}
        self._transformer.load_state_dict({k: v for k, v in own.items() if k.startswith(stacks)})
        self._scale = math.sqrt(config.d_model) if config.scale_embeddings else 1.0
        self._config = config

    @torch.no_grad()
    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """See ``Reference``."""
        x = self._embed(input_ids, "src", "tgt", "generator")
        with _plain_path():
            hidden: Tensor = self._transformer.encoder(x, src_key_padding_mask=attention_mask == 0)
        return hidden

    @torch.no_grad()
    def decode(
        self,
        hidden: Tensor,
        attention_mask: Tensor,
        decoder_input_ids: Tensor,
        last_only: bool = False,
    ) -> Tensor:
        """See ``Reference``."""
        x = self._embed(decoder_input_ids, "tgt", "src", "generator")
        length = decoder_input_ids.size(1)
        blocked = torch.ones(length, length, dtype=torch.bool).triu(1)
        with _plain_path():
            x = self._transformer.decoder(
                x, hidden, tgt_mask=blocked, memory_key_padding_mask=attention_mask == 0
            )
        states: Tensor = x[:, -1:] if last_only else x
        if not self._config.has_embeddings:
            return states
        weight = self._table("generator", "tgt", "src")
        return F.linear(states, weight, self._state.get("generator.bias"))

    def _embed(self, ids: Tensor, *names: str) -> Tensor:
        if not self._config.has_embeddings:
            return ids  # vectors
        x = F.embedding(ids, self._table(*names)) * self._scale
        if self._config.positions == "none":
            return x
        positions = self._state.get("positional_encoding.pos_embedding")
        if positions is None:
            positions = sinusoids(ids.size(1), self._config.d_model)
        return x + positions.reshape(-1, self._config.d_model)[: ids.size(1)]

    def _table(self, *names: str) -> Tensor:
        """The first of these tables that the checkpoint holds; the others are tied to it."""
        return next(self._state[_TABLES[it]] for it in names if _TABLES[it] in self._state)


def is_stock(config: TransformerConfig) -> bool:
    """Whether torch.nn.Transformer itself can have these settings."""
    return (
        config.norm == "layer"
        and config.norm_placement in ("post", "pre")
        and config.attention_bias == config.feed_forward_bias == config.norm_bias
        and config.head_dim * config.num_heads == config.d_model
        and not (config.share_encoder_layers or config.share_decoder_layers)
        and not config.positions_every_layer
    )


@contextlib.contextmanager
def _plain_path() -> Iterator[None]:
    # torch's fused inference path drops padded columns and sums in another order.
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


STOCK = Original(StockReference, is_stock)


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


REBUILT = Original(RebuiltReference, is_rebuilt)
