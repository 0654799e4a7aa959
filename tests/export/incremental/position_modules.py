"""Transformers that differ in positions, heads of keys, feed-forward and what tables they read."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.export.incremental.own_case import PAD, Case, drawn
from tfexport.export import Input

SOURCE = Input("input_ids", "int64", ("batch", "source_length"))


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


def split_heads(x: Tensor, heads: int) -> Tensor:
    return x.view(x.size(0), x.size(1), heads, -1).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


class CrossAttention(nn.Module):
    """Attention to the source, the same in several of the modules."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.v_proj, self.out_proj = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, memory: Tensor, keep: Tensor | None = None) -> Tensor:
        q, k = split_heads(self.q_proj(x), self.heads), split_heads(self.k_proj(memory), self.heads)
        v = split_heads(self.v_proj(memory), self.heads)
        mask = None if keep is None else keep[:, None, None, :]
        out: Tensor = self.out_proj(
            join_heads(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
        )
        return out


class SmallEncoder(nn.Module):
    """One layer of torch over ids, padding masked."""

    def __init__(self, vocabulary: int, dim: int) -> None:
        super().__init__()
        self.table, self.positions = nn.Embedding(vocabulary, dim), nn.Embedding(64, dim)
        self.layer = nn.TransformerEncoderLayer(dim, 2, 2 * dim, 0.0, batch_first=True)

    def forward(self, src: Tensor) -> Tensor:
        x = self.table(src) + self.positions(torch.arange(src.shape[1], device=src.device))
        out: Tensor = self.layer(x, src_key_padding_mask=src == PAD)
        return out


# ---- rotary positions, two heads of keys for four of queries, gated feed-forward -----------------


def rotate_half(x: Tensor) -> Tensor:
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


class RotaryAttention(nn.Module):
    inv_freq: Tensor

    def __init__(self, dim: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, dim // heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        freq = 1.0 / (10000 ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim))
        self.register_buffer("inv_freq", freq, persistent=False)

    def forward(self, x: Tensor, is_causal: bool) -> Tensor:
        bsz, seqlen, _ = x.shape
        q = self.wq(x).view(bsz, seqlen, self.heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(bsz, seqlen, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(bsz, seqlen, self.kv_heads, self.head_dim).transpose(1, 2)
        freqs = torch.outer(torch.arange(seqlen, device=x.device).float(), self.inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        cos, sin = emb.cos(), emb.sin()
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        k = k.repeat_interleave(self.heads // self.kv_heads, dim=1)
        v = v.repeat_interleave(self.heads // self.kv_heads, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        result: Tensor = self.wo(out.transpose(1, 2).contiguous().view(bsz, seqlen, -1))
        return result


class GatedFeedForward(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return out


class RotaryGated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.src_embed, self.tgt_embed = nn.Embedding(26, 16), nn.Embedding(29, 16)
        self.encoder = RotaryAttention(16, 4, 2)
        self.decoder = nn.ModuleList([RotaryAttention(16, 4, 2) for _ in range(2)])
        self.cross = nn.ModuleList([CrossAttention(16, 2) for _ in range(2)])
        self.feed_forward = nn.ModuleList([GatedFeedForward(16, 24) for _ in range(2)])
        self.norms = nn.ModuleList([RMSNorm(16) for _ in range(7)])
        self.out = nn.Linear(16, 29, bias=False)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        memory = self.src_embed(src)
        memory = memory + self.encoder(self.norms[0](memory), is_causal=False)
        x = self.tgt_embed(tgt)
        for i in range(2):
            x = x + self.decoder[i](self.norms[1 + i](x), is_causal=True)
            x = x + self.cross[i](self.norms[3 + i](x), memory)
            x = x + self.feed_forward[i](self.norms[5 + i](x))
        out: Tensor = self.out(x)
        return out


# ---- rotary positions of neighbouring pairs, the table cut by the length ------------------------


class RotaryPairs(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.cross = SmallEncoder(18, 12), CrossAttention(12, 2)
        self.embed = nn.Embedding(19, 12)
        self.qkv = nn.Linear(12, 36)
        self.out = nn.Linear(12, 19)
        angles = torch.arange(64)[:, None] * 100.0 ** (-torch.arange(3) / 3)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def rotate(self, x: Tensor) -> Tensor:
        pairs = x.unflatten(-1, (-1, 2))
        a, b = pairs[..., 0], pairs[..., 1]
        cos, sin = self.cos[: x.size(2)], self.sin[: x.size(2)]
        return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        memory = self.encoder(src)
        x = self.embed(tgt)
        q, k, v = (split_heads(part, 2) for part in self.qkv(x).split(12, dim=-1))
        scores = self.rotate(q) @ self.rotate(k).mT / math.sqrt(6)
        length = tgt.size(1)
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        x = x + join_heads(scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v)
        x = x + self.cross(x, memory, src != PAD)
        out: Tensor = self.out(x)
        return out


# ---- relative positions in buckets, no scale, one bias for all layers ----------------------------


@dataclass
class Seq2SeqOutput:
    logits: Tensor
    encoder_last_hidden_state: Tensor


def relative_position_bucket(relative: Tensor, bidirectional: bool) -> Tensor:
    num_buckets, max_distance = 8, 16
    buckets = torch.zeros_like(relative)
    if bidirectional:
        num_buckets //= 2
        buckets += (relative > 0).to(torch.long) * num_buckets
        relative = torch.abs(relative)
    else:
        relative = -torch.min(relative, torch.zeros_like(relative))
    max_exact = num_buckets // 2
    is_small = relative < max_exact
    if_large = max_exact + (
        torch.log(relative.float() / max_exact)
        / math.log(max_distance / max_exact)
        * (num_buckets - max_exact)
    ).to(torch.long)
    if_large = torch.min(if_large, torch.full_like(if_large, num_buckets - 1))
    buckets += torch.where(is_small, relative, if_large)
    return buckets


class BucketAttention(nn.Module):
    def __init__(self, has_bias: bool, bidirectional: bool) -> None:
        super().__init__()
        self.bidirectional = bidirectional
        self.q, self.k = nn.Linear(12, 16, bias=False), nn.Linear(12, 16, bias=False)
        self.v, self.o = nn.Linear(12, 16, bias=False), nn.Linear(16, 12, bias=False)
        if has_bias:
            self.relative_attention_bias = nn.Embedding(8, 2)

    def compute_bias(self, query_length: int, key_length: int) -> Tensor:
        context_position = torch.arange(query_length, dtype=torch.long)[:, None]
        memory_position = torch.arange(key_length, dtype=torch.long)[None, :]
        buckets = relative_position_bucket(memory_position - context_position, self.bidirectional)
        values = self.relative_attention_bias(buckets)
        bias: Tensor = values.permute([2, 0, 1]).unsqueeze(0)
        return bias

    def forward(self, x: Tensor, memory: Tensor, bias: Tensor) -> Tensor:
        q, k = split_heads(self.q(x), 2), split_heads(self.k(memory), 2)
        scores = torch.matmul(q, k.transpose(3, 2))
        scores += bias
        weights = F.softmax(scores.float(), dim=-1).type_as(scores)
        out: Tensor = self.o(join_heads(torch.matmul(weights, split_heads(self.v(memory), 2))))
        return out


class RelativeBuckets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(27, 12)
        self.encoder = BucketAttention(True, bidirectional=True)
        self.decoder = nn.ModuleList([BucketAttention(i == 0, False) for i in range(2)])
        self.cross = nn.ModuleList([BucketAttention(False, False) for _ in range(2)])
        self.wi, self.wo = nn.Linear(12, 20, bias=False), nn.Linear(20, 12, bias=False)
        self.norms = nn.ModuleList([RMSNorm(12) for _ in range(7)])

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor) -> Seq2SeqOutput:
        attention_mask = input_ids.ne(PAD)
        source_length, target_length = input_ids.shape[1], decoder_input_ids.shape[1]
        lowest = torch.finfo(torch.float32).min
        extended = (1.0 - attention_mask[:, None, None, :].float()) * lowest
        x = self.shared(input_ids)
        bias = self.encoder.compute_bias(source_length, source_length) + extended
        memory = self.norms[0](x + self.encoder(self.norms[1](x), self.norms[1](x), bias))
        seq_ids = torch.arange(target_length)
        causal = seq_ids[None, None, :] <= seq_ids[None, :, None]
        causal_mask = (1.0 - causal[:, None, :, :].float()) * lowest
        first = self.decoder[0]
        assert isinstance(first, BucketAttention)
        bias = first.compute_bias(target_length, target_length) + causal_mask
        y = self.shared(decoder_input_ids)
        for i in range(2):
            z = self.norms[2 + i](y)
            y = y + self.decoder[i](z, z, bias)
            y = y + self.cross[i](self.norms[4 + i](y), memory, extended)
        y = y + self.wo(F.gelu(self.wi(self.norms[6](y)), approximate="tanh"))
        return Seq2SeqOutput(F.linear(y * 12**-0.5, self.shared.weight), memory)


# ---- ALiBi ---------------------------------------------------------------------------------------


class Alibi(nn.Module):
    slopes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.cross = SmallEncoder(20, 16), CrossAttention(16, 4)
        self.embed = nn.Embedding(24, 16)
        self.to_qkv = nn.ModuleList([nn.Linear(16, 48, bias=False) for _ in range(2)])
        self.to_out = nn.ModuleList([nn.Linear(16, 16) for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(16) for _ in range(3)])
        self.to_logits = nn.Linear(16, 24)
        slopes = torch.tensor([2.0 ** -(8 * (i + 1) / 4) for i in range(4)])
        self.register_buffer("slopes", slopes.view(4, 1, 1))

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        memory = self.encoder(src)
        n = tgt.shape[-1]
        i = torch.arange(n, device=tgt.device)
        distance = (i[None, :] - i[:, None]).abs()
        bias = -distance * self.slopes
        bias = bias + torch.full((n, n), float("-inf")).triu(1)
        x = self.embed(tgt)
        for to_qkv, to_out, norm in zip(self.to_qkv, self.to_out, self.norms, strict=False):
            q, k, v = (split_heads(t, 4) for t in to_qkv(x).chunk(3, dim=-1))
            sim = torch.einsum("b h i d, b h j d -> b h i j", q, k) * 0.5 + bias
            out = torch.einsum("b h i j, b h j d -> b h i d", sim.softmax(dim=-1), v)
            x = norm(x + to_out(join_heads(out)))
        x = self.norms[2](x + self.cross(x, memory, src.ne(PAD)))
        logits: Tensor = self.to_logits(x)
        return logits


# ---- relative keys and values by clipped distance -----------------------------------------------


class RelativeKeys(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.cross = SmallEncoder(23, 12), CrossAttention(12, 3)
        self.embed = nn.Embedding(22, 12)
        self.qkv = nn.Linear(12, 36)
        self.relative_k, self.relative_v = nn.Embedding(9, 4), nn.Embedding(9, 4)
        self.out = nn.Linear(12, 22)

    def forward(self, src: Tensor, tgt: Tensor) -> tuple[Tensor, None]:
        memory = self.encoder(src)
        range_vec = torch.arange(tgt.size(1))
        distance = range_vec[None, :] - range_vec[:, None]
        final_mat = torch.clamp(distance, -4, 4) + 4
        keys, values = self.relative_k(final_mat), self.relative_v(final_mat)
        x = self.embed(tgt)
        q, k, v = (split_heads(t, 3) for t in torch.split(self.qkv(x), [12, 12, 12], dim=2))
        scores = q @ k.transpose(-1, -2) + torch.einsum("bhqd,qkd->bhqk", q, keys)
        scores = scores.masked_fill(distance > 0, -1e4) / 2
        weights = F.softmax(scores, dim=-1)
        context = weights @ v + torch.einsum("bhqk,qkd->bhqd", weights, values)
        x = x + join_heads(context)
        x = x + self.cross(x, memory, src != PAD)
        return self.out(x), None


# ---- one head of keys for all, attention and feed-forward in parallel ---------------------------


class MultiQuery(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = SmallEncoder(17, 12)
        self.cross = nn.ModuleList([CrossAttention(12, 3) for _ in range(2)])
        self.embed, self.positions = nn.Embedding(28, 12), nn.Embedding(64, 12)
        self.fused = nn.ModuleList([nn.Linear(12, 12 + 4 + 4 + 32) for _ in range(2)])
        self.attn_out = nn.ModuleList([nn.Linear(12, 12) for _ in range(2)])
        self.ff_out = nn.ModuleList([nn.Linear(16, 12) for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(12) for _ in range(3)])
        self.lm_head = nn.Linear(12, 28, bias=False)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        memory, keep = self.encoder(src), src != PAD
        b, t = tgt.shape
        x = self.embed(tgt) + self.positions(torch.arange(t, device=tgt.device))[None]
        causal = torch.tril(torch.ones(t, t)).view(1, 1, t, t)
        for i in range(2):
            q, k, v, ff = self.fused[i](self.norms[i](x)).split((12, 4, 4, 32), dim=-1)
            q = q.reshape(b, t, 3, 4).permute(0, 2, 1, 3)
            att = (q @ k.unsqueeze(1).transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = F.softmax(att.masked_fill(causal == 0, float("-inf")), dim=-1)
            y = (att @ v.unsqueeze(1)).transpose(1, 2).contiguous().view(b, t, 12)
            value, gate = ff.chunk(2, dim=-1)
            x = x + self.attn_out[i](y) + self.ff_out[i](value * F.gelu(gate))
            x = x + self.cross[i](x, memory, keep)
        logits: Tensor = self.lm_head(self.norms[2](x))
        return logits


# ---- tables of target ids in every layer ---------------------------------------------------------


class TablesInLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = SmallEncoder(21, 8)
        self.embed = nn.Embedding(23, 8)
        self.value_embeds = nn.ModuleList([nn.Embedding(23, 8) for _ in range(2)])
        self.gates = nn.Parameter(torch.ones(2))
        self.attn = nn.ModuleList([RotaryAttention(8, 2, 2) for _ in range(2)])
        self.cross = nn.ModuleList([CrossAttention(8, 2) for _ in range(2)])
        self.mix = nn.ModuleList([nn.Linear(16, 8) for _ in range(2)])
        self.head = nn.Linear(8, 23)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        memory = self.encoder(src)
        x0 = x = F.rms_norm(self.embed(tgt), (8,))
        for i, table in enumerate(self.value_embeds):
            per_layer = table(tgt)
            x = x + self.attn[i](F.rms_norm(x, (8,)) + self.gates[i] * per_layer, True)
            x = x + self.cross[i](x, memory, src != PAD)
            x = x + torch.tanh(self.mix[i](torch.cat((x, x0 * per_layer), dim=-1)))
        logits = self.head(x)
        return 15 * torch.tanh(logits / 15)


# ---- masks its source, and still reads its length ------------------------------------------------


class PositionsFromTheEnd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.src_embed, self.tgt_embed = nn.Embedding(18, 12), nn.Embedding(20, 12)
        self.from_end, self.from_start = nn.Embedding(64, 12), nn.Embedding(64, 12)
        self.self_attn = nn.MultiheadAttention(12, 2, batch_first=True)
        self.cross_attn = nn.MultiheadAttention(12, 2, batch_first=True)
        self.out = nn.Linear(12, 20)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        s, t = src.size(1), tgt.size(1)
        memory = self.src_embed(src) + self.from_end(s - 1 - torch.arange(s))
        x = self.tgt_embed(tgt) + self.from_start(torch.arange(t))
        mask = torch.triu(torch.ones(t, t, dtype=torch.bool), diagonal=1)
        attended, _ = self.self_attn(x, x, x, attn_mask=mask, need_weights=False)
        x = x + attended
        attended, _ = self.cross_attn(x, memory, memory, key_padding_mask=src == PAD)
        out: Tensor = self.out(x + attended)
        return out


POSITION_CASES = (
    Case("rotary_gated", lambda: drawn(RotaryGated, 5, 1.5), (SOURCE,)),
    Case("rotary_pairs", lambda: drawn(RotaryPairs, 2), (SOURCE,), pads_source=True),
    Case("relative_buckets", lambda: drawn(RelativeBuckets, 4, 2.0), (SOURCE,), pads_source=True),
    Case("alibi", lambda: drawn(Alibi, 1), (SOURCE,), pads_source=True),
    Case("relative_keys", lambda: drawn(RelativeKeys, 7, 0.7), (SOURCE,), pads_source=True),
    Case(
        "multi_query",
        lambda: drawn(MultiQuery, 6),
        (SOURCE,),
        pads_source=True,
        state=("keys and values of one head, (B, T, D)",),
    ),
    Case("tables_in_layers", lambda: drawn(TablesInLayers, 8), (SOURCE,), pads_source=True),
    Case(
        "positions_from_the_end",
        lambda: drawn(PositionsFromTheEnd, 6),
        (SOURCE,),
        state=("masks its padding, which nevertheless changes the positions of the source",),
    ),
)
