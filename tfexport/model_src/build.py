"""Config to modules: the only place that looks at variants."""

import math

import torch
from torch import nn

from tfexport.errors import ConfigError
from tfexport.model_src.attention import Attention
from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.embedding import Embedding
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


def build_transformer(config: TransformerConfig) -> Transformer:
    """Build a Transformer with fresh weights: Xavier-uniform matrices, zero biases.

    Raises:
        ConfigError: the model has no vocabulary.
    """
    if config.source_vocab_size is None or config.target_vocab_size is None:
        raise ConfigError(
            "config: the model has no embeddings; give source_vocab_size and target_vocab_size."
        )
    model = Transformer(
        config,
        source_embedding=_embedding(config, config.source_vocab_size, not _in_encoder(config)),
        target_embedding=_embedding(config, config.target_vocab_size, not _in_encoder(config)),
        encoder=_encoder(config),
        decoder=_decoder(config),
        output_proj=nn.Linear(config.d_model, config.target_vocab_size, bias=config.output_bias),
    )
    _initialise(model)
    _tie(model)
    return model


def _in_encoder(config: TransformerConfig) -> bool:
    return config.positions_every_layer


def _embedding(config: TransformerConfig, vocab_size: int, with_positions: bool) -> Embedding:
    return Embedding(
        vocab_size,
        config.d_model,
        scale=math.sqrt(config.d_model) if config.scale_embeddings else 1.0,
        positions=_positions(config) if with_positions else NoPositions(),
        dropout=config.dropout,
    )


def _positions(config: TransformerConfig) -> nn.Module:
    if config.positions == "none":
        return NoPositions()
    if config.positions == "learned":
        return PositionTable(torch.empty(config.max_positions, config.d_model), trainable=True)
    table = sinusoidal_table(config.max_positions, config.d_model)
    return PositionTable(table, trainable=False)


def _encoder(config: TransformerConfig) -> Encoder:
    count = 1 if config.share_encoder_layers else config.num_encoder_layers
    layers = [
        EncoderLayer(
            self_attn=_attention(config),
            feed_forward=_feed_forward(config),
            self_attn_residual=_residual(config),
            feed_forward_residual=_residual(config),
        )
        for _ in range(count)
    ]
    positions = _positions(config) if _in_encoder(config) else NoPositions()
    norm = _norm(config) if config.encoder_final_norm else nn.Identity()
    return Encoder(layers, config.num_encoder_layers, positions, norm)


def _decoder(config: TransformerConfig) -> Decoder:
    count = 1 if config.share_decoder_layers else config.num_decoder_layers
    layers = [
        DecoderLayer(
            self_attn=_attention(config),
            cross_attn=_attention(config),
            feed_forward=_feed_forward(config),
            self_attn_residual=_residual(config),
            cross_attn_residual=_residual(config),
            feed_forward_residual=_residual(config),
        )
        for _ in range(count)
    ]
    norm = _norm(config) if config.decoder_final_norm else nn.Identity()
    return Decoder(layers, config.num_decoder_layers, norm)


def _attention(config: TransformerConfig) -> Attention:
    return Attention(
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


def _initialise(model: Transformer) -> None:
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
        elif name.endswith("_proj.bias"):
            nn.init.zeros_(parameter)


def _tie(model: Transformer) -> None:
    if model.config.tie_embeddings:
        model.source_embedding.tokens.weight = model.target_embedding.tokens.weight
    if model.config.tie_output:
        model.output_proj.weight = model.target_embedding.tokens.weight
