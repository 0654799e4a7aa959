"""Of no repository: weights packed, transposed, of three axes; a config expresses most of them."""

# mypy: no-warn-return-any

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.export.incremental.own_case import PAD
from tests.export.recognition.styles.style import DECODER, Style, each_layer, trained

# ---- packed projections, scaled_dot_product_attention --------------------------------------------


class PackedAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, keep: Tensor | None) -> Tensor:
        b, t, e = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (y.view(b, t, self.heads, e // self.heads).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep, is_causal=keep is None)
        return self.proj(y.transpose(1, 2).reshape(b, t, e))


class PackedCrossAttention(nn.Module):
    """The projection to keys and values has, for each head, its keys and then its values."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.proj = (
            nn.Linear(dim, dim),
            nn.Linear(dim, 2 * dim),
            nn.Linear(dim, dim),
        )

    def forward(self, x: Tensor, memory: Tensor, keep: Tensor) -> Tensor:
        b, t, e = x.shape
        size = e // self.heads
        q = self.q(x).view(b, t, self.heads, size).transpose(1, 2)
        kv = self.kv(memory).view(b, memory.shape[1], self.heads, 2 * size).transpose(1, 2)
        k, v = kv.split(size, dim=-1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return self.proj(y.transpose(1, 2).reshape(b, t, e))


class PackedLayer(nn.Module):
    def __init__(self, hidden: int, decoder: bool, eps: float) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(32, eps=eps), nn.LayerNorm(32, eps=eps)
        self.attn = PackedAttention(32, 4)
        self.fc, self.out = nn.Linear(32, hidden), nn.Linear(hidden, 32)
        self.act = nn.GELU(approximate="tanh")
        if decoder:
            self.ln_cross, self.cross = nn.LayerNorm(32, eps=eps), PackedCrossAttention(32, 4)

    def forward(
        self, x: Tensor, keep: Tensor | None, memory: Tensor | None, source_keep: Tensor | None
    ) -> Tensor:
        x = x + self.attn(self.ln1(x), keep)
        if memory is not None:
            x = x + self.cross(self.ln_cross(x), memory, source_keep)
        return x + self.out(self.act(self.fc(self.ln2(x))))


class Packed(nn.Module):
    """Three encoder layers, one decoder layer of another d_ff, no last norm of the decoder."""

    def __init__(self, decoder_eps: float) -> None:
        super().__init__()
        self.src, self.tgt = nn.Embedding(47, 32), nn.Embedding(55, 32)
        self.src_pos, self.tgt_pos = nn.Embedding(64, 32), nn.Embedding(64, 32)
        self.enc = nn.ModuleList([PackedLayer(58, False, 1e-6) for _ in range(3)])
        self.enc_norm = nn.LayerNorm(32, eps=1e-6)
        self.dec = nn.ModuleList([PackedLayer(86, True, decoder_eps)])
        self.head = nn.Linear(32, 55)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        keep = (src != PAD)[:, None, None, :]
        x = self.src(src) + self.src_pos.weight[: src.shape[1]]
        for layer in self.enc:
            x = layer(x, keep, None, None)
        x = self.enc_norm(x)
        y = self.tgt(tgt) + self.tgt_pos.weight[: tgt.shape[1]]
        for layer in self.dec:
            y = layer(y, None, x, keep)
        return self.head(y)


# ---- weights of three axes -----------------------------------------------------------------------


class EinsumAttention(nn.Module):
    def __init__(self, d_model: int, heads: int, d_k: int) -> None:
        super().__init__()
        self.w_q = nn.Parameter(torch.randn(heads, d_model, d_k) / d_model**0.5)
        self.w_k = nn.Parameter(torch.randn(heads, d_model, d_k) / d_model**0.5)
        self.w_v = nn.Parameter(torch.randn(heads, d_model, d_k) / d_model**0.5)
        self.w_o = nn.Parameter(torch.randn(heads, d_k, d_model) / (heads * d_k) ** 0.5)
        self.b_o = nn.Parameter(torch.zeros(d_model))
        self.d_k = d_k

    def forward(self, x: Tensor, m: Tensor, bias: Tensor) -> Tensor:
        q = torch.einsum("btd,hdk->bhtk", x, self.w_q) * self.d_k**-0.5
        k = torch.einsum("bsd,hdk->bhsk", m, self.w_k)
        v = torch.einsum("bsd,hdk->bhsk", m, self.w_v)
        weights = torch.softmax(torch.einsum("bhtk,bhsk->bhts", q, k) + bias, -1)
        context = torch.einsum("bhts,bhsk->bhtk", weights, v)
        return torch.einsum("bhtk,hkd->btd", context, self.w_o) + self.b_o


class EinsumLayer(nn.Module):
    """x + norm(f(x))."""

    def __init__(self, decoder: bool) -> None:
        super().__init__()
        self.attention = EinsumAttention(32, 2, 14)
        self.cross_attention = EinsumAttention(32, 2, 14) if decoder else None
        self.w_in = nn.Parameter(torch.randn(32, 68) / 32**0.5)
        self.w_out = nn.Parameter(torch.randn(68, 32) / 68**0.5)
        self.b_in, self.b_out = nn.Parameter(torch.zeros(68)), nn.Parameter(torch.zeros(32))
        self.norms = nn.ModuleList([nn.LayerNorm(32) for _ in range(3 if decoder else 2)])

    def forward(self, x: Tensor, bias: Tensor, memory: Tensor, memory_bias: Tensor) -> Tensor:
        x = x + self.norms[0](self.attention(x, x, bias))
        if self.cross_attention is not None:
            x = x + self.norms[1](self.cross_attention(x, memory, memory_bias))
        hidden = torch.relu(torch.einsum("btd,df->btf", x, self.w_in) + self.b_in)
        return x + self.norms[-1](torch.einsum("btf,fd->btd", hidden, self.w_out) + self.b_out)


class EinsumTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 32)
        self.encoder = nn.ModuleList([EinsumLayer(False) for _ in range(2)])
        self.decoder = nn.ModuleList([EinsumLayer(True) for _ in range(2)])

    def embed(self, ids: Tensor) -> Tensor:
        half = torch.arange(16) / 16
        angles = torch.arange(ids.shape[1])[:, None] * torch.exp(-math.log(10000) * half)
        return self.table(ids) * 32**0.5 + torch.cat([angles.sin(), angles.cos()], -1)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        source_bias = torch.where(src == PAD, -1e9, 0.0)[:, None, None]
        steps = torch.arange(tgt.shape[1])
        bias = torch.where(steps[None] > steps[:, None], -1e9, 0.0)
        memory = self.embed(src)
        for layer in self.encoder:
            memory = layer(memory, source_bias, memory, source_bias)
        x = self.embed(tgt)
        for layer in self.decoder:
            x = layer(x, bias, memory, source_bias)
        return x @ self.table.weight.T


# ---- weights (in, out), as in GPT-2 --------------------------------------------------------------


class Conv1D(nn.Module):
    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight, self.bias = (
            nn.Parameter(torch.randn(nx, nf) * 0.1),
            nn.Parameter(torch.zeros(nf)),
        )

    def forward(self, x: Tensor) -> Tensor:
        size_out = (*x.size()[:-1], self.nf)
        x = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return x.view(size_out)


def new_gelu(x: Tensor) -> Tensor:
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


class Conv1DAttention(nn.Module):
    bias: Tensor

    def __init__(self, decoder: bool, cross: bool = False) -> None:
        super().__init__()
        n = 64
        self.register_buffer("bias", torch.tril(torch.ones(n, n, dtype=torch.bool))[None, None])
        self.decoder, self.split_size, self.num_heads, self.head_dim = decoder, 32, 4, 8
        if cross:
            self.q_attn = Conv1D(32, 32)
        self.c_attn = Conv1D((2 if cross else 3) * 32, 32)
        self.c_proj = Conv1D(32, 32)

    def heads(self, tensor: Tensor) -> Tensor:
        return tensor.view((*tensor.size()[:-1], self.num_heads, self.head_dim)).permute(0, 2, 1, 3)

    def forward(self, hidden: Tensor, memory: Tensor | None, mask: Tensor | None) -> Tensor:
        if memory is not None:
            query = self.q_attn(hidden)
            key, value = self.c_attn(memory).split(self.split_size, dim=2)
        else:
            query, key, value = self.c_attn(hidden).split(self.split_size, dim=2)
        query, key, value = self.heads(query), self.heads(key), self.heads(value)
        weights = torch.matmul(query, key.transpose(-1, -2))
        weights = weights / torch.full([], value.size(-1) ** 0.5, dtype=weights.dtype)
        if self.decoder and memory is None:
            query_length, key_length = query.size(-2), key.size(-2)
            causal = self.bias[:, :, key_length - query_length : key_length, :key_length]
            least = torch.full([], torch.finfo(weights.dtype).min)
            weights = torch.where(causal, weights, least)
        if mask is not None:
            weights = weights + mask
        context = torch.matmul(F.softmax(weights, dim=-1), value).permute(0, 2, 1, 3).contiguous()
        return self.c_proj(context.view((*context.size()[:-2], 32)))


class Conv1DBlock(nn.Module):
    def __init__(self, decoder: bool) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(32, eps=1e-5), Conv1DAttention(decoder)
        if decoder:
            self.crossattention = Conv1DAttention(decoder, cross=True)
            self.ln_cross_attn = nn.LayerNorm(32, eps=1e-5)
        self.ln_2, self.c_fc, self.c_proj = (
            nn.LayerNorm(32, eps=1e-5),
            Conv1D(82, 32),
            Conv1D(32, 82),
        )

    def forward(self, x: Tensor, mask: Tensor | None, memory: Tensor | None, own: bool) -> Tensor:
        x = self.attn(self.ln_1(x), None, mask if own else None) + x
        if memory is not None:
            x = x + self.crossattention(self.ln_cross_attn(x), memory, mask)
        return x + self.c_proj(new_gelu(self.c_fc(self.ln_2(x))))


class Conv1DTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(58, 32), nn.Embedding(64, 32)
        self.encoder = nn.ModuleList([Conv1DBlock(False) for _ in range(2)])
        self.h = nn.ModuleList([Conv1DBlock(True) for _ in range(2)])
        self.ln_e, self.ln_f = nn.LayerNorm(32), nn.LayerNorm(32)
        self.lm_head = nn.Linear(32, 58, bias=False)
        self.lm_head.weight = self.wte.weight

    def embed(self, ids: Tensor) -> Tensor:
        return self.wte(ids) + self.wpe(torch.arange(ids.size(-1)).unsqueeze(0))

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        mask = (1.0 - (src != PAD)[:, None, None, :].float()) * torch.finfo(torch.float32).min
        x = self.embed(src)
        for block in self.encoder:
            x = block(x, mask, None, True)
        memory = self.ln_e(x)
        y = self.embed(tgt)
        for block in self.h:
            y = block(y, mask, memory, False)
        return self.lm_head(self.ln_f(y))


# ---- one layer many times, a scaled residual stream ----------------------------------------------


class SharedLayer(nn.Module):
    """norm(alpha x + f(x)); its attentions keep heads before batches."""

    def __init__(self, alpha: float, decoder: bool) -> None:
        super().__init__()
        self.alpha = alpha
        self.query, self.key = nn.Linear(32, 32), nn.Linear(32, 32)
        self.value, self.mix = nn.Linear(32, 32), nn.Linear(32, 32)
        self.norm_a, self.norm_b = nn.LayerNorm(32, eps=1e-12), nn.LayerNorm(32, eps=1e-12)
        self.inner, self.outer = nn.Linear(32, 62), nn.Linear(62, 32)
        if decoder:
            self.source = nn.ModuleList([nn.Linear(32, 32) for _ in range(4)])
            self.norm_c = nn.LayerNorm(32, eps=1e-12)

    @staticmethod
    def attend(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        q, k, v = (torch.stack(y.chunk(4, dim=-1)) for y in (q, k, v))  # (H, B, T, D)
        scores = q @ k.transpose(-1, -2) / 8**0.5
        weights = torch.where(hidden, torch.tensor(-1e30), scores).softmax(-1)
        return torch.cat((weights @ v).unbind(0), dim=-1)

    def forward(self, x: Tensor, hidden: Tensor, memory: Tensor | None, absent: Tensor) -> Tensor:
        y = self.mix(self.attend(self.query(x), self.key(x), self.value(x), hidden))
        x = self.norm_a(x * self.alpha + y)
        if memory is not None:
            q, k, v, o = self.source
            x = self.norm_c(x * self.alpha + o(self.attend(q(x), k(memory), v(memory), absent)))
        return self.norm_b(self.alpha * x + self.outer(F.gelu(self.inner(x))))


class SharedLayers(nn.Module):
    """One encoder layer applied three times, one decoder layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.words_norm = nn.Embedding(53, 32), nn.LayerNorm(32, eps=1e-12)
        self.places = nn.Parameter(torch.randn(64, 32) * 0.3)
        self.encoder, self.decoder = SharedLayer(1.3, False), SharedLayer(1.3, True)
        self.bias = nn.Parameter(torch.zeros(53))

    def embed(self, ids: Tensor) -> Tensor:
        return self.words_norm(self.words(ids) + self.places[: ids.size(1)])

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        absent = (src == PAD).unsqueeze(1)
        x = self.embed(src)
        for _ in range(3):
            x = self.encoder(x, absent, None, absent)
        later = torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool).triu(1)
        y = self.embed(tgt)
        for _ in range(2):
            y = self.decoder(y, later, x, absent)
        return F.linear(y, self.words.weight, self.bias)


OWN_KIN = (
    Style(
        "packed",
        lambda: trained(lambda: Packed(1e-6), 111, 1.0),
        "queries, keys and values in one matrix, keys and values of each head together; three "
        "encoder layers and one decoder layer of another d_ff; gelu by tanh",
        tables=("src_pos.weight", "tgt_pos.weight"),
        changes={
            **each_layer("eps in encoder", "enc.{}.ln2.eps", 1e-3, 3),
            **each_layer("gelu's other form", "enc.{}.act", nn.GELU(), 3),
            **each_layer("half the heads in encoder", "enc.{}.attn.heads", 2, 3),
            "half the heads in cross-attention": {"dec.0.cross.heads": 2},
            "eps in decoder": {"dec.0.ln_cross.eps": 1e-3},
        },
    ),
    Style(
        "two_epsilons",
        lambda: trained(lambda: Packed(1e-2), 112, 1.0),
        "as packed, but norms of the decoder have another epsilon",
        expected=DECODER,  # norms of the encoder and of the decoder differ in their epsilon
        changes=each_layer("half the heads in encoder", "enc.{}.attn.heads", 2, 3),
    ),
    Style(
        "einsum_weights",
        lambda: trained(EinsumTransformer, 73, 0.3),
        "weights (H, E, D) by einsum; x + norm(f(x)); sines before cosines, computed in each call; "
        "masks are added; feed-forward without nn.Linear",
        changes={
            **each_layer("eps in encoder", "encoder.{}.norms.0.eps", 1e-3),
            **each_layer("eps in decoder", "decoder.{}.norms.1.eps", 1e-3),
            **each_layer("scale of scores", "decoder.{}.attention.d_k", 8),
            **each_layer("no norm in decoder", "decoder.{}.norms.2", nn.Identity()),
        },
    ),
    Style(
        "conv1d",
        lambda: trained(Conv1DTransformer, 74, 0.3),
        "weights (in, out) by addmm, packed; gelu by its formula; the causal mask is a buffer of "
        "64 rows; all tables are one",
        tables=("wpe.weight",),
        changes={
            **each_layer("eps in encoder", "encoder.{}.ln_1.eps", 1e-3),
            **each_layer("eps in decoder", "h.{}.ln_cross_attn.eps", 1e-3),
            **each_layer("no causal mask", "h.{}.attn.decoder", False),
            "all norms left out in encoder": {
                "encoder.0.ln_1": nn.Identity(),
                "encoder.1.ln_1": nn.Identity(),
            },
        },
    ),
    Style(
        "shared_layers",
        lambda: trained(SharedLayers, 74, 0.2, 1.3),
        "one encoder layer applied three times, one decoder layer twice; the residual stream times "
        "1.3; heads as the first axis; a norm of the embeddings; tied with a bias",
        tables=("places",),
        changes={
            "residual scale in encoder": {"encoder.alpha": 1.1},
            "residual scale in decoder": {"decoder.alpha": 1.0},
            "residual scale": {"encoder.alpha": 0.9, "decoder.alpha": 0.9},
            "eps in encoder": {"encoder.norm_a.eps": 1e-3},
            "eps in decoder": {"decoder.norm_c.eps": 1e-3},
            "eps of the embeddings": {"words_norm.eps": 1e-2},
        },
    ),
)
