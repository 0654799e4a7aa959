"""Biases by distance: in the style of T5, and ALiBi, which a config does not have."""

# mypy: no-warn-return-any

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.export.incremental.own_case import PAD
from tests.export.recognition.styles.style import Style, each_layer, trained

# ---- T5 ------------------------------------------------------------------------------------------


class T5LayerNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        variance = hidden_states.to(torch.float32).pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden_states * torch.rsqrt(variance + self.variance_epsilon))


class T5Attention(nn.Module):
    def __init__(self, has_relative_attention_bias: bool, is_decoder: bool) -> None:
        super().__init__()
        self.is_decoder, self.n_heads, self.key_value_proj_dim = is_decoder, 2, 12
        self.relative_attention_num_buckets, self.relative_attention_max_distance = 10, 24
        inner_dim = self.n_heads * self.key_value_proj_dim
        self.q = nn.Linear(32, inner_dim, bias=False)
        self.k = nn.Linear(32, inner_dim, bias=False)
        self.v = nn.Linear(32, inner_dim, bias=False)
        self.o = nn.Linear(inner_dim, 32, bias=False)
        if has_relative_attention_bias:
            self.relative_attention_bias = nn.Embedding(10, self.n_heads)

    def _relative_position_bucket(self, relative_position: Tensor) -> Tensor:
        num_buckets, max_distance = 10, self.relative_attention_max_distance
        relative_buckets = torch.zeros_like(relative_position)
        if not self.is_decoder:
            num_buckets //= 2
            relative_buckets += (relative_position > 0).to(torch.long) * num_buckets
            relative_position = torch.abs(relative_position)
        else:
            relative_position = -torch.min(relative_position, torch.zeros_like(relative_position))
        max_exact = num_buckets // 2
        is_small = relative_position < max_exact
        relative_position_if_large = max_exact + (
            torch.log(relative_position.float() / max_exact)
            / math.log(max_distance / max_exact)
            * (num_buckets - max_exact)
        ).to(torch.long)
        relative_position_if_large = torch.min(
            relative_position_if_large,
            torch.full_like(relative_position_if_large, num_buckets - 1),
        )
        relative_buckets += torch.where(is_small, relative_position, relative_position_if_large)
        return relative_buckets

    def compute_bias(self, query_length: int, key_length: int) -> Tensor:
        context_position = torch.arange(query_length, dtype=torch.long)[:, None]
        memory_position = torch.arange(key_length, dtype=torch.long)[None, :]
        buckets = self._relative_position_bucket(memory_position - context_position)
        values = self.relative_attention_bias(buckets)
        return values.permute([2, 0, 1]).unsqueeze(0)

    def forward(self, hidden_states: Tensor, key_value_states: Tensor, bias: Tensor) -> Tensor:
        batch_size = hidden_states.shape[0]
        q = self.q(hidden_states).view(batch_size, -1, self.n_heads, self.key_value_proj_dim)
        k = self.k(key_value_states).view(batch_size, -1, self.n_heads, self.key_value_proj_dim)
        v = self.v(key_value_states).view(batch_size, -1, self.n_heads, self.key_value_proj_dim)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        scores = torch.matmul(q, k.transpose(3, 2))
        scores += bias
        attn_weights = F.softmax(scores.float(), dim=-1).type_as(scores)
        attn_output = torch.matmul(attn_weights, v).transpose(1, 2).contiguous()
        return self.o(attn_output.view(batch_size, -1, self.n_heads * self.key_value_proj_dim))


class T5Block(nn.Module):
    def __init__(self, first: bool, decoder: bool) -> None:
        super().__init__()
        self.SelfAttention, self.layer_norm = T5Attention(first, decoder), T5LayerNorm(32)
        if decoder:
            self.EncDecAttention, self.cross_layer_norm = T5Attention(False, True), T5LayerNorm(32)
        self.wi, self.wo = nn.Linear(32, 58, bias=False), nn.Linear(58, 32, bias=False)
        self.ff_layer_norm, self.act, self.dropout = T5LayerNorm(32), nn.ReLU(), nn.Dropout(0.1)

    def forward(
        self,
        hidden: Tensor,
        position_bias: Tensor,
        encoder_hidden: Tensor | None = None,
        encoder_bias: Tensor | None = None,
    ) -> Tensor:
        normed = self.layer_norm(hidden)
        hidden = hidden + self.dropout(self.SelfAttention(normed, normed, position_bias))
        if encoder_hidden is not None:
            normed = self.cross_layer_norm(hidden)
            hidden = hidden + self.EncDecAttention(normed, encoder_hidden, encoder_bias)
        return hidden + self.wo(self.dropout(self.act(self.wi(self.ff_layer_norm(hidden)))))


class T5Stack(nn.Module):
    def __init__(self, embed_tokens: nn.Embedding, decoder: bool) -> None:
        super().__init__()
        self.embed_tokens = embed_tokens
        self.block = nn.ModuleList([T5Block(i == 0, decoder) for i in range(2)])
        self.final_layer_norm = T5LayerNorm(32)

    def forward(self, ids: Tensor, mask: Tensor, *rest: Tensor) -> Tensor:
        hidden = self.embed_tokens(ids)
        length = hidden.shape[1]
        attention: T5Attention = self.block[0].SelfAttention  # type: ignore[assignment]
        position_bias = attention.compute_bias(length, length) + mask
        for block in self.block:
            hidden = block(hidden, position_bias, *rest)
        return self.final_layer_norm(hidden)


