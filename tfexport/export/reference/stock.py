"""``torch.nn.Transformer`` itself, with a stock checkpoint's tensors under their own names."""

import contextlib
import math
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tfexport.export.reference.formulas import ACTIVATIONS
from tfexport.model_src.checkpoint.read import Checkpoint
from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.position import sinusoidal_table


class StockReference:
    """torch.nn.Transformer with the embeddings and the generator of PyTorch's tutorial."""

    title = "torch.nn.Transformer"

    def __init__(self, checkpoint: Checkpoint) -> None:
        config = checkpoint.config
        self._state = {key: tensor.float() for key, tensor in checkpoint.state_dict.items()}
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
        table = self._state.get("positional_encoding.pos_embedding")
        if table is None and config.positions != "none":
            table = sinusoidal_table(config.max_positions, config.d_model)
        self._table = None if table is None else table.reshape(-1, config.d_model)

    @torch.no_grad()
    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """See ``Reference``."""
        x = self._embed("src_tok_emb", input_ids)
        with _plain_path():
            hidden: Tensor = self._transformer.encoder(x, src_key_padding_mask=attention_mask == 0)
        return hidden

    @torch.no_grad()
    def decode(self, hidden: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor) -> Tensor:
        """See ``Reference``."""
        x = self._embed("tgt_tok_emb", decoder_input_ids)
        length = decoder_input_ids.size(1)
        blocked = torch.ones(length, length, dtype=torch.bool).triu(1)
        with _plain_path():
            x = self._transformer.decoder(
                x, hidden, tgt_mask=blocked, memory_key_padding_mask=attention_mask == 0
            )
        table = self._state.get("tgt_tok_emb.embedding.weight")
        weight = self._state.get("generator.weight", table)
        return x if weight is None else F.linear(x, weight, self._state.get("generator.bias"))

    def _embed(self, name: str, ids: Tensor) -> Tensor:
        other = {"src_tok_emb": "tgt_tok_emb", "tgt_tok_emb": "src_tok_emb"}[name]
        table = self._state.get(f"{name}.embedding.weight")
        if table is None:
            table = self._state.get(f"{other}.embedding.weight")
        if table is None:
            return ids  # vectors: the model has no embeddings
        x = F.embedding(ids, table) * self._scale
        return x if self._table is None else x + self._table[: ids.size(1)]


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
    # The fused inference path drops padded columns and reorders sums.
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
