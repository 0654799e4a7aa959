"""What a user wrote before: the steps of three models by hand, beside the calls of their forwards.

``docs/training-script.md`` has a table of their lines.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from tests.export.incremental.own_case import PAD


class TutorialSteps(nn.Module):
    """PyTorch's tutorial, with the inputs of each layer as its cache."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.own = own

    def encode(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        embedded = self.own.src_tok_emb(input_ids.T) * math.sqrt(16)
        padding = input_ids == PAD
        x = self.own.positional_encoding(embedded)
        memory = self.own.transformer.encoder(x, src_key_padding_mask=padding)
        return memory.transpose(0, 1), padding

    def start(self, memory: Tensor, padding: Tensor) -> tuple[Tensor, ...]:
        nothing = memory.new_zeros(memory.size(0), 0, memory.size(2))
        return tuple(nothing for _ in self.own.transformer.decoder.layers)

    def step(self, token: Tensor, position: Tensor, state: Any, memory: Any) -> Any:
        source, padding = memory[0].transpose(0, 1), memory[1]
        x = self.own.tgt_tok_emb(token.T) * math.sqrt(16)
        x = x + self.own.positional_encoding.pos_embedding[position]
        after = []
        for layer, past in zip(self.own.transformer.decoder.layers, state, strict=True):
            after.append(torch.cat([past, x.transpose(0, 1)], 1))
            seen = after[-1].transpose(0, 1)
            x = layer.norm1(x + layer.self_attn(x, seen, seen, need_weights=False)[0])
            found = layer.multihead_attn(x, source, source, padding, need_weights=False)[0]
            x = layer.norm2(x + found)
            x = layer.norm3(x + layer.linear2(layer.linear1(x).relu()))
        return self.own.generator(self.own.transformer.decoder.norm(x))[0], tuple(after)


class AnnotatedSteps(nn.Module):
    """The Annotated Transformer, likewise."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.own = own

    def encode(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        mask = (input_ids != PAD).unsqueeze(-2)
        return self.own.encode(input_ids, mask), mask

    def start(self, memory: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        nothing = memory.new_zeros(memory.size(0), 0, memory.size(2))
        return tuple(nothing for _ in self.own.decoder)

    def step(self, token: Tensor, position: Tensor, state: Any, memory: Any) -> Any:
        (source, mask), after = memory, []
        x = self.own.tgt_embed(token) * math.sqrt(12) + self.own.pe[0, position]
        for layer, past in zip(self.own.decoder, state, strict=True):
            y = layer.norms[0](x)
            after.append(torch.cat([past, y], 1))
            x = x + layer.self_attn(y, after[-1], after[-1], torch.ones(1, 1, 1))
            x = x + layer.src_attn(layer.norms[1](x), source, source, mask)
            x = x + layer.feed_forward(layer.norms[2](x))
        return self.own.generator(self.own.decoder_norm(x))[:, 0].log_softmax(-1), tuple(after)


class WhisperSteps(nn.Module):
    """Whisper of transformers, with the inputs of each layer's attention as its cache."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.own = own

    def encode(self, input_features: Tensor) -> Tensor:
        memory: Tensor = self.own.model.encoder(input_features).last_hidden_state
        return memory

    def start(self, memory: Tensor) -> tuple[Tensor, ...]:
        nothing = memory.new_zeros(memory.size(0), 0, memory.size(2))
        return tuple(nothing for _ in self.own.model.decoder.layers)

    def step(self, token: Tensor, position: Tensor, state: Any, memory: Any) -> Any:
        decoder, (source,), after = self.own.model.decoder, memory, []
        x = decoder.embed_tokens(token) + decoder.embed_positions.weight[position]
        for layer, past in zip(decoder.layers, state, strict=True):
            y = layer.self_attn_layer_norm(x)
            after.append(torch.cat([past, y], 1))
            x = x + self.attend(layer.self_attn, y, after[-1])
            x = x + self.attend(layer.encoder_attn, layer.encoder_attn_layer_norm(x), source)
            y = layer.fc1(layer.final_layer_norm(x))
            x = x + layer.fc2(layer.activation_fn(y))
        return self.own.proj_out(decoder.layer_norm(x))[:, 0], tuple(after)

    def attend(self, layer: Any, x: Tensor, seen: Tensor) -> Any:
        def heads(of: Tensor) -> Any:
            return of.unflatten(2, (layer.num_heads, -1)).transpose(1, 2)

        q, k, v = heads(layer.q_proj(x)), heads(layer.k_proj(seen)), heads(layer.v_proj(seen))
        found = nn.functional.scaled_dot_product_attention(q, k, v)
        return layer.out_proj(found.transpose(1, 2).flatten(2))
