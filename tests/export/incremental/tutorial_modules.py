"""Transformers as tutorials write them: masks in and outside of `forward`, each with its views."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.export.incremental.own_case import PAD, Case, drawn
from tfexport.export import Input

SOURCE = Input("input_ids", "int64", ("batch", "source_length"))
SOURCE_BATCH_SECOND = Input("input_ids", "int64", ("source_length", "batch"))
TARGET_BATCH_SECOND = Input("target", "int64", ("target_length", "batch"))


# ---- nn.Transformer, batch second, masks made outside -------------------------------------------


class PositionalEncoding(nn.Module):
    pos_embedding: Tensor

    def __init__(self, emb_size: int, dropout: float, maxlen: int = 50) -> None:
        super().__init__()
        den = torch.exp(-torch.arange(0, emb_size, 2) * math.log(10000) / emb_size)
        pos = torch.arange(0, maxlen).reshape(maxlen, 1)
        pos_embedding = torch.zeros((maxlen, emb_size))
        pos_embedding[:, 0::2] = torch.sin(pos * den)
        pos_embedding[:, 1::2] = torch.cos(pos * den)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("pos_embedding", pos_embedding.unsqueeze(-2))

    def forward(self, token_embedding: Tensor) -> Tensor:
        out: Tensor = self.dropout(
            token_embedding + self.pos_embedding[: token_embedding.size(0), :]
        )
        return out


class Seq2SeqTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(16, 4, 2, 2, dim_feedforward=24, dropout=0.1)
        self.generator = nn.Linear(16, 23)
        self.src_tok_emb = nn.Embedding(19, 16)
        self.tgt_tok_emb = nn.Embedding(23, 16)
        self.positional_encoding = PositionalEncoding(16, dropout=0.1)

    def forward(
        self,
        src: Tensor,
        trg: Tensor,
        src_mask: Tensor,
        tgt_mask: Tensor,
        src_padding_mask: Tensor,
        tgt_padding_mask: Tensor,
    ) -> Tensor:
        src_emb = self.positional_encoding(self.src_tok_emb(src) * math.sqrt(16))
        tgt_emb = self.positional_encoding(self.tgt_tok_emb(trg) * math.sqrt(16))
        outs = self.transformer(
            src_emb,
            tgt_emb,
            src_mask,
            tgt_mask,
            None,
            src_padding_mask,
            tgt_padding_mask,
            src_padding_mask,
        )
        out: Tensor = self.generator(outs)
        return out


def generate_square_subsequent_mask(size: int) -> Tensor:
    mask = (torch.triu(torch.ones((size, size))) == 1).transpose(0, 1)
    return mask.float().masked_fill(mask == 0, float("-inf")).masked_fill(mask == 1, 0.0)


def with_masks(model: nn.Module, src: Tensor, tgt: Tensor) -> Tensor:
    tgt_mask = generate_square_subsequent_mask(tgt.shape[0])
    src_mask = torch.zeros((src.shape[0], src.shape[0])).type(torch.bool)
    src_padding = (src == PAD).transpose(0, 1)
    tgt_padding = (tgt == PAD).transpose(0, 1).float().masked_fill((tgt == PAD).T, float("-inf"))
    out: Tensor = model(src, tgt, src_mask, tgt_mask, src_padding, tgt_padding)
    return out


# ---- nn.Transformer, batch first, pre-norm, its own mask ----------------------------------------


class StockTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.src_embed = nn.Embedding(17, 12)
        self.tgt_embed = nn.Embedding(21, 12)
        self.pos_embed = nn.Parameter(torch.randn(1, 64, 12))
        self.transformer = nn.Transformer(
            12, 3, 1, 2, 20, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.fc = nn.Linear(12, 21)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        tgt_mask = nn.Transformer.generate_square_subsequent_mask(tgt.size(1))
        src_emb = self.src_embed(src) + self.pos_embed[:, : src.size(1)]
        tgt_emb = self.tgt_embed(tgt) + self.pos_embed[:, : tgt.size(1)]
        pad_mask = src == PAD
        hidden = self.transformer(
            src_emb,
            tgt_emb,
            tgt_mask=tgt_mask,
            src_key_padding_mask=pad_mask,
            memory_key_padding_mask=pad_mask,
            tgt_is_causal=True,
        )
        out: Tensor = self.fc(hidden)
        return out


# ---- the Annotated Transformer -------------------------------------------------------------------


def clones(module: nn.Module, n: int) -> nn.ModuleList:
    return nn.ModuleList([copy.deepcopy(module) for _ in range(n)])


class LayerNorm(nn.Module):
    def __init__(self, features: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.a_2 = nn.Parameter(torch.ones(features))
        self.b_2 = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        std = x.std(-1, keepdim=True)
        return self.a_2 * (x - mean) / (std + self.eps) + self.b_2


class MultiHeadedAttention(nn.Module):
    def __init__(self, h: int, d_model: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.d_k = d_model // h
        self.h = h
        self.linears = clones(nn.Linear(d_model, d_model), 4)
        self.attn: Tensor | None = None
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        mask = mask.unsqueeze(1)
        nbatches = query.size(0)
        query, key, value = [
            lin(x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value), strict=False)
        ]
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_k)
        scores = scores.masked_fill(mask == 0, -1e9)
        self.attn = self.dropout(scores.softmax(dim=-1))
        x = torch.matmul(self.attn, value)
        x = x.transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
        out: Tensor = self.linears[-1](x)
        return out


class AnnotatedLayer(nn.Module):
    def __init__(self, size: int, decoder: bool) -> None:
        super().__init__()
        self.self_attn = MultiHeadedAttention(2, size)
        self.src_attn = MultiHeadedAttention(2, size) if decoder else None
        self.feed_forward = nn.Sequential(
            nn.Linear(size, 18), nn.ReLU(), nn.Dropout(0.1), nn.Linear(18, size)
        )
        self.norms = clones(LayerNorm(size), 3)
        self.dropout = nn.Dropout(0.1)

    def forward(
        self, x: Tensor, mask: Tensor, memory: Tensor | None = None, src_mask: Tensor | None = None
    ) -> Tensor:
        y = self.norms[0](x)
        x = x + self.dropout(self.self_attn(y, y, y, mask))
        if self.src_attn is not None:
            x = x + self.dropout(self.src_attn(self.norms[1](x), memory, memory, src_mask))
        out: Tensor = x + self.dropout(self.feed_forward(self.norms[2](x)))
        return out


class EncoderDecoder(nn.Module):
    pe: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList([AnnotatedLayer(12, False) for _ in range(2)])
        self.decoder = nn.ModuleList([AnnotatedLayer(12, True) for _ in range(2)])
        self.encoder_norm, self.decoder_norm = LayerNorm(12), LayerNorm(12)
        self.src_embed, self.tgt_embed = nn.Embedding(20, 12), nn.Embedding(18, 12)
        self.generator = nn.Linear(12, 18)
        position = torch.arange(0, 60).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, 12, 2) * -(math.log(10000.0) / 12))
        pe = torch.zeros(60, 12)
        pe[:, 0::2], pe[:, 1::2] = torch.sin(position * div_term), torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0))

    def embed(self, table: nn.Embedding, ids: Tensor) -> Tensor:
        x: Tensor = table(ids) * math.sqrt(12)
        return x + self.pe[:, : x.size(1)].requires_grad_(False)

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        x = self.embed(self.src_embed, src)
        for layer in self.encoder:
            x = layer(x, src_mask)
        out: Tensor = self.encoder_norm(x)
        return out

    def decode(self, memory: Tensor, src_mask: Tensor, tgt: Tensor, tgt_mask: Tensor) -> Tensor:
        x = self.embed(self.tgt_embed, tgt)
        for layer in self.decoder:
            x = layer(x, tgt_mask, memory, src_mask)
        out: Tensor = self.decoder_norm(x)
        return out

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor, tgt_mask: Tensor) -> Tensor:
        return self.decode(self.encode(src, src_mask), src_mask, tgt, tgt_mask)


def subsequent_mask(size: int) -> Tensor:
    attn_shape = (1, size, size)
    return torch.triu(torch.ones(attn_shape), diagonal=1).type(torch.uint8) == 0


def annotated(model: nn.Module, src: Tensor, tgt: Tensor) -> Tensor:
    assert isinstance(model, EncoderDecoder)
    src_mask = (src != PAD).unsqueeze(-2)
    tgt_mask = (tgt != PAD).unsqueeze(-2)
    tgt_mask = tgt_mask & subsequent_mask(tgt.size(-1)).type_as(tgt_mask.data)
    return F.log_softmax(model.generator(model(src, tgt, src_mask, tgt_mask)), dim=-1)


# ---- post-norm, additions in place, flattened logits, tied tables --------------------------------


class ResidualAttention(nn.Module):
    def __init__(self, n_head: int, d_model: int, d_k: int) -> None:
        super().__init__()
        self.n_head, self.d_k = n_head, d_k
        self.w_qs = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_ks = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_vs = nn.Linear(d_model, n_head * d_k, bias=False)
        self.fc = nn.Linear(n_head * d_k, d_model, bias=False)
        self.dropout = nn.Dropout(0.1)
        self.layer_norm = nn.LayerNorm(d_model, eps=1e-6)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        sz_b, len_q, len_k, len_v = q.size(0), q.size(1), k.size(1), v.size(1)
        residual = q
        q = self.w_qs(q).view(sz_b, len_q, self.n_head, self.d_k)
        k = self.w_ks(k).view(sz_b, len_k, self.n_head, self.d_k)
        v = self.w_vs(v).view(sz_b, len_v, self.n_head, self.d_k)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        attn = torch.matmul(q / self.d_k**0.5, k.transpose(2, 3))
        attn = attn.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        attn = self.dropout(F.softmax(attn, dim=-1))
        q = torch.matmul(attn, v)
        q = q.transpose(1, 2).contiguous().view(sz_b, len_q, -1)
        q = self.dropout(self.fc(q))
        q += residual
        return self.layer_norm(q), attn


class ResidualFeedForward(nn.Module):
    def __init__(self, d_in: int, d_hid: int) -> None:
        super().__init__()
        self.w_1, self.w_2 = nn.Linear(d_in, d_hid), nn.Linear(d_hid, d_in)
        self.layer_norm = nn.LayerNorm(d_in, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        x = self.w_2(F.relu(self.w_1(x)))
        x += residual
        out: Tensor = self.layer_norm(x)
        return out


def get_pad_mask(seq: Tensor, pad_idx: int) -> Tensor:
    return (seq != pad_idx).unsqueeze(-2)


def get_subsequent_mask(seq: Tensor) -> Tensor:
    _, len_s = seq.size()
    return (1 - torch.triu(torch.ones((1, len_s, len_s), device=seq.device), diagonal=1)).bool()


class InPlaceTransformer(nn.Module):
    pos_table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.src_word_emb = nn.Embedding(22, 16, padding_idx=PAD)
        self.trg_word_emb = nn.Embedding(22, 16, padding_idx=PAD)
        self.src_word_emb.weight = self.trg_word_emb.weight
        self.trg_word_prj = nn.Linear(16, 22, bias=False)
        self.trg_word_prj.weight = self.trg_word_emb.weight
        self.layer_norms = nn.ModuleList([nn.LayerNorm(16, eps=1e-6) for _ in range(2)])
        self.slf_enc = ResidualAttention(4, 16, 5)
        self.ffn_enc = ResidualFeedForward(16, 20)
        self.slf_dec = nn.ModuleList([ResidualAttention(4, 16, 5) for _ in range(2)])
        self.enc_dec = nn.ModuleList([ResidualAttention(4, 16, 5) for _ in range(2)])
        self.ffn_dec = nn.ModuleList([ResidualFeedForward(16, 20) for _ in range(2)])
        angle = torch.arange(80)[:, None] / 10000 ** (2 * (torch.arange(16)[None] // 2) / 16)
        angle[:, 0::2], angle[:, 1::2] = torch.sin(angle[:, 0::2]), torch.cos(angle[:, 1::2])
        self.register_buffer("pos_table", angle.unsqueeze(0))

    def forward(self, src_seq: Tensor, trg_seq: Tensor) -> Tensor:
        src_mask = get_pad_mask(src_seq, PAD)
        trg_mask = get_pad_mask(trg_seq, PAD) & get_subsequent_mask(trg_seq)
        enc = self.src_word_emb(src_seq) * 4
        enc = self.layer_norms[0](enc + self.pos_table[:, : enc.size(1)].clone().detach())
        enc, _ = self.slf_enc(enc, enc, enc, src_mask)
        enc = self.ffn_enc(enc)
        dec = self.trg_word_emb(trg_seq)
        dec *= 16**0.5
        dec = self.layer_norms[1](dec + self.pos_table[:, : dec.size(1)].clone().detach())
        for slf, cross, ffn in zip(self.slf_dec, self.enc_dec, self.ffn_dec, strict=True):
            dec, _ = slf(dec, dec, dec, trg_mask)
            dec, _ = cross(dec, enc, enc, src_mask)
            dec = ffn(dec)
        seq_logit = self.trg_word_prj(dec)
        seq_logit *= 16**-0.5
        out: Tensor = seq_logit.view(-1, seq_logit.size(2))
        return out


# ---- learned positions, the attention returned as well -------------------------------------------


class MultiHeadAttentionLayer(nn.Module):
    scale: Tensor

    def __init__(self, hid_dim: int, n_heads: int) -> None:
        super().__init__()
        self.hid_dim, self.n_heads, self.head_dim = hid_dim, n_heads, hid_dim // n_heads
        self.fc_q, self.fc_k = nn.Linear(hid_dim, hid_dim), nn.Linear(hid_dim, hid_dim)
        self.fc_v, self.fc_o = nn.Linear(hid_dim, hid_dim), nn.Linear(hid_dim, hid_dim)
        self.register_buffer("scale", torch.sqrt(torch.FloatTensor([self.head_dim])))

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        batch_size = query.shape[0]
        q, k, v = self.fc_q(query), self.fc_k(key), self.fc_v(value)
        q = q.view(batch_size, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        k = k.view(batch_size, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        v = v.view(batch_size, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        energy = torch.matmul(q, k.permute(0, 1, 3, 2)) / self.scale
        energy = energy.masked_fill(mask == 0, -1e10)
        attention = torch.softmax(energy, dim=-1)
        x = torch.matmul(attention, v).permute(0, 2, 1, 3).contiguous()
        x = x.view(batch_size, -1, self.hid_dim)
        return self.fc_o(x), attention


class LearnedPositions(nn.Module):
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.src_tok, self.src_pos = nn.Embedding(18, 12), nn.Embedding(40, 12)
        self.trg_tok, self.trg_pos = nn.Embedding(25, 12), nn.Embedding(40, 12)
        self.enc_attn = MultiHeadAttentionLayer(12, 3)
        self.dec_attn = MultiHeadAttentionLayer(12, 3)
        self.cross_attn = MultiHeadAttentionLayer(12, 3)
        self.enc_norm, self.dec_norm = nn.LayerNorm(12), nn.LayerNorm(12)
        self.cross_norm = nn.LayerNorm(12)
        self.fc_out = nn.Linear(12, 25)
        self.register_buffer("scale", torch.sqrt(torch.FloatTensor([12])))

    def make_src_mask(self, src: Tensor) -> Tensor:
        return (src != PAD).unsqueeze(1).unsqueeze(2)

    def make_trg_mask(self, trg: Tensor) -> Tensor:
        trg_pad_mask = (trg != PAD).unsqueeze(1).unsqueeze(2)
        trg_len = trg.shape[1]
        trg_sub_mask = torch.tril(torch.ones((trg_len, trg_len), device=trg.device)).bool()
        return trg_pad_mask & trg_sub_mask

    def forward(self, src: Tensor, trg: Tensor) -> tuple[Tensor, Tensor]:
        src_mask, trg_mask = self.make_src_mask(src), self.make_trg_mask(trg)
        batch_size, src_len, trg_len = src.shape[0], src.shape[1], trg.shape[1]
        pos = torch.arange(0, src_len).unsqueeze(0).repeat(batch_size, 1)
        enc = self.src_tok(src) * self.scale + self.src_pos(pos)
        enc = self.enc_norm(enc + self.enc_attn(enc, enc, enc, src_mask)[0])
        pos = torch.arange(0, trg_len).unsqueeze(0).repeat(batch_size, 1)
        dec = self.trg_tok(trg) * self.scale + self.trg_pos(pos)
        dec = self.dec_norm(dec + self.dec_attn(dec, dec, dec, trg_mask)[0])
        x, attention = self.cross_attn(dec, enc, enc, src_mask)
        return self.fc_out(self.cross_norm(dec + x)), attention


TUTORIAL_CASES = (
    Case(
        "tutorial",
        lambda: drawn(Seq2SeqTransformer, 3, 0.7),
        (SOURCE_BATCH_SECOND,),
        TARGET_BATCH_SECOND,
        forward=with_masks,
        pads_source=True,
        state=("keys and values of two layers, (B*H, T, D)", "whether a target id is PAD"),
    ),
    Case("stock", lambda: drawn(StockTransformer, 3, 0.7), (SOURCE,), pads_source=True),
    Case(
        "annotated",
        lambda: drawn(EncoderDecoder, 4),
        (SOURCE,),
        forward=annotated,
        pads_source=True,
    ),
    Case("in_place", lambda: drawn(InPlaceTransformer, 8), (SOURCE,), pads_source=True),
    Case("learned_positions", lambda: drawn(LearnedPositions, 4, 0.7), (SOURCE,), pads_source=True),
)
