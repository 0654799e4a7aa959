"""In the style of labml, whose tensors are (T, B, E), and of older toolkits, batch second too."""

# mypy: no-warn-return-any

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.export.incremental.own_case import PAD
from tests.export.recognition.styles.style import (
    SOURCE_BATCH_SECOND,
    TARGET_BATCH_SECOND,
    Style,
    each_layer,
    trained,
)

# ---- labml ---------------------------------------------------------------------------------------


class PrepareForMultiHeadAttention(nn.Module):
    def __init__(self, d_model: int, heads: int, d_k: int, bias: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(d_model, heads * d_k, bias=bias)
        self.heads, self.d_k = heads, d_k

    def forward(self, x: Tensor) -> Tensor:
        head_shape = x.shape[:-1]
        return self.linear(x).view(*head_shape, self.heads, self.d_k)


class MultiHeadAttention(nn.Module):
    def __init__(self, heads: int, d_model: int, bias: bool = True) -> None:
        super().__init__()
        self.d_k, self.heads = d_model // heads, heads
        self.query = PrepareForMultiHeadAttention(d_model, heads, self.d_k, bias=bias)
        self.key = PrepareForMultiHeadAttention(d_model, heads, self.d_k, bias=bias)
        self.value = PrepareForMultiHeadAttention(d_model, heads, self.d_k, bias=True)
        self.softmax = nn.Softmax(dim=1)
        self.output = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(0.1)
        self.scale = 1 / math.sqrt(self.d_k)

    def get_scores(self, query: Tensor, key: Tensor) -> Tensor:
        return torch.einsum("ibhd,jbhd->ijbh", query, key)

    def prepare_mask(self, mask: Tensor) -> Tensor:
        return mask.unsqueeze(-1)

    def forward(self, *, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        seq_len, batch_size, _ = query.shape
        query, key, value = self.query(query), self.key(key), self.value(value)
        scores = self.get_scores(query, key)
        scores *= self.scale
        scores = scores.masked_fill(self.prepare_mask(mask) == 0, float("-inf"))
        attn = self.dropout(self.softmax(scores))
        x = torch.einsum("ijbh,jbhd->ibhd", attn, value)
        return self.output(x.reshape(seq_len, batch_size, -1))


class FeedForward(nn.Module):
    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.layer1, self.layer2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.dropout, self.activation = nn.Dropout(0.1), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer2(self.dropout(self.activation(self.layer1(x))))


class TransformerLayer(nn.Module):
    def __init__(self, d_model: int, decoder: bool) -> None:
        super().__init__()
        self.self_attn = MultiHeadAttention(4, d_model)
        self.src_attn = MultiHeadAttention(4, d_model) if decoder else None
        self.feed_forward = FeedForward(d_model, 54)
        self.dropout = nn.Dropout(0.1)
        self.norm_self_attn = nn.LayerNorm([d_model])
        if decoder:
            self.norm_src_attn = nn.LayerNorm([d_model])
        self.norm_ff = nn.LayerNorm([d_model])

    def forward(
        self,
        *,
        x: Tensor,
        mask: Tensor,
        src: Tensor | None = None,
        src_mask: Tensor | None = None,
    ) -> Tensor:
        z = self.norm_self_attn(x)
        x = x + self.dropout(self.self_attn(query=z, key=z, value=z, mask=mask))
        if self.src_attn is not None:
            z = self.norm_src_attn(x)
            x = x + self.dropout(self.src_attn(query=z, key=src, value=src, mask=src_mask))
        z = self.norm_ff(x)
        return x + self.dropout(self.feed_forward(z))


class EmbeddingsWithPositionalEncoding(nn.Module):
    positional_encodings: Tensor

    def __init__(self, d_model: int, n_vocab: int, max_len: int = 88) -> None:
        super().__init__()
        self.linear = nn.Embedding(n_vocab, d_model)
        self.d_model = d_model
        encodings = torch.zeros(max_len, d_model)
        position = torch.arange(0, max_len, dtype=torch.float32).unsqueeze(1)
        two_i = torch.arange(0, d_model, 2, dtype=torch.float32)
        div_term = torch.exp(two_i * -(math.log(10000.0) / d_model))
        encodings[:, 0::2] = torch.sin(position * div_term)
        encodings[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer(
            "positional_encodings", encodings.unsqueeze(1).requires_grad_(False), False
        )

    def forward(self, x: Tensor) -> Tensor:
        pe = self.positional_encodings[: x.shape[0]].requires_grad_(False)
        return self.linear(x) * math.sqrt(self.d_model) + pe


class EmbeddingsWithLearnedPositionalEncoding(nn.Module):
    def __init__(self, d_model: int, n_vocab: int, max_len: int = 78) -> None:
        super().__init__()
        self.linear = nn.Embedding(n_vocab, d_model)
        self.d_model = d_model
        self.positional_encodings = nn.Parameter(torch.zeros(max_len, 1, d_model))

    def forward(self, x: Tensor) -> Tensor:
        pe = self.positional_encodings[: x.shape[0]]
        return self.linear(x) * math.sqrt(self.d_model) + pe


class LabmlStack(nn.Module):
    def __init__(self, decoder: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([TransformerLayer(32, decoder) for _ in range(2)])
        self.norm = nn.LayerNorm([32])


class LabmlTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = LabmlStack(False), LabmlStack(True)
        self.src_embed = EmbeddingsWithPositionalEncoding(32, 46)
        self.tgt_embed = EmbeddingsWithLearnedPositionalEncoding(32, 53)
        self.generator = nn.Linear(32, 53)

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor, tgt_mask: Tensor) -> Tensor:
        x = self.src_embed(src)
        for layer in self.encoder.layers:
            x = layer(x=x, mask=src_mask)
        memory = self.encoder.norm(x)
        x = self.tgt_embed(tgt)
        for layer in self.decoder.layers:
            x = layer(x=x, mask=tgt_mask, src=memory, src_mask=src_mask)
        return self.generator(self.decoder.norm(x))


def subsequent_mask(seq_len: int) -> Tensor:
    mask = torch.tril(torch.ones(seq_len, seq_len)).to(torch.bool)
    return mask.unsqueeze(-1)


def with_source_mask(model: nn.Module, src: Tensor, tgt: Tensor) -> Tensor:
    src_mask = (src != PAD).unsqueeze(0)  # (1, S, B): of the keys
    return model(src, tgt, src_mask, subsequent_mask(len(tgt)))


# ---- heads in the batch, as in older toolkits ----------------------------------------------------


class BatchSecondAttention(nn.Module):
    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.k_proj, self.v_proj = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
    ) -> Tensor:
        tgt_len, bsz, embed_dim = query.size()
        q, k, v = self.q_proj(query) * self.scaling, self.k_proj(key), self.v_proj(key)
        q = q.contiguous().view(tgt_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        k = k.contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        v = v.contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        src_len = k.size(1)
        attn_weights = torch.bmm(q, k.transpose(1, 2))
        if attn_mask is not None:
            attn_weights += attn_mask.unsqueeze(0)
        if key_padding_mask is not None:
            attn_weights = attn_weights.view(bsz, self.num_heads, tgt_len, src_len)
            hidden = key_padding_mask.unsqueeze(1).unsqueeze(2).to(torch.bool)
            attn_weights = attn_weights.masked_fill(hidden, float("-inf"))
            attn_weights = attn_weights.view(bsz * self.num_heads, tgt_len, src_len)
        attn = torch.bmm(F.softmax(attn_weights, dim=-1), v)
        return self.out_proj(attn.transpose(0, 1).contiguous().view(tgt_len, bsz, embed_dim))


class ToolkitLayer(nn.Module):
    def __init__(self, embed_dim: int, decoder: bool, normalize_before: bool) -> None:
        super().__init__()
        self.self_attn = BatchSecondAttention(embed_dim, 4)
        self.self_attn_layer_norm = nn.LayerNorm(embed_dim)
        if decoder:
            self.encoder_attn = BatchSecondAttention(embed_dim, 4)
            self.encoder_attn_layer_norm = nn.LayerNorm(embed_dim)
        hidden = 60 if decoder else 74
        self.fc1, self.fc2 = nn.Linear(embed_dim, hidden), nn.Linear(hidden, embed_dim)
        self.final_layer_norm = nn.LayerNorm(embed_dim)
        self.normalize_before = normalize_before

    def maybe_layer_norm(self, norm: nn.Module, x: Tensor, before: bool) -> Tensor:
        return norm(x) if before == self.normalize_before else x

    def forward(
        self,
        x: Tensor,
        padding: Tensor,
        self_attn_mask: Tensor | None = None,
        encoder_out: Tensor | None = None,
    ) -> Tensor:
        residual = x
        x = self.maybe_layer_norm(self.self_attn_layer_norm, x, before=True)
        own_padding = padding if encoder_out is None else None
        x = residual + self.self_attn(x, x, own_padding, self_attn_mask)
        x = self.maybe_layer_norm(self.self_attn_layer_norm, x, before=False)
        if encoder_out is not None:
            residual = x
            x = self.maybe_layer_norm(self.encoder_attn_layer_norm, x, before=True)
            x = residual + self.encoder_attn(x, encoder_out, padding)
            x = self.maybe_layer_norm(self.encoder_attn_layer_norm, x, before=False)
        residual = x
        x = self.maybe_layer_norm(self.final_layer_norm, x, before=True)
        x = residual + self.fc2(F.relu(self.fc1(x)))
        return self.maybe_layer_norm(self.final_layer_norm, x, before=False)


class ToolkitModel(nn.Module):
    """Ids are (B, T), as tables of positions are; layers have (T, B, E)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_scale = math.sqrt(32)
        self.encoder_embed, self.decoder_embed = nn.Embedding(57, 32), nn.Embedding(45, 32)
        self.encoder_layers = nn.ModuleList([ToolkitLayer(32, False, False) for _ in range(2)])
        self.decoder_layers = nn.ModuleList([ToolkitLayer(32, True, True) for _ in range(2)])
        self.decoder_norm = nn.LayerNorm(32)
        half = 16
        emb = torch.exp(torch.arange(half).float() * -(math.log(10000) / (half - 1)))
        emb = torch.arange(84).float().unsqueeze(1) * emb.unsqueeze(0)
        self.weights = torch.cat([torch.sin(emb), torch.cos(emb)], dim=1)
        self.register_buffer("_float_tensor", torch.zeros(1))

    def embed(self, table: nn.Module, ids: Tensor) -> Tensor:
        positions = torch.arange(PAD + 1, ids.size(1) + PAD + 1)
        x = self.embed_scale * table(ids)
        x = x + self.weights.index_select(0, positions).unsqueeze(0)
        return x.transpose(0, 1)

    def buffered_future_mask(self, dim: int) -> Tensor:
        return torch.triu(torch.full((dim, dim), float("-inf")), 1)

    def forward(self, src_tokens: Tensor, prev_output_tokens: Tensor) -> tuple[Tensor, None]:
        padding = src_tokens.eq(PAD)
        x = self.embed(self.encoder_embed, src_tokens)
        for layer in self.encoder_layers:
            x = layer(x, padding)
        y = self.embed(self.decoder_embed, prev_output_tokens)
        mask = self.buffered_future_mask(y.size(0))
        for layer in self.decoder_layers:
            y = layer(y, padding, mask, x)
        y = self.decoder_norm(y).transpose(0, 1)
        return F.linear(y, self.decoder_embed.weight), None


SEQUENCE_FIRST = (
    Style(
        "labml",
        lambda: trained(LabmlTransformer, 61, 0.4),
        "(T, B, E); heads stay where they are; softmax over axis 1; learned positions after",
        inputs=(SOURCE_BATCH_SECOND,),
        target=TARGET_BATCH_SECOND,
        forward=with_source_mask,
        tables=("src_embed.positional_encodings", "tgt_embed.positional_encodings"),
        changes={
            **each_layer("eps in encoder", "encoder.layers.{}.norm_ff.eps", 1e-2),
            **each_layer("eps in decoder", "decoder.layers.{}.norm_src_attn.eps", 1e-2),
            **each_layer("scale of scores in encoder", "encoder.layers.{}.self_attn.scale", 0.5),
            **each_layer("scale of scores in decoder", "decoder.layers.{}.src_attn.scale", 0.25),
            **each_layer("gelu in decoder", "decoder.layers.{}.feed_forward.activation", nn.GELU()),
            **each_layer("no cross-attention", "decoder.layers.{}.src_attn", None),
            "scale of the source": {"src_embed.d_model": 1},
            "no final norm in decoder": {"decoder.norm": nn.Identity()},
        },
    ),
    Style(
        "toolkit",
        lambda: trained(ToolkitModel, 66, 0.3, 1.3),
        "heads in the batch (B*H, T, D); post-norm encoder, pre-norm decoder of another d_ff; "
        "positions from one, sines before cosines; output tied",
        tables=("weights",),
        changes={
            **each_layer("pre-norm in encoder", "encoder_layers.{}.normalize_before", True),
            **each_layer("post-norm in decoder", "decoder_layers.{}.normalize_before", False),
            **each_layer("eps in encoder", "encoder_layers.{}.final_layer_norm.eps", 1e-3),
            **each_layer("eps in decoder", "decoder_layers.{}.encoder_attn_layer_norm.eps", 1e-2),
            **each_layer("scale of scores in encoder", "encoder_layers.{}.self_attn.scaling", 0.5),
            **each_layer("scale of scores in decoder", "decoder_layers.{}.self_attn.scaling", 0.25),
            "scale": {"embed_scale": 1.0},
            "no final norm in decoder": {"decoder_norm": nn.Identity()},
        },
    ),
)
