"""Modules from a config; the only code that branches on variants of the architecture."""

import math

import torch
from torch import nn

from tfexport.deprecation import renamed_keywords
from tfexport.model_src.attention import Attention
from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.embedding import Embedding, NoEmbedding
from tfexport.model_src.feed_forward import FeedForward
from tfexport.model_src.layer import (
    DecoderLayer,
    EncoderLayer,
    PostNormResidual,
    PreNormResidual,
    Residual,
    ResPostNormResidual,
)
from tfexport.model_src.norm import AnnotatedLayerNorm, RMSNorm
from tfexport.model_src.position import NoPositions, PositionTable, sinusoidal_table
from tfexport.model_src.transformer import Decoder, Encoder, Transformer

_ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}
_RESIDUALS: dict[str, type[Residual]] = {
    "post": PostNormResidual,
    "pre": PreNormResidual,
    "res_post": ResPostNormResidual,
}


@renamed_keywords(attention="attention_class")
def build_transformer(
    config: TransformerConfig,
    encoder: nn.Module | None = None,
    decoder: Decoder | None = None,
    attention_class: type[Attention] = Attention,
) -> Transformer:
    """Build a Transformer with fresh weights: Xavier-uniform matrices, zero biases.

    Args:
        config: the mathematics. Without vocabulary sizes the model takes vectors and gives the
            decoder's states.
        encoder: stands in for the encoder that the config describes; called with (B, S, E) and a
            bias that broadcasts to (B, H, S, S). Its weights are left as they are.
        decoder: stands in for the decoder that the config describes, likewise.
        attention_class: of every attention; a subclass that computes the same in another way.
    """
    model = Transformer(
        config,
        source_embedding=_embedding(config, config.source_vocab_size),
        target_embedding=_embedding(config, config.target_vocab_size),
        encoder=_encoder(config, attention_class) if encoder is None else encoder,
        decoder=_decoder(config, attention_class) if decoder is None else decoder,
        output_proj=_output_proj(config),
    )
    given = {id(module) for module in (encoder, decoder)}
    for part in model.children():
        if id(part) not in given:
            initialise(part)
    _tie(model)
    return model


def _output_proj(config: TransformerConfig) -> nn.Module:
    if config.target_vocab_size is None:
        return nn.Identity()
    return nn.Linear(config.d_model, config.target_vocab_size, bias=config.output_bias)


def _embedding(config: TransformerConfig, vocab_size: int | None) -> nn.Module:
    if vocab_size is None:
        return NoEmbedding()
    return Embedding(
        vocab_size,
        config.d_model,
        scale=math.sqrt(config.d_model) if config.scale_embeddings else 1.0,
        positions=NoPositions() if config.positions_every_layer else _positions(config),
    )


def _positions(config: TransformerConfig) -> nn.Module:
    if config.positions == "none":
        return NoPositions()
    if config.positions == "learned":
        table = torch.empty(config.max_positions, config.d_model)
        return PositionTable(table, trainable=True, dropout=config.dropout)
    table = sinusoidal_table(config.max_positions, config.d_model)
    return PositionTable(table, trainable=False, dropout=config.dropout)


def _encoder(config: TransformerConfig, attention_class: type[Attention]) -> Encoder:
    count = 1 if config.share_encoder_layers else config.num_encoder_layers
    layers = [
        EncoderLayer(
            self_attn=_attention(config, attention_class),
            feed_forward=_feed_forward(config),
            self_attn_residual=_residual(config),
            feed_forward_residual=_residual(config),
        )
        for _ in range(count)
    ]
    positions = _positions(config) if config.positions_every_layer else NoPositions()
    norm = _norm(config) if config.encoder_final_norm else nn.Identity()
    return Encoder(layers, config.num_encoder_layers, positions, norm)


def _decoder(config: TransformerConfig, attention_class: type[Attention]) -> Decoder:
    count = 1 if config.share_decoder_layers else config.num_decoder_layers
    layers = [
        DecoderLayer(
            self_attn=_attention(config, attention_class),
            cross_attn=_attention(config, attention_class),
            feed_forward=_feed_forward(config),
            self_attn_residual=_residual(config),
            cross_attn_residual=_residual(config),
            feed_forward_residual=_residual(config),
        )
        for _ in range(count)
    ]
    norm = _norm(config) if config.decoder_final_norm else nn.Identity()
    return Decoder(layers, config.num_decoder_layers, norm)


def _attention(config: TransformerConfig, attention_class: type[Attention]) -> Attention:
    return attention_class(
        config.d_model,
        config.num_heads,
        config.head_dim,
        bias=config.attention_bias,
        dropout=config.dropout,
    )


def _feed_forward(config: TransformerConfig) -> FeedForward:
    return FeedForward(
        config.d_model,
        config.d_ff,
        _ACTIVATIONS[config.activation](),
        bias=config.feed_forward_bias,
        dropout=config.dropout,
    )


def _residual(config: TransformerConfig) -> Residual:
    return _RESIDUALS[config.norm_placement](_norm(config), config.dropout)


def _norm(config: TransformerConfig) -> nn.Module:
    if config.norm == "rms":
        return RMSNorm(config.d_model, config.norm_eps)
    if config.norm == "annotated":
        return AnnotatedLayerNorm(config.d_model, config.norm_eps, bias=config.norm_bias)
    return nn.LayerNorm(config.d_model, config.norm_eps, bias=config.norm_bias)


def initialise(part: nn.Module) -> None:
    """Draw matrices anew, Xavier-uniform, and zero the biases of projections."""
    for module in part.modules():
        for parameter in module.parameters(recurse=False):
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
            elif isinstance(module, nn.Linear):
                nn.init.zeros_(parameter)


def _tie(model: Transformer) -> None:
    target = model.target_embedding
    if isinstance(target, Embedding):
        if model.config.tie_embeddings and isinstance(model.source_embedding, Embedding):
            model.source_embedding.tokens.weight = target.tokens.weight
        if model.config.tie_output and isinstance(model.output_proj, nn.Linear):
            model.output_proj.weight = target.tokens.weight
