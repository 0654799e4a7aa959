"""In the styles of torchtune and of Llama: rotary positions, RMS norms, gates, shared keys."""

# mypy: no-warn-return-any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.export.incremental.own_case import PAD
from tests.export.recognition.styles.style import Style, each_layer, trained

# ---- torchtune -----------------------------------------------------------------------------------


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        x_fp32 = x.float()
        x_normed = (x_fp32 * torch.rsqrt(x_fp32.pow(2).mean(-1, keepdim=True) + self.eps)).type_as(
            x
        )
        return x_normed * self.scale


class RotaryPositionalEmbeddings(nn.Module):
    """Neighbouring values are pairs; (B, T, H, D)."""

    cache: Tensor

    def __init__(self, dim: int, max_seq_len: int = 96, base: int = 10_000) -> None:
        super().__init__()
        theta = 1.0 / (base ** (torch.arange(0, dim, 2)[: (dim // 2)].float() / dim))
        seq_idx = torch.arange(max_seq_len, dtype=theta.dtype)
        idx_theta = torch.einsum("i, j -> ij", seq_idx, theta).float()
        cache = torch.stack([torch.cos(idx_theta), torch.sin(idx_theta)], dim=-1)
        self.register_buffer("cache", cache, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        seq_len = x.size(1)
        rope_cache = self.cache[:seq_len]
        xshaped = x.float().reshape(*x.shape[:-1], -1, 2)
        rope_cache = rope_cache.view(-1, xshaped.size(1), 1, xshaped.size(3), 2)
        x_out = torch.stack(
            [
                xshaped[..., 0] * rope_cache[..., 0] - xshaped[..., 1] * rope_cache[..., 1],
                xshaped[..., 1] * rope_cache[..., 0] + xshaped[..., 0] * rope_cache[..., 1],
            ],
            -1,
        )
        return x_out.flatten(3).type_as(x)


class MultiHeadAttention(nn.Module):
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int,
        rope: nn.Module | None,
        causal: bool,
    ) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_dim, self.is_causal = embed_dim // num_heads, causal
        self.q_proj = nn.Linear(embed_dim, num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, num_kv_heads * self.head_dim, bias=False)
        self.output_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.pos_embeddings = rope

    def forward(self, x: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        b, s_x, _ = x.shape
        s_y = y.shape[1]
        q_per_kv = self.num_heads // self.num_kv_heads
        q = self.q_proj(x).view(b, s_x, self.num_kv_heads * q_per_kv, self.head_dim)
        if self.pos_embeddings is not None:
            q = self.pos_embeddings(q)
        q = q.transpose(1, 2)
        k = self.k_proj(y).view(b, s_y, -1, self.head_dim)
        v = self.v_proj(y).view(b, s_y, -1, self.head_dim)
        if self.pos_embeddings is not None:
            k = self.pos_embeddings(k)
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        if self.num_heads != self.num_kv_heads:
            expand_shape = (-1, -1, q_per_kv, -1, -1)
            k = k.unsqueeze(2).expand(expand_shape).flatten(1, 2)
            v = v.unsqueeze(2).expand(expand_shape).flatten(1, 2)
        output = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=0.0, is_causal=self.is_causal
        )
        return self.output_proj(output.transpose(1, 2).contiguous().view(b, s_x, -1))


class FeedForward(nn.Module):
    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden_dim, bias=False)
        self.w2 = nn.Linear(hidden_dim, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden_dim, bias=False)
        self.activation = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        h = self.activation(self.w1(x))
        return self.w2(h * self.w3(x))


class TransformerLayer(nn.Module):
    def __init__(self, rope: nn.Module, decoder: bool) -> None:
        super().__init__()
        self.attn = MultiHeadAttention(32, 4, 2, rope, causal=decoder)
        self.mlp = FeedForward(32, 42)
        self.sa_norm, self.mlp_norm = RMSNorm(32), RMSNorm(32)
        if decoder:
            self.ca_norm = RMSNorm(32)
            self.cross_attn = MultiHeadAttention(32, 4, 2, None, causal=False)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        encoder_input: Tensor | None = None,
        encoder_mask: Tensor | None = None,
    ) -> Tensor:
        h = self.sa_norm(x)
        h = self.attn(h, h, mask) + x
        if encoder_input is not None:
            h = self.cross_attn(self.ca_norm(h), encoder_input, encoder_mask) + h
        return h + self.mlp(self.mlp_norm(h))


class TuneTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        rope = RotaryPositionalEmbeddings(8)
        self.encoder_tokens, self.tok_embeddings = nn.Embedding(52, 32), nn.Embedding(57, 32)
        self.encoder_layers = nn.ModuleList([TransformerLayer(rope, False) for _ in range(2)])
        self.layers = nn.ModuleList([TransformerLayer(rope, True) for _ in range(2)])
        self.encoder_norm, self.norm = RMSNorm(32), RMSNorm(32)
        self.output = nn.Linear(32, 57, bias=False)

    def forward(self, src: Tensor, tokens: Tensor) -> Tensor:
        mask = (src != PAD)[:, None, None, :]
        encoded = self.encoder_tokens(src)
        for layer in self.encoder_layers:
            encoded = layer(encoded, mask)
        encoded = self.encoder_norm(encoded)
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h, None, encoded, mask)
        return self.output(self.norm(h)).float()


# ---- Llama ---------------------------------------------------------------------------------------


class LlamaRMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        variance = hidden_states.to(torch.float32).pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states


def rotate_half(x: Tensor) -> Tensor:
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


class LlamaRotary(nn.Module):
    inv_freq: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer(
            "inv_freq", 1.0 / (10000 ** (torch.arange(0, dim, 2).float() / dim)), persistent=False
        )

    def forward(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        inv_freq = self.inv_freq[None, :, None].expand(position_ids.shape[0], -1, 1)
        freqs = (inv_freq @ position_ids[:, None, :].float()).transpose(1, 2)
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos(), emb.sin()


class LlamaAttention(nn.Module):
    """Attention to itself, of rotated heads, or to the source."""

    def __init__(self, hidden_size: int, heads: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim = heads, hidden_size // heads
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(
        self,
        hidden_states: Tensor,
        source: Tensor,
        attention_mask: Tensor,
        turns: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        bsz, q_len, _ = hidden_states.size()
        q = self.q_proj(hidden_states).view(bsz, q_len, self.num_heads, self.head_dim)
        k = self.k_proj(source).view(bsz, -1, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(source).view(bsz, -1, self.num_heads, self.head_dim).transpose(1, 2)
        q = q.transpose(1, 2)
        if turns is not None:
            cos, sin = turns[0].unsqueeze(1), turns[1].unsqueeze(1)
            q, k = (q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)
        attn_weights = torch.matmul(q, k.transpose(2, 3)) * self.head_dim**-0.5
        attn_weights = attn_weights + attention_mask
        attn_weights = F.softmax(attn_weights, dim=-1, dtype=torch.float32).to(q.dtype)
        attn_output = torch.matmul(attn_weights, v).transpose(1, 2).contiguous()
        return self.o_proj(attn_output.reshape(bsz, q_len, -1))


class LlamaLayer(nn.Module):
    def __init__(self, decoder: bool) -> None:
        super().__init__()
        self.input_layernorm, self.self_attn = LlamaRMSNorm(32), LlamaAttention(32, 2)
        if decoder:
            self.cross_attn_layernorm = LlamaRMSNorm(32)
            self.cross_attn = LlamaAttention(32, 2)
        self.post_attention_layernorm = LlamaRMSNorm(32)
        self.gate_proj = nn.Linear(32, 50, bias=False)
        self.up_proj = nn.Linear(32, 50, bias=False)
        self.down_proj = nn.Linear(50, 32, bias=False)

    def forward(
        self,
        x: Tensor,
        mask: Tensor,
        turns: tuple[Tensor, Tensor],
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        y = self.input_layernorm(x)
        x = x + self.self_attn(y, y, mask, turns)
        if memory is not None:
            x = x + self.cross_attn(self.cross_attn_layernorm(x), memory, memory_mask)
        y = self.post_attention_layernorm(x)
        return x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))


class LlamaSeq2Seq(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(60, 32, padding_idx=PAD)
        self.rotary_emb = LlamaRotary(16)
        self.encoder = nn.ModuleList([LlamaLayer(False) for _ in range(2)])
        self.decoder = nn.ModuleList([LlamaLayer(True) for _ in range(2)])
        self.encoder_norm, self.norm = LlamaRMSNorm(32), LlamaRMSNorm(32)
        self.lm_head = nn.Linear(32, 60, bias=False)

    def turns(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        return self.rotary_emb(torch.arange(ids.shape[1], device=ids.device).unsqueeze(0))

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        least = torch.finfo(torch.float32).min
        padding = (1.0 - (input_ids != PAD).float())[:, None, None, :] * least
        x = self.embed_tokens(input_ids)
        for layer in self.encoder:
            x = layer(x, padding, self.turns(input_ids))
        memory = self.encoder_norm(x)
        length = labels.shape[1]
        future = torch.triu(torch.full((length, length), least), diagonal=1)[None, None]
        y = self.embed_tokens(labels)
        for layer in self.decoder:
            y = layer(y, future, self.turns(labels), memory, padding)
        return self.lm_head(self.norm(y))


TORCHTUNE_KIN = (
    Style(
        "torchtune",
        lambda: trained(TuneTransformer, 91, 0.7),
        "two heads of keys for four of queries; rotary pairs from a table, before heads are "
        "moved; causal by a flag; no positions but these",
        tables=("encoder_layers.0.attn.pos_embeddings.cache",),
        changes={
            **each_layer("eps in encoder", "encoder_layers.{}.sa_norm.eps", 1e-3),
            **each_layer("eps in decoder", "layers.{}.ca_norm.eps", 1e-2),
            **each_layer("gelu in decoder", "layers.{}.mlp.activation", nn.GELU()),
            **each_layer("no rotation in encoder", "encoder_layers.{}.attn.pos_embeddings", None),
            "no rotation in one layer": {"layers.1.attn.pos_embeddings": None},
            "rotated cross-attention": {
                "layers.0.cross_attn.pos_embeddings": RotaryPositionalEmbeddings(8)
            },
            "other angles": {
                "layers.0.attn.pos_embeddings": RotaryPositionalEmbeddings(8, base=500)
            },
            "no final norm": {"norm": nn.Identity()},
        },
    ),
    Style(
        "llama",
        lambda: trained(LlamaSeq2Seq, 92, 0.7),
        "rotary halves in place of pairs; masks of the least float are added; one table of two "
        "sides, output apart",
        tables=(),
        changes={
            **each_layer("eps in encoder", "encoder.{}.input_layernorm.variance_epsilon", 1e-3),
            **each_layer("eps in decoder", "decoder.{}.input_layernorm.variance_epsilon", 1e-2),
            **each_layer("no norm in decoder", "decoder.{}.cross_attn_layernorm", nn.Identity()),
            "no final norm in encoder": {"encoder_norm": nn.Identity()},
        },
    ),
)
