"""Attention written in other ways: einsum, heads in the batch or in a list, packed projections."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.export.incremental.own_case import PAD, Case, drawn
from tests.export.incremental.position_modules import CrossAttention, RMSNorm, SmallEncoder
from tfexport.export import Input

SOURCE = Input("input_ids", "int64", ("batch", "source_length"))
SOURCE_BATCH_SECOND = Input("input_ids", "int64", ("source_length", "batch"))
TARGET_BATCH_SECOND = Input("target", "int64", ("target_length", "batch"))


# ---- einsum, masks by expand --------------------------------------------------------------------


class EinsumAttention(nn.Module):
    def __init__(self, embed_size: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, embed_size // heads
        self.values = nn.Linear(embed_size, embed_size)
        self.keys = nn.Linear(embed_size, embed_size)
        self.queries = nn.Linear(embed_size, embed_size)
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, values: Tensor, keys: Tensor, query: Tensor, mask: Tensor | None) -> Tensor:
        n = query.shape[0]
        value_len, key_len, query_len = values.shape[1], keys.shape[1], query.shape[1]
        values = self.values(values).reshape(n, value_len, self.heads, self.head_dim)
        keys = self.keys(keys).reshape(n, key_len, self.heads, self.head_dim)
        query = self.queries(query).reshape(n, query_len, self.heads, self.head_dim)
        energy = torch.einsum("nqhd,nkhd->nhqk", [query, keys])
        if mask is not None:
            energy = energy.masked_fill(mask == 0, float("-1e20"))
        attention = torch.softmax(energy / (self.head_dim**0.5), dim=3)
        out = torch.einsum("nhql,nlhd->nqhd", [attention, values])
        result: Tensor = self.fc_out(out.reshape(n, query_len, self.heads * self.head_dim))
        return result


class EinsumTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word_embedding = nn.Embedding(19, 16)
        self.position_embedding = nn.Embedding(50, 16)
        self.trg_embedding = nn.Embedding(17, 16)
        self.encoder = EinsumAttention(16, 2)
        self.decoder = nn.ModuleList([EinsumAttention(16, 2) for _ in range(2)])
        self.cross = nn.ModuleList([EinsumAttention(16, 2) for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(16) for _ in range(5)])
        self.fc_out = nn.Linear(16, 17)

    def make_trg_mask(self, trg: Tensor) -> Tensor:
        n, trg_len = trg.shape
        return torch.tril(torch.ones((trg_len, trg_len))).expand(n, 1, trg_len, trg_len)

    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        src_mask = (src != PAD).unsqueeze(1).unsqueeze(2)
        trg_mask = self.make_trg_mask(trg)
        n, seq_length = src.shape
        positions = torch.arange(0, seq_length).expand(n, seq_length)
        enc = self.word_embedding(src) + self.position_embedding(positions)
        enc = self.norms[0](self.encoder(enc, enc, enc, src_mask) + enc)
        n, seq_length = trg.shape
        positions = torch.arange(0, seq_length).expand(n, seq_length)
        x = self.trg_embedding(trg) + self.position_embedding(positions)
        for i in range(2):
            x = self.norms[1 + i](self.decoder[i](x, x, x, trg_mask) + x)
            x = self.norms[3 + i](self.cross[i](enc, enc, x, src_mask) + x)
        out: Tensor = self.fc_out(x)
        return out


# ---- batch second, heads in the batch, log-probabilities ----------------------------------------


class BatchSecondAttention(nn.Module):
    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.q_proj, self.k_proj = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        tgt_len, bsz, embed_dim = query.size()
        src_len = key.size(0)
        q = self.q_proj(query) * self.head_dim**-0.5
        k, v = self.k_proj(key), self.v_proj(key)
        q = q.contiguous().view(tgt_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        k = k.contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        v = v.contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        weights = torch.bmm(q, k.transpose(1, 2))
        if attn_mask is not None:
            weights += attn_mask.unsqueeze(0)
        if key_padding_mask is not None:
            weights = weights.view(bsz, self.num_heads, tgt_len, src_len)
            weights = weights.masked_fill(key_padding_mask[:, None, None], float("-inf"))
            weights = weights.view(bsz * self.num_heads, tgt_len, src_len)
        attn = torch.bmm(F.softmax(weights, dim=-1), v)
        attn = attn.transpose(0, 1).contiguous().view(tgt_len, bsz, embed_dim)
        out: Tensor = self.out_proj(attn)
        return out


class BatchSecond(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.src_embed, self.tgt_embed = nn.Embedding(24, 8), nn.Embedding(20, 8)
        self.positions = nn.Embedding(48, 8)
        self.enc_attn = BatchSecondAttention(8, 2)
        self.self_attn = BatchSecondAttention(8, 2)
        self.cross_attn = BatchSecondAttention(8, 2)
        self.norms = nn.ModuleList([nn.LayerNorm(8) for _ in range(4)])
        self.project = nn.Linear(8, 20)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        padding = (src == PAD).t()
        x = self.src_embed(src) + self.positions(torch.arange(src.size(0)).unsqueeze(1))
        x = x + self.enc_attn(self.norms[0](x), self.norms[0](x), key_padding_mask=padding)
        steps = torch.arange(tgt.size(0))
        future = steps.unsqueeze(0) > steps.unsqueeze(1)
        mask = torch.where(future, torch.tensor(float("-inf")), torch.tensor(0.0))
        y = self.tgt_embed(tgt) + self.positions(steps.unsqueeze(1))
        z = self.norms[1](y)
        y = y + self.self_attn(z, z, attn_mask=mask)
        y = y + self.cross_attn(self.norms[2](y), x, key_padding_mask=padding)
        return F.log_softmax(self.project(self.norms[3](y)), dim=-1)


# ---- packed projections, one table for all ------------------------------------------------------


class PackedAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attn = (q @ k.transpose(-2, -1)) * (c // self.heads) ** -0.5
        attn = torch.where(mask, attn, torch.finfo(attn.dtype).min).softmax(dim=-1)
        out: Tensor = self.proj((attn @ v).transpose(1, 2).reshape(b, n, c))
        return out


class PackedCrossAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.proj = (nn.Linear(dim, n * dim) for n in (1, 2, 1))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        b, n, _ = x.shape
        q = self.q(x).view(b, n, self.heads, -1).transpose(1, 2)
        k, v = self.kv(memory).view(b, memory.size(1), 2, self.heads, -1).unbind(2)
        out = F.scaled_dot_product_attention(
            q, k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask
        )
        result: Tensor = self.proj(out.transpose(1, 2).flatten(2))
        return result


class TiedTables(nn.Module):
    causal: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(21, 12, padding_idx=PAD)
        self.pos = nn.Embedding(64, 12)
        self.encoder = PackedAttention(12, 2)
        self.decoder = nn.ModuleList([PackedAttention(12, 2) for _ in range(2)])
        self.cross = nn.ModuleList([PackedCrossAttention(12, 2) for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(12) for _ in range(5)])
        self.register_buffer("causal", torch.ones(64, 64, dtype=torch.bool).tril())

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        keep = (src != PAD)[:, None, None, :]
        x = self.shared(src) + self.pos.weight[: src.size(1)]
        x = self.norms[0](x + self.encoder(x, keep))
        t = tgt.size(1)
        y = self.shared(tgt) + self.pos.weight[:t]
        for i in range(2):
            y = self.norms[1 + i](y + self.decoder[i](y, self.causal[:t, :t]))
            y = self.norms[3 + i](y + self.cross[i](y, x, keep))
        return F.linear(y, self.shared.weight).log_softmax(-1)


# ---- batch second, functions of weights, one layer used twice, positions made in forward ---------


def positional_encoding(x: Tensor, num_features: int, max_len: int = 64) -> Tensor:
    p = torch.zeros((max_len, 1, num_features))
    x_ = torch.arange(max_len, dtype=torch.float32).reshape(-1, 1) / torch.pow(
        10000, torch.arange(0, num_features, 2, dtype=torch.float32) / num_features
    )
    p[:, 0, 0::2] = torch.sin(x_)
    p[:, 0, 1::2] = torch.cos(x_)
    return x + p[: x.shape[0]].to(x.device)


def in_projection_packed(
    q: Tensor, k: Tensor, w: Tensor, b: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    size = q.size(-1)
    if q is k:
        query, key, value = F.linear(q, w, b).chunk(3, dim=-1)
        return query, key, value
    w_q, w_kv = w.split([size, size * 2])
    b_q, b_kv = b.split([size, size * 2])
    key, value = F.linear(k, w_kv, b_kv).chunk(2, dim=-1)
    return F.linear(q, w_q, b_q), key, value


class FunctionalAttention(nn.Module):
    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.in_proj_weight = nn.Parameter(torch.randn(3 * embed_dim, embed_dim) / 4)
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim))
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(
        self, query: Tensor, key: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        tgt_len, bsz, embed_dim = query.shape
        src_len, _, _ = key.shape
        head_dim = embed_dim // self.num_heads
        q, k, v = in_projection_packed(query, key, self.in_proj_weight, self.in_proj_bias)
        q = q.contiguous().view(tgt_len, bsz * self.num_heads, head_dim).transpose(0, 1)
        k = k.contiguous().view(-1, bsz * self.num_heads, head_dim).transpose(0, 1)
        v = v.contiguous().view(-1, bsz * self.num_heads, head_dim).transpose(0, 1)
        key_padding_mask = (
            key_padding_mask.view(bsz, 1, 1, src_len)
            .expand(-1, self.num_heads, -1, -1)
            .reshape(bsz * self.num_heads, 1, src_len)
        )
        if attn_mask is None:
            mask = key_padding_mask
        else:
            mask = attn_mask.unsqueeze(0).logical_or(key_padding_mask)
        new_attn_mask = torch.zeros_like(mask, dtype=torch.float)
        new_attn_mask.masked_fill_(mask, float("-inf"))
        attn = torch.baddbmm(new_attn_mask, q / math.sqrt(head_dim), k.transpose(-2, -1))
        attn = F.softmax(attn, dim=-1)
        output = torch.bmm(attn, v).transpose(0, 1).contiguous().view(tgt_len, bsz, embed_dim)
        weights = attn.view(bsz, self.num_heads, tgt_len, src_len).sum(dim=1) / self.num_heads
        return self.out_proj(output), weights


class SharedLayer(nn.Module):
    """The same layer is every layer of the decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.src_embed, self.tgt_embed = nn.Embedding(18, 12), nn.Embedding(22, 12)
        self.encoder_attn = FunctionalAttention(12, 2)
        self.self_attn, self.cross_attn = FunctionalAttention(12, 2), FunctionalAttention(12, 2)
        self.linear1, self.linear2 = nn.Linear(12, 20), nn.Linear(20, 12)
        self.norms = nn.ModuleList([nn.LayerNorm(12) for _ in range(4)])
        self.out = nn.Linear(12, 22)

    def forward(self, src: Tensor, tgt: Tensor) -> tuple[Tensor, list[Tensor]]:
        src_padding, tgt_padding = (src == PAD).t(), (tgt == PAD).t()
        future = (torch.triu(torch.ones(len(tgt), len(tgt))) == 1).transpose(0, 1) == 0
        x = positional_encoding(self.src_embed(src), 12)
        memory = self.norms[0](x + self.encoder_attn(x, x, None, src_padding)[0])
        y, weights = positional_encoding(self.tgt_embed(tgt), 12), []
        for _ in range(2):
            y = self.norms[1](y + self.self_attn(y, y, future, tgt_padding)[0])
            attended, seen = self.cross_attn(y, memory, None, src_padding)
            y = self.norms[2](y + attended)
            y = self.norms[3](y + self.linear2(F.relu(self.linear1(y))))
            weights.append(seen)
        return self.out(y), weights


