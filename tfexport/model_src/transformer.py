"""The encoder-decoder Transformer: encode once, then decode by steps, or with teacher forcing.

Axes: B batch, S source, T target, P past, H heads, D head size, E model width, V vocabulary.
A cache is a flat list [key_0, value_0, key_1, value_1, ...], one pair a decoder layer.
"""

import torch
from torch import Tensor, nn

from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.layer import DecoderLayer, EncoderLayer
from tfexport.model_src.masks import bias_from_blocked, blocked_by_causality, blocked_by_padding
from tfexport.model_src.relative import RelativePositions


class Encoder(nn.Module):
    """A stack of layers, or one layer applied several times, and a final norm.

    ``positions`` is added before the stack and again before every layer; an encoder whose
    positions belong to its embedding has NoPositions here. ``relative`` are biases of relative
    positions that all layers share.
    """

    def __init__(
        self,
        layers: list[EncoderLayer],
        num_layers: int,
        positions: nn.Module,
        norm: nn.Module,
        relative: RelativePositions | None = None,
    ) -> None:
        super().__init__()
        self.relative = RelativePositions() if relative is None else relative
        self.layers = nn.ModuleList(layers)
        self.passes = num_layers // len(layers)
        self.positions = positions
        self.norm = norm

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """(B, S, E) and a bias that broadcasts to (B, H, S, S), to (B, S, E)."""
        bias = self.relative(bias, x.size(1), 0)
        x = self.positions(x, 0)
        for _ in range(self.passes):
            for layer in self.layers:
                x = layer(self.positions(x, 0), bias)
        x = self.norm(x)
        return x


