"""Adapters with the call signatures of the original models, around the project's own modules.

Each accepts the masks of its original. None adds mathematics. docs/original-signatures.md says
which document's call each is; exports need none of them.
"""

import torch
from torch import Tensor, nn

from tfexport.errors import ConfigError, InputError
from tfexport.model_src.attention import Attention
from tfexport.model_src.build import build_transformer, initialise
from tfexport.model_src.checkpoint.keymap import THIRDS, KeyTable, convert_weights
from tfexport.model_src.config import Activation, TransformerConfig
from tfexport.model_src.masks import (
    bias_from_blocked,
    bias_from_keep_mask,
    bias_from_torch_masks,
    generate_square_subsequent_mask,
    no_bias,
)
from tfexport.model_src.transformer import Decoder, Transformer

_MULTIHEAD_ATTENTION = KeyTable(
    {
        "in_proj_{kind}": ("{qkv}_proj.{kind}", THIRDS),
        "{qkv}_proj_weight": "{qkv}_proj.weight",
        "out_proj.{kind}": "out_proj.{kind}",
    }
)


class MultiheadAttention(nn.Module):
    """``torch.nn.MultiheadAttention``'s signature, over ``Attention``."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
    ) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise ConfigError(f"embed_dim {embed_dim} is not divisible by num_heads {num_heads}.")
        self.attention = Attention(
            embed_dim, num_heads, embed_dim // num_heads, bias, dropout, kdim, vdim
        )
        self.batch_first = batch_first
        initialise(self.attention)

    def load_torch_state_dict(self, state: dict[str, Tensor]) -> None:
        """Load the weights of a ``torch.nn.MultiheadAttention``, packed or separate."""
        self.attention.load_state_dict(convert_weights(_MULTIHEAD_ATTENTION, state).weights)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend.

        Args:
            query: (T, B, E), or (B, T, E) with ``batch_first``; so are key and value.
            key: (S, B, key width).
            value: (S, B, value width).
            key_padding_mask: see ``bias_from_torch_masks``.
            need_weights: return the attention weights too.
            attn_mask: see ``bias_from_torch_masks``.

        Returns:
            output: as query.
            weights: (B, T, S), the mean over the heads, or None.
        """
        if not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        attention = self.attention
        shape = (query.size(0), attention.num_heads, query.size(1), key.size(1))
        bias = bias_from_torch_masks(attn_mask, key_padding_mask, shape)
        keys, values = attention.project_key_value(key, value)
        output, weights = attention.attend(query, keys, values, bias)
        if not self.batch_first:
            output = output.transpose(0, 1)
        return output, weights.mean(1) if need_weights else None


