"""Text to text as language models are built: rotary positions, grouped queries, SwiGLU, RMSNorm."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.modules.kind import TEXT_INPUTS, Kind, draw_text

VOCABULARY = 32
HEADS, GROUPS, SIZE = 4, 2, 8
WIDTH = HEADS * SIZE


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Turn pairs of x (B, H, T, D) by angles of positions (T,)."""
    rates = 10000 ** -(torch.arange(0, SIZE, 2) / SIZE)
    angles = positions[:, None] * rates
    cos, sin = angles.cos(), angles.sin()
    left, right = x.chunk(2, -1)
    return torch.cat([left * cos - right * sin, left * sin + right * cos], -1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, GROUPS * SIZE, bias=False)
        self.value = nn.Linear(WIDTH, GROUPS * SIZE, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        key = self.key(x).unflatten(-1, (GROUPS, SIZE)).transpose(1, 2)
        value = self.value(x).unflatten(-1, (GROUPS, SIZE)).transpose(1, 2)
        return key, value

    def queries(self, x: Tensor) -> Tensor:
        heads: Tensor = self.query(x).unflatten(-1, (HEADS, SIZE)).transpose(1, 2)
        return heads

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        x = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
        out: Tensor = self.out(x.transpose(1, 2).flatten(2))
        return out


class SwiGlu(nn.Module):
    def __init__(self, inner: int = 48) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, inner, bias=False)
        self.up = nn.Linear(WIDTH, inner, bias=False)
        self.down = nn.Linear(inner, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return y


class EncoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(), SwiGlu()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y, positions = self.norm1(x), torch.arange(x.size(1))
        key, value = self.attention.keys(y)
        query = rotate(self.attention.queries(y), positions)
        x = x + self.attention.attend(query, rotate(key, positions), value, mask)
        x = x + self.feed_forward(self.norm2(x))
        return x


class DecoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.cross, self.feed_forward = Attention(), Attention(), SwiGlu()
        norm = partial(nn.RMSNorm, WIDTH)
        self.norm1, self.norm2, self.norm3 = norm(), norm(), norm()

    def forward(
        self,
        x: Tensor,
        position: Tensor,
        cache: tuple[Tensor, Tensor],
        source: tuple[Tensor, Tensor],
        mask: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        y, positions = self.norm1(x), position[None]
        key, value = self.attention.keys(y)
        key = torch.cat([cache[0], rotate(key, positions)], 2)
        value = torch.cat([cache[1], value], 2)
        query = rotate(self.attention.queries(y), positions)
        x = x + self.attention.attend(query, key, value, None)
        x = x + self.cross.attend(self.cross.queries(self.norm2(x)), *source, mask)
        return x + self.feed_forward(self.norm3(x)), key, value


class RotaryModel(nn.Module):
    """Memory: the mask and the keys and values of each layer. State: the caches."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.encoder = nn.ModuleList(EncoderLayer() for _ in range(layers))
        self.decoder: Any = nn.ModuleList(DecoderLayer() for _ in range(layers))
        self.encoder_norm, self.decoder_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY)

    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        mask = attention_mask.bool()[:, None, None]
        x = self.embedding(input_ids)
        for layer in self.encoder:
            x = layer(x, mask)
        x = self.encoder_norm(x)
        sources = [tensor for layer in self.decoder for tensor in layer.cross.keys(x)]
        return mask, *sources

    def start(self, mask: Tensor, *sources: Tensor) -> tuple[Tensor, ...]:
        return tuple(source[:, :, :0] for source in sources)

    def step(
        self, token: Tensor, position: Tensor, state: tuple[Tensor, ...], memory: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        mask, *sources = memory
        x, caches = self.embedding(token), []
        for i, layer in enumerate(self.decoder):
            at = slice(2 * i, 2 * i + 2)
            x, key, value = layer(x, position, state[at], sources[at], mask)
            caches += [key, value]
        return self.output(self.decoder_norm(x))[:, 0], tuple(caches)


KIND = Kind(
    name="rotary",
    make=RotaryModel,
    inputs=TEXT_INPUTS,
    draw=partial(draw_text, vocabulary=VOCABULARY),
    seed=5,
    scale=3.0,
    end_bias=3.0,
)