# ---- every head a module -------------------------------------------------------------------------


class OneHead(nn.Module):
    def __init__(self, dim_emb: int, dim_out: int) -> None:
        super().__init__()
        self.dim_out = dim_out
        self.q_net = nn.Linear(dim_emb, dim_out, bias=False)
        self.k_net = nn.Linear(dim_emb, dim_out, bias=False)
        self.v_net = nn.Linear(dim_emb, dim_out, bias=False)

    def forward(self, x_q: Tensor, x_k: Tensor, x_v: Tensor, mask_mat: Tensor | None) -> Tensor:
        q, k, v = self.q_net(x_q), self.k_net(x_k), self.v_net(x_v)
        s = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.dim_out)
        if mask_mat is not None:
            s = torch.masked_fill(s, mask_mat, float("-inf"))
        return torch.matmul(F.softmax(s, dim=-1), v).type_as(x_q)


class HeadList(nn.Module):
    def __init__(self, dim_emb: int, dim_head: int, head_num: int) -> None:
        super().__init__()
        self.attention_blocks = nn.ModuleList()
        for _ in range(head_num):
            self.attention_blocks.append(OneHead(dim_emb, dim_head))
        self.w_net = nn.Linear(dim_head * head_num, dim_emb, bias=False)

    def forward(
        self, x_q: Tensor, x_k: Tensor, x_v: Tensor, mask_mat: Tensor | None = None
    ) -> Tensor:
        heads = [attention(x_q, x_k, x_v, mask_mat) for attention in self.attention_blocks]
        data: Tensor = self.w_net(torch.concat(heads, dim=-1))
        return data


