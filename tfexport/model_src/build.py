"""Building a Transformer from a config; only this file branches on variants of the architecture."""

import copy
import functools
import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from tfexport.model_src.attention import Attention
from tfexport.model_src.config import EmbeddingNorm, NormPlacement, TransformerConfig
from tfexport.model_src.embedding import (
    Embedding,
    NoEmbedding,
    NoPositions,
    PositionTable,
    halves_table,
    sinusoidal_table,
    t2t_table,
)
from tfexport.model_src.layer import (
    AnnotatedLayerNorm,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    GatedFeedForward,
    PostNormResidual,
    PreNormResidual,
    QuickGELU,
    Residual,
    ResPostNormResidual,
    RMSNorm,
)
from tfexport.model_src.relative import (
    RelativeBias,
    RelativePositions,
    RelativeVectors,
    RotaryPositions,
)
from tfexport.model_src.transformer import Decoder, Encoder, Transformer

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "gelu_tanh": functools.partial(nn.GELU, approximate="tanh"),
    "quick_gelu": QuickGELU,
    "silu": nn.SiLU,
}
_RESIDUALS: dict[str, type[Residual]] = {
    "post": PostNormResidual,
    "pre": PreNormResidual,
    "res_post": ResPostNormResidual,
}


def build_transformer(
    config: TransformerConfig,
    encoder: nn.Module | None = None,
    decoder: Decoder | None = None,
    attention_class: type[Attention] = Attention,
) -> Transformer:
    """Build a Transformer with fresh weights: Xavier-uniform matrices, zero biases.

    Args:
        config: the config of the model. Without vocabulary sizes, the model takes vectors and
            returns decoder states.
        encoder: replaces the encoder of the config; called with (B, S, E) and a bias that
            broadcasts to (B, H, S, S). Its weights are not initialised.
        decoder: replaces the decoder of the config; its weights are not initialised.
        attention_class: the class of all attentions; a subclass must compute the same.
    """
    model = Transformer(
        config,
        source_embedding=_embedding(
            config, config.source_vocab_size, config.scale_embeddings, config.source_embedding_norm
        ),
        target_embedding=_embedding(
            config,
            config.target_vocab_size,
            config.scale_embeddings and config.scale_target_embeddings,
            config.target_embedding_norm,
            unplaced_id=None if config.padding_has_position else config.pad_id,
        ),
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


_Module = TypeVar("_Module", bound=nn.Module)


def copy_sharing(module: _Module) -> _Module:
    """A copy of a module with the same parameters and buffers, tied ones included."""
    tensors = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return copy.deepcopy(module, dict[int, object](tensors))


def with_attention(model: Transformer, attention_class: type[Attention]) -> Transformer:
    """A copy with another class of all attentions, and with the same parameters and buffers.

    Args:
        model: any model.
        attention_class: see ``build_transformer``; it has no constructor of its own.
    """
    copied = copy_sharing(model)
    for part in copied.modules():
        if isinstance(part, Attention):
            part.__class__ = attention_class
    return copied


class _GivenStates(nn.Module):
    """In place of an encoder: its states are given."""

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """(B, S, W) to the same."""
        return x


def build_decoder(config: TransformerConfig, memory_width: int) -> Transformer:
    """Build the decoder of a Transformer whose encoder is elsewhere, with fresh weights.

    Args:
        config: the config of the model, of which the encoder's part is not used.
        memory_width: W, values of a state of the encoder.

    Returns:
        A model that takes states (B, S, W) in place of source ids.
    """
    model = build_transformer(config, encoder=_GivenStates())
    model.source_embedding = NoEmbedding()
    sizes = config.decoder
    for layer in model.decoder.layers:
        layer.cross_attn = _attention(
            config, Attention, sizes.num_heads, sizes.head_dim, memory_width
        )
        initialise(layer.cross_attn)
    return model


class EncoderLayers(nn.Module):
    """The encoder of a Transformer whose embeddings are elsewhere; nothing is masked."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, embeddings: Tensor) -> Tensor:
        """(B, S, E) to the same."""
        states: Tensor = self.encoder(embeddings, embeddings.new_zeros(1, 1, 1, 1))
        return states


def build_encoder(config: TransformerConfig) -> EncoderLayers:
    """Build the layers of an encoder whose embeddings are elsewhere, with fresh weights.

    Args:
        config: the config of the model, of which the decoder's part is not used.
    """
    layers = EncoderLayers(_encoder(config, Attention))
    initialise(layers)
    return layers


def _output_proj(config: TransformerConfig) -> nn.Module:
    if config.target_vocab_size is None:
        return nn.Identity()
    return nn.Linear(config.d_model, config.target_vocab_size, bias=config.output_bias)


def _embedding(
    config: TransformerConfig,
    vocab_size: int | None,
    scaled: bool,
    norm: EmbeddingNorm,
    unplaced_id: int | None = None,
) -> nn.Module:
    if vocab_size is None:
        return NoEmbedding()
    return Embedding(
        vocab_size,
        config.d_model,
        scale=math.sqrt(config.d_model) if scaled else 1.0,
        positions=NoPositions() if config.positions_every_layer else _positions(config),
        token_norm=_norm(config) if norm == "tokens" else nn.Identity(),
        norm=_norm(config) if norm == "sum" else nn.Identity(),
        unplaced_id=unplaced_id,
    )


def _positions(config: TransformerConfig) -> nn.Module:
    if config.positions == "none":
        return NoPositions()
    if config.positions == "learned":
        table = torch.empty(config.max_positions, config.d_model)
        return PositionTable(table, trainable=True, dropout=config.dropout)
    rows, first = config.max_positions, config.first_position
    if config.positions == "sinusoidal_t2t":
        table = t2t_table(rows, config.d_model, first)
    else:
        make = halves_table if config.positions == "sinusoidal_halves" else sinusoidal_table
        table = make(first + rows, config.d_model)[first:]
    return PositionTable(table, trainable=False, dropout=config.dropout)


def _encoder(config: TransformerConfig, attention_class: type[Attention]) -> Encoder:
    count = 1 if config.share_encoder_layers else config.num_encoder_layers
    layers = [
        EncoderLayer(
            self_attn=_self_attention(
                config, attention_class, config.num_heads, config.head_dim, bidirectional=True
            ),
            feed_forward=_feed_forward(config, config.d_ff),
            self_attn_residual=_residual(config, config.norm_placement),
            feed_forward_residual=_residual(config, config.norm_placement),
        )
        for _ in range(count)
    ]
    positions = _positions(config) if config.positions_every_layer else NoPositions()
    norm = _norm(config) if config.encoder_final_norm else nn.Identity()
    relative = _of_a_stack(config, config.num_heads, bidirectional=True)
    return Encoder(layers, config.num_encoder_layers, positions, norm, relative)


def _decoder(config: TransformerConfig, attention_class: type[Attention]) -> Decoder:
    count = 1 if config.share_decoder_layers else config.num_decoder_layers
    sizes = config.decoder
    layers = [
        DecoderLayer(
            self_attn=_self_attention(
                config, attention_class, sizes.num_heads, sizes.head_dim, bidirectional=False
            ),
            cross_attn=_attention(config, attention_class, sizes.num_heads, sizes.head_dim),
            feed_forward=_feed_forward(config, sizes.d_ff),
            self_attn_residual=_residual(config, sizes.norm_placement),
            cross_attn_residual=_residual(config, sizes.norm_placement),
            feed_forward_residual=_residual(config, sizes.norm_placement),
        )
        for _ in range(count)
    ]
    norm = _norm(config) if config.decoder_final_norm else nn.Identity()
    relative = _of_a_stack(config, sizes.num_heads, bidirectional=False)
    return Decoder(layers, config.num_decoder_layers, norm, relative)


def _of_a_stack(
    config: TransformerConfig, num_heads: int, bidirectional: bool
) -> RelativePositions:
    if config.relative_positions != "buckets":
        return RelativePositions()
    buckets, distance = config.relative_buckets, config.relative_max_distance
    return RelativeBias(num_heads, buckets, distance, bidirectional)


def _of_a_layer(
    config: TransformerConfig, num_heads: int, head_dim: int, bidirectional: bool
) -> RelativePositions:
    buckets, distance = config.relative_buckets, config.relative_max_distance
    if config.relative_positions == "buckets_every_layer":
        return RelativeBias(num_heads, buckets, distance, bidirectional)
    if config.relative_positions == "shaw":
        return RelativeVectors(head_dim, distance)
    if config.relative_positions == "rotary":
        return RotaryPositions(head_dim)
    return RelativePositions()


def _self_attention(
    config: TransformerConfig,
    attention_class: type[Attention],
    num_heads: int,
    head_dim: int,
    bidirectional: bool,
) -> Attention:
    attention = _attention(config, attention_class, num_heads, head_dim)
    attention.relative = _of_a_layer(config, num_heads, head_dim, bidirectional)
    return attention


def _attention(
    config: TransformerConfig,
    attention_class: type[Attention],
    num_heads: int,
    head_dim: int,
    memory_width: int | None = None,
) -> Attention:
    return attention_class(
        config.d_model,
        num_heads,
        head_dim,
        bias=config.attention_bias,
        dropout=config.dropout,
        key_dim=memory_width,
        value_dim=memory_width,
        scale=None if config.scale_scores else 1.0,
    )


def _feed_forward(config: TransformerConfig, d_ff: int) -> FeedForward:
    kind = GatedFeedForward if config.gated_feed_forward else FeedForward
    return kind(
        config.d_model,
        d_ff,
        _ACTIVATIONS[config.activation](),
        bias=config.feed_forward_bias,
        dropout=config.dropout,
    )


def _residual(config: TransformerConfig, placement: NormPlacement) -> Residual:
    return _RESIDUALS[placement](_norm(config), config.dropout, config.residual_scale)


def _norm(config: TransformerConfig) -> nn.Module:
    if config.norm == "rms":
        return RMSNorm(config.d_model, config.norm_eps)
    if config.norm == "annotated":
        return AnnotatedLayerNorm(config.d_model, config.norm_eps, bias=config.norm_bias)
    return nn.LayerNorm(config.d_model, config.norm_eps, bias=config.norm_bias)


def initialise(part: nn.Module) -> None:
    """Initialise matrices with Xavier-uniform values, and the biases of projections with zeros."""
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