class TorchTransformer(nn.Module):
    """``torch.nn.Transformer``'s signature, over a ``Transformer`` without embeddings.

    The defaults are torch's. ``share_layers`` and ``positions_every_layer`` make it the model that
    applies one layer several times and adds positions at the start of every encoder layer.
    """

    def __init__(  # noqa: PLR0913 - torch's own signature
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        custom_encoder: nn.Module | None = None,
        custom_decoder: Decoder | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        share_layers: bool = False,
        positions_every_layer: bool = False,
    ) -> None:
        super().__init__()
        config = TransformerConfig(
            d_model=d_model,
            num_heads=nhead,
            num_encoder_layers=num_encoder_layers,
            num_decoder_layers=num_decoder_layers,
            d_ff=dim_feedforward,
            dropout=dropout,
            activation=activation,
            norm_eps=layer_norm_eps,
            norm_placement="pre" if norm_first else "post",
            norm_bias=bias,
            attention_bias=bias,
            feed_forward_bias=bias,
            encoder_final_norm=not positions_every_layer,
            share_encoder_layers=share_layers,
            share_decoder_layers=share_layers,
            positions_every_layer=positions_every_layer,
        )
        self.transformer = build_transformer(config, custom_encoder, custom_decoder)
        self.batch_first = batch_first

    generate_square_subsequent_mask = staticmethod(generate_square_subsequent_mask)

    @classmethod
    def around(cls, transformer: Transformer, batch_first: bool = False) -> "TorchTransformer":
        """Wrap an existing model, such as that of ``checkpoint.build()``."""
        if transformer.config.has_embeddings:
            raise ConfigError("expected a model without embeddings: this signature takes vectors.")
        wrapped = cls.__new__(cls)
        nn.Module.__init__(wrapped)
        wrapped.transformer = transformer
        wrapped.batch_first = batch_first
        return wrapped

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Decoder states as tgt, (T, B, E), or (B, T, E) with ``batch_first``.

        Masks are those of ``bias_from_torch_masks``; without any, nothing is masked.
        """
        if not self.batch_first:
            src, tgt = src.transpose(0, 1), tgt.transpose(0, 1)
        if src.size(0) != tgt.size(0):
            raise InputError(f"src has batch {src.size(0)}, tgt has batch {tgt.size(0)}.")
        batch, heads = src.size(0), self.transformer.config.num_heads
        source, target, fill = src.size(1), tgt.size(1), self.transformer.mask_fill
        x = self.transformer.forward_biased(
            src,
            tgt,
            bias_from_torch_masks(
                src_mask, src_key_padding_mask, (batch, heads, source, source), fill
            ),
            bias_from_torch_masks(
                tgt_mask, tgt_key_padding_mask, (batch, heads, target, target), fill
            ),
            bias_from_torch_masks(
                memory_mask, memory_key_padding_mask, (batch, heads, target, source), fill
            ),
        )
        return x if self.batch_first else x.transpose(0, 1)


class AnnotatedTransformer(nn.Module):
    """The Annotated Transformer's signature: keep-masks in, log-probabilities out."""

    def __init__(self, transformer: Transformer) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(
        self, src: Tensor, tgt: Tensor, src_mask: Tensor | None, tgt_mask: Tensor | None
    ) -> Tensor:
        """Score targets.

        Args:
            src: (B, S) ids.
            tgt: (B, T) ids.
            src_mask: (B, 1, S), zero = padding; for encoder and cross-attention.
            tgt_mask: (B, T, T), zero = blocked: padding and ``subsequent_mask`` merged.

        Returns:
            (B, T, V) log-probabilities: the notebook's generator after its decoder.
        """
        model, heads = self.transformer, self.transformer.config.num_heads
        batch, source, target = src.size(0), src.size(1), tgt.size(1)
        logits = model.forward_biased(
            src,
            tgt,
            bias_from_keep_mask(src_mask, (batch, heads, source, source), model.mask_fill),
            bias_from_keep_mask(tgt_mask, (batch, heads, target, target), model.mask_fill),
            bias_from_keep_mask(src_mask, (batch, heads, target, source), model.mask_fill),
        )
        return logits.log_softmax(-1)


class RMSNormTransformer(nn.Module):
    """The RMSNorm Transformer's signature: an optional mask in, probabilities out."""

    def __init__(self, transformer: Transformer) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(
        self, input_seq: Tensor | None, output_seq: Tensor, mask_mat: Tensor | None = None
    ) -> Tensor:
        """Score targets.

        Args:
            input_seq: (B, S) ids; None runs the decoder alone, attending to its own states.
            output_seq: (B, T) ids.
            mask_mat: (T, T) or (B, T, T) bool, True = blocked (``generate_mask_mat``), for the
                decoder's self-attention. None masks nothing: then the model is not causal.

        Returns:
            (B, T, V) probabilities.

        Raises:
            InputError: a mask of another shape or dtype.
        """
        model, length = self.transformer, output_seq.size(1)
        self_bias = no_bias(output_seq.device)
        if mask_mat is not None:
            allowed = ((length, length), (output_seq.size(0), length, length))
            if mask_mat.dtype != torch.bool or tuple(mask_mat.shape) not in allowed:
                raise InputError(
                    f"mask_mat is {mask_mat.dtype} {tuple(mask_mat.shape)}; expected bool "
                    f"(T, T) = {allowed[0]} or (B, T, T) = {allowed[1]}."
                )
            blocked = mask_mat.reshape(-1, 1, length, length)
            self_bias = bias_from_blocked(blocked, model.mask_fill)
        if input_seq is None:
            x = model.decoder.forward_alone(model.target_embedding(output_seq, 0), self_bias)
            logits: Tensor = model.output_proj(x)
        else:
            free = no_bias(input_seq.device)
            logits = model.forward_biased(input_seq, output_seq, free, self_bias, free)
        return logits.softmax(-1)