class HeadsInList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_embedding, self.output_embedding = nn.Embedding(21, 10), nn.Embedding(21, 10)
        self.positions = nn.Parameter(torch.randn(64, 10))
        self.encoder = HeadList(10, 4, 3)
        self.decoder, self.cross = HeadList(10, 4, 3), HeadList(10, 4, 3)
        self.feed_forward = nn.Sequential(nn.Linear(10, 20), nn.SiLU(), nn.Linear(20, 10))
        self.norms = nn.ModuleList([RMSNorm(10) for _ in range(4)])
        self.linear = nn.Linear(10, 21)

    def forward(self, input_seq: Tensor, output_seq: Tensor, mask_mat: Tensor) -> Tensor:
        x = self.input_embedding(input_seq) + self.positions[: input_seq.size(1)]
        x = self.norms[0](x + self.encoder(x, x, x))
        y = self.output_embedding(output_seq) + self.positions[: output_seq.size(1)]
        y = self.norms[1](y + self.decoder(y, y, y, mask_mat))
        y = self.norms[2](y + self.cross(y, x, x))
        y = self.norms[3](y + self.feed_forward(y))
        out: Tensor = self.linear(y)
        return out


def with_mask_of_each_row(model: nn.Module, src: Tensor, tgt: Tensor) -> Tensor:
    length = tgt.size(1)
    mask = torch.ones(length, length, dtype=torch.bool).triu(diagonal=1)
    out: Tensor = model(src, tgt, mask.repeat(tgt.size(0), 1, 1))
    return out