class Decoder(nn.Module):
    """A stack of cached layers, or one layer applied several times, and a final norm.

    ``relative`` are biases of relative positions that all layers share.
    """

    def __init__(
        self,
        layers: list[DecoderLayer],
        num_layers: int,
        norm: nn.Module,
        relative: RelativePositions | None = None,
    ) -> None:
        super().__init__()
        self.relative = RelativePositions() if relative is None else relative
        self.layers = nn.ModuleList(layers)
        self.passes = num_layers // len(layers)
        self.norm = norm
        self.num_heads = layers[0].self_attn.num_heads
        self.head_dim = layers[0].self_attn.head_dim

    def project_memory(self, hidden: Tensor) -> list[Tensor]:
        """Encoder states (B, S, E) to the cross-attention cache, (B, H, S, D) each."""
        cross: list[Tensor] = []
        for _ in range(self.passes):
            for layer in self.layers:
                key, value = layer.project_memory(hidden)  # type: ignore[operator]
                cross.append(key)
                cross.append(value)
        return cross

    def empty_cache(self, x: Tensor) -> list[Tensor]:
        """A self-attention cache of length 0 for a batch like x: (B, H, 0, D) each."""
        size = [x.size(0), self.num_heads, 0, self.head_dim]
        return [x.new_zeros(size) for _ in range(2 * self.passes * len(self.layers))]

    def forward_alone(self, x: Tensor, self_bias: Tensor) -> Tensor:
        """Without an encoder; see ``DecoderLayer.forward_alone``. (B, T, E) to (B, T, E)."""
        self_bias = self.relative(self_bias, x.size(1), 0)
        for _ in range(self.passes):
            for layer in self.layers:
                x = layer.forward_alone(x, self_bias)  # type: ignore[operator]
        x = self.norm(x)
        return x

    def forward(
        self,
        x: Tensor,
        self_bias: Tensor,
        past: list[Tensor],
        cross: list[Tensor],
        cross_bias: Tensor,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Advance by T positions.

        Args:
            x: (B, T, E).
            self_bias: broadcasts to (B, H, T, P + T).
            past: (B, H, P, D) each; P may be 0.
            cross: (B, H, S, D) each.
            cross_bias: broadcasts to (B, H, T, S).

        Returns:
            x: (B, T, E).
            present: (B, H, P + T, D) each.
            weights: the cross-attention weights, (B, H, T, S) for each layer.
        """
        length = self.layers[0].new_positions(x)  # type: ignore[operator]
        self_bias = self.relative(self_bias, length, past[0].size(2))
        present: list[Tensor] = []
        weights: list[Tensor] = []
        i = 0
        for _ in range(self.passes):
            for layer in self.layers:
                x, key, value, attended = layer(
                    x, self_bias, past[i], past[i + 1], cross[i], cross[i + 1], cross_bias
                )
                present.append(key)
                present.append(value)
                weights.append(attended)
                i += 2
        x = self.norm(x)
        return x, present, weights


class Transformer(nn.Module):
    """Embeddings, encoder, decoder and output projection, joined by additive masks.

    Build one with ``build_transformer(config)``. Masks are 1 = keep; padding is on the right. A
    model without embeddings has ``NoEmbedding`` instead: its ids are then vectors,
    (B, T, E), and its logits are the decoder's states.
    Source: Vaswani et al. 2017.
    """

    def __init__(
        self,
        config: TransformerConfig,
        source_embedding: nn.Module,
        target_embedding: nn.Module,
        encoder: nn.Module,
        decoder: Decoder,
        output_proj: nn.Module,
    ) -> None:
        super().__init__()
        self.config = config
        self.source_embedding = source_embedding
        self.target_embedding = target_embedding
        self.encoder = encoder
        self.decoder = decoder
        self.output_proj = output_proj
        self.mask_fill = config.mask_fill

    @torch.jit.export
    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Run the encoder and project its states for every decoder layer.

        Args:
            input_ids: (B, S) source ids.
            attention_mask: (B, S), 1 = keep.

        Returns:
            hidden: (B, S, E).
            cross: the cross-attention cache, (B, H, S, D) each.
        """
        bias = bias_from_blocked(blocked_by_padding(attention_mask), self.mask_fill)
        hidden: Tensor = self.encoder(self.source_embedding(input_ids, 0), bias)
        return hidden, self.decoder.project_memory(hidden)

    @torch.jit.export
    def step(
        self,
        input_ids: Tensor,
        past: list[Tensor],
        cross: list[Tensor],
        encoder_attention_mask: Tensor,
    ) -> tuple[Tensor, list[Tensor]]:
        """Advance the decoder by T positions after P cached ones.

        Args:
            input_ids: (B, T) target ids.
            past: the self-attention cache, (B, H, P, D) each; P may be 0.
            cross: the cross-attention cache of ``encode``.
            encoder_attention_mask: (B, S), 1 = keep.

        Returns:
            logits: (B, T, V), unnormalised.
            present: as past, T positions longer.
        """
        logits, present, _ = self.step_attended(input_ids, past, cross, encoder_attention_mask)
        return logits, present

    def step_attended(
        self,
        input_ids: Tensor,
        past: list[Tensor],
        cross: list[Tensor],
        encoder_attention_mask: Tensor,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """``step``, and the cross-attention weights, (B, H, T, S) for each layer."""
        past_length = past[0].size(2)
        causal = blocked_by_causality(input_ids.size(1), past_length, input_ids.device)
        padding = blocked_by_padding(encoder_attention_mask)
        x, present, weights = self.decoder(
            self.target_embedding(input_ids, past_length),
            bias_from_blocked(causal, self.mask_fill),
            past,
            cross,
            bias_from_blocked(padding, self.mask_fill),
        )
        return self.output_proj(x), present, weights

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        decoder_input_ids: Tensor,
        decoder_attention_mask: Tensor,
    ) -> Tensor:
        """Compute the logits of a given target (teacher forcing), with a causal mask.

        Args:
            input_ids: (B, S) source ids.
            attention_mask: (B, S), 1 = keep.
            decoder_input_ids: (B, T) target ids, start token first.
            decoder_attention_mask: (B, T), 1 = keep.

        Returns:
            logits: (B, T, V), unnormalised.
        """
        biases = self.biases(attention_mask, decoder_attention_mask)
        return self.forward_biased(input_ids, decoder_input_ids, biases[0], biases[1], biases[2])

    def biases(
        self, attention_mask: Tensor, decoder_attention_mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The additive masks of ``forward``: padding everywhere, causality in the decoder.

        Args:
            attention_mask: (B, S), 1 = keep.
            decoder_attention_mask: (B, T), 1 = keep.

        Returns:
            The biases of encoder, decoder and cross-attention, for ``forward_biased``.
        """
        padding = bias_from_blocked(blocked_by_padding(attention_mask), self.mask_fill)
        length = decoder_attention_mask.size(1)
        causal = blocked_by_causality(length, 0, decoder_attention_mask.device)
        blocked = causal | blocked_by_padding(decoder_attention_mask)
        return padding, bias_from_blocked(blocked, self.mask_fill), padding

    @torch.jit.export
    def forward_biased(
        self,
        input_ids: Tensor,
        decoder_input_ids: Tensor,
        encoder_bias: Tensor,
        decoder_bias: Tensor,
        cross_bias: Tensor,
    ) -> Tensor:
        """Compute the logits of a given target with only the caller's masks.

        Args:
            input_ids: (B, S) source ids.
            decoder_input_ids: (B, T) target ids.
            encoder_bias: broadcasts to (B, H, S, S).
            decoder_bias: broadcasts to (B, H, T, T).
            cross_bias: broadcasts to (B, H, T, S).

        Returns:
            logits: (B, T, V), unnormalised.
        """
        hidden: Tensor = self.encoder(self.source_embedding(input_ids, 0), encoder_bias)
        x: Tensor = self.target_embedding(decoder_input_ids, 0)
        cross = self.decoder.project_memory(hidden)
        past = self.decoder.empty_cache(x)
        x, _, _ = self.decoder(x, decoder_bias, past, cross, cross_bias)
        x = self.output_proj(x)
        return x