class T5Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(48, 32)
        self.encoder, self.decoder = T5Stack(self.shared, False), T5Stack(self.shared, True)
        self.model_dim = 32

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
        least = torch.finfo(torch.float32).min
        extended = (1.0 - (input_ids != PAD)[:, None, None, :].to(torch.float32)) * least
        encoder_hidden = self.encoder(input_ids, extended)
        seq_ids = torch.arange(decoder_input_ids.shape[1])
        causal_mask = (seq_ids[None, :] <= seq_ids[:, None]).to(torch.float32)
        causal = (1.0 - causal_mask[None, None]) * least
        sequence = self.decoder(decoder_input_ids, causal, encoder_hidden, extended)
        sequence = sequence * (self.model_dim**-0.5)
        return F.linear(sequence, self.shared.weight)


# ---- ALiBi ---------------------------------------------------------------------------------------


class AlibiAttention(nn.Module):
    slopes: Tensor

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        slopes = 2 ** (-8 * torch.arange(1, heads + 1) / heads)
        self.register_buffer("slopes", slopes.view(heads, 1, 1))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        steps = torch.arange(x.size(1))
        distance = -(steps[:, None] - steps[None, :]).abs().float()
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)) + self.slopes * distance
        weights = scores.masked_fill(mask, float("-inf")).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


class CrossAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.proj = (
            nn.Linear(dim, dim),
            nn.Linear(dim, 2 * dim),
            nn.Linear(dim, dim),
        )

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        kv = self.kv(memory).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = kv.chunk(2, dim=-1)  # of each head, its keys and its values
        weights = (q @ k.mT * q.size(-1) ** -0.5).masked_fill(mask, float("-inf")).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


class AlibiLayer(nn.Module):
    def __init__(self, dim: int, decoder: bool) -> None:
        super().__init__()
        self.attn, self.ln_1, self.ln_2 = (
            AlibiAttention(dim, 4),
            nn.LayerNorm(dim),
            nn.LayerNorm(dim),
        )
        if decoder:
            self.cross, self.ln_3 = CrossAttention(dim, 4), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, dim))

    def forward(
        self, x: Tensor, mask: Tensor, memory: Tensor | None = None, hidden: Tensor | None = None
    ) -> Tensor:
        x = x + self.attn(self.ln_1(x), mask)
        if memory is not None:
            x = x + self.cross(self.ln_3(x), memory, hidden)
        return x + self.mlp(self.ln_2(x))


class AlibiTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.src, self.tgt = nn.Embedding(45, 32), nn.Embedding(42, 32)
        self.encoder = nn.ModuleList([AlibiLayer(32, False) for _ in range(2)])
        self.decoder = nn.ModuleList([AlibiLayer(32, True) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 42)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        hidden = (src == PAD)[:, None, None]
        x, y = self.src(src), self.tgt(tgt)
        for layer in self.encoder:
            x = layer(x, hidden)
        future = torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool).triu(1)
        for layer in self.decoder:
            y = layer(y, future, x, hidden)
        return self.head(self.norm(y))


RELATIVE_KIN = (
    Style(
        "t5",
        lambda: trained(T5Model, 101, 1.0),
        "biases of buckets from the first layer; scores not scaled; 24 inner values; logits times "
        "d^-0.5 of one table for all",
        tables=(),
        changes={
            **each_layer("eps in encoder", "encoder.block.{}.layer_norm.variance_epsilon", 1e-2),
            **each_layer(
                "eps in decoder", "decoder.block.{}.cross_layer_norm.variance_epsilon", 1e-2
            ),
            **each_layer("gelu in decoder", "decoder.block.{}.act", nn.GELU()),
            "far buckets in encoder": {
                "encoder.block.0.SelfAttention.relative_attention_max_distance": 6
            },
            "far buckets in decoder": {
                "decoder.block.0.SelfAttention.relative_attention_max_distance": 6
            },
            "buckets of two sides in decoder": {"decoder.block.0.SelfAttention.is_decoder": False},
            "scale of logits": {"model_dim": 1},
            "no final norm in encoder": {"encoder.final_layer_norm": nn.Identity()},
        },
    ),
    Style(
        "alibi",
        lambda: trained(AlibiTransformer, 102, 1.0),
        "biases that grow with the distance, of a slope for each head; packed projections",
        expected="biases that grow with the distance (ALiBi) are not in the config",
        changes={
            **each_layer("no slopes in encoder", "encoder.{}.attn.slopes", torch.zeros(4, 1, 1)),
            **each_layer("no slopes in decoder", "decoder.{}.attn.slopes", torch.zeros(4, 1, 1)),
            "no slopes": {
                f"{stack}.{i}.attn.slopes": torch.zeros(4, 1, 1)
                for stack in ("encoder", "decoder")
                for i in range(2)
            },
        },
    ),
)