# ---- attention to the last four tokens, masks and positions from the shapes of values ------------


class Windowed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.cross = SmallEncoder(20, 8), CrossAttention(8, 2)
        self.embed, self.positions = nn.Embedding(19, 8), nn.Embedding(64, 8)
        self.qkv = nn.ModuleList([nn.Linear(8, 24) for _ in range(2)])
        self.alphas = nn.Parameter(torch.ones(2))
        self.out = nn.Linear(8, 19)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        memory = self.encoder(src)
        position_ids = torch.ones_like(tgt).cumsum(dim=-1) - 1
        x = self.embed(tgt) + self.positions(position_ids)
        for i, layer in enumerate(self.qkv):
            q, k, v = layer(x).tensor_split(3, dim=-1)
            scores = q @ k.transpose(-2, -1) / 8**0.5
            seen = torch.ones_like(scores, dtype=torch.bool).tril()
            seen &= torch.ones_like(seen).triu(diagonal=-3)
            scores[~seen] = float("-inf")
            x = x + self.alphas[i] * (scores.softmax(dim=-1) @ v)
        x = x + self.cross(x, memory, src != PAD)
        out: Tensor = self.out(x)
        return out


ATTENTION_CASES = (
    Case("einsum", lambda: drawn(EinsumTransformer, 8), (SOURCE,), pads_source=True),
    Case(
        "batch_second",
        lambda: drawn(BatchSecond, 4),
        (SOURCE_BATCH_SECOND,),
        TARGET_BATCH_SECOND,
        pads_source=True,
        state=("keys and values with the heads in the batch, (B*H, T, D)",),
    ),
    Case("tied_tables", lambda: drawn(TiedTables, 3), (SOURCE,), pads_source=True),
    Case(
        "shared_layer",
        lambda: drawn(SharedLayer, 3, 0.7),
        (SOURCE_BATCH_SECOND,),
        TARGET_BATCH_SECOND,
        pads_source=True,
        state=("keys and values of each use of the layer", "whether a target id is PAD"),
    ),
    Case(
        "heads_in_list",
        lambda: drawn(HeadsInList, 3),
        (SOURCE,),
        forward=with_mask_of_each_row,
        state=("keys and values of every head",),
    ),
    Case(
        "windowed",
        lambda: drawn(Windowed, 6),
        (SOURCE,),
        pads_source=True,
        state=("keys and values of the last four tokens, or of all",),
    ),
)
