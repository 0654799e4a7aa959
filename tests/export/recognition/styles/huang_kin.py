"""In the styles of Huang and of video lessons: residuals in attention, einsum over split heads."""

# mypy: no-warn-return-any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.export.incremental.own_case import PAD
from tests.export.recognition.styles.style import Style, each_layer, halved, trained

# ---- Huang ---------------------------------------------------------------------------------------


class ScaledDotProductAttention(nn.Module):
    def __init__(self, temperature: float, attn_dropout: float = 0.1) -> None:
        super().__init__()
        self.temperature = temperature
        self.dropout = nn.Dropout(attn_dropout)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        attn = torch.matmul(q / self.temperature, k.transpose(2, 3))
        if mask is not None:
            attn = attn.masked_fill(mask == 0, -1e9)
        attn = self.dropout(F.softmax(attn, dim=-1))
        return torch.matmul(attn, v), attn


class MultiHeadAttention(nn.Module):
    def __init__(self, n_head: int, d_model: int, d_k: int, d_v: int) -> None:
        super().__init__()
        self.n_head, self.d_k, self.d_v = n_head, d_k, d_v
        self.w_qs = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_ks = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_vs = nn.Linear(d_model, n_head * d_v, bias=False)
        self.fc = nn.Linear(n_head * d_v, d_model, bias=False)
        self.attention = ScaledDotProductAttention(temperature=d_k**0.5)
        self.dropout = nn.Dropout(0.1)
        self.layer_norm = nn.LayerNorm(d_model, eps=1e-6)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        d_k, d_v, n_head = self.d_k, self.d_v, self.n_head
        sz_b, len_q, len_k, len_v = q.size(0), q.size(1), k.size(1), v.size(1)
        residual = q
        q = self.w_qs(q).view(sz_b, len_q, n_head, d_k)
        k = self.w_ks(k).view(sz_b, len_k, n_head, d_k)
        v = self.w_vs(v).view(sz_b, len_v, n_head, d_v)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if mask is not None:
            mask = mask.unsqueeze(1)
        q, attn = self.attention(q, k, v, mask=mask)
        q = q.transpose(1, 2).contiguous().view(sz_b, len_q, -1)
        q = self.dropout(self.fc(q))
        q += residual
        return self.layer_norm(q), attn


class PositionwiseFeedForward(nn.Module):
    def __init__(self, d_in: int, d_hid: int) -> None:
        super().__init__()
        self.w_1, self.w_2 = nn.Linear(d_in, d_hid), nn.Linear(d_hid, d_in)
        self.layer_norm = nn.LayerNorm(d_in, eps=1e-6)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        x = self.dropout(self.w_2(F.relu(self.w_1(x))))
        x += residual
        return self.layer_norm(x)


class HuangLayer(nn.Module):
    def __init__(self, d_k: int, decoder: bool) -> None:
        super().__init__()
        self.slf_attn = MultiHeadAttention(4, 32, d_k, d_k)
        if decoder:
            self.enc_attn = MultiHeadAttention(4, 32, d_k, d_k)
        self.pos_ffn = PositionwiseFeedForward(32, 66)

    def forward(
        self,
        layer_input: Tensor,
        slf_attn_mask: Tensor,
        enc_output: Tensor | None = None,
        dec_enc_attn_mask: Tensor | None = None,
    ) -> Tensor:
        x, _ = self.slf_attn(layer_input, layer_input, layer_input, mask=slf_attn_mask)
        if enc_output is not None:
            x, _ = self.enc_attn(x, enc_output, enc_output, mask=dec_enc_attn_mask)
        return self.pos_ffn(x)


class PositionalEncoding(nn.Module):
    pos_table: Tensor

    def __init__(self, d_hid: int, n_position: int = 86) -> None:
        super().__init__()
        hid = torch.arange(d_hid, dtype=torch.float64)
        angle = torch.arange(n_position)[:, None] / 10000 ** (2 * (hid // 2) / d_hid)
        angle[:, 0::2], angle[:, 1::2] = torch.sin(angle[:, 0::2]), torch.cos(angle[:, 1::2])
        self.register_buffer("pos_table", angle.float().unsqueeze(0))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pos_table[:, : x.size(1)].clone().detach()


class HuangStack(nn.Module):
    def __init__(self, name: str, vocab: int, scale_emb: bool, d_k: int) -> None:
        super().__init__()
        self.name, self.scale_emb = f"{name}_word_emb", scale_emb
        setattr(self, self.name, nn.Embedding(vocab, 32, padding_idx=PAD))
        self.position_enc = PositionalEncoding(32)
        self.dropout = nn.Dropout(p=0.1)
        self.layer_stack = nn.ModuleList([HuangLayer(d_k, name == "trg") for _ in range(2)])
        self.layer_norm = nn.LayerNorm(32, eps=1e-6)

    def forward(self, seq: Tensor, *rest: Tensor) -> Tensor:
        output = getattr(self, self.name)(seq)
        if self.scale_emb:
            output *= 32**0.5
        output = self.layer_norm(self.dropout(self.position_enc(output)))
        for layer in self.layer_stack:
            output = layer(output, *rest)
        return output


def get_pad_mask(seq: Tensor, pad_idx: int) -> Tensor:
    return (seq != pad_idx).unsqueeze(-2)


def get_subsequent_mask(seq: Tensor) -> Tensor:
    _, len_s = seq.size()
    return (1 - torch.triu(torch.ones((1, len_s, len_s), device=seq.device), diagonal=1)).bool()


class HuangTransformer(nn.Module):
    """Its tables are one, and either they are multiplied or the logits."""

    def __init__(self, scale_emb_or_prj: str, shared: bool, d_k: int) -> None:
        super().__init__()
        scale_emb = scale_emb_or_prj == "emb"
        self.scale_prj = scale_emb_or_prj == "prj"
        self.encoder = HuangStack("src", 44 if shared else 56, scale_emb, d_k)
        self.decoder = HuangStack("trg", 44, scale_emb, d_k)
        self.trg_word_prj = nn.Linear(32, 44, bias=False)
        table = self.decoder.get_submodule("trg_word_emb")
        self.trg_word_prj.weight = table.weight  # type: ignore[assignment]
        if shared:
            self.encoder.get_submodule("src_word_emb").weight = table.weight

    def forward(self, src_seq: Tensor, trg_seq: Tensor) -> Tensor:
        src_mask = get_pad_mask(src_seq, PAD)
        trg_mask = get_pad_mask(trg_seq, PAD) & get_subsequent_mask(trg_seq)
        enc_output = self.encoder(src_seq, src_mask)
        dec_output = self.decoder(trg_seq, trg_mask, enc_output, src_mask)
        seq_logit = self.trg_word_prj(dec_output)
        if self.scale_prj:
            seq_logit *= 32**-0.5
        return seq_logit.view(-1, seq_logit.size(2))


# ---- as in the video lessons ---------------------------------------------------------------------


class SelfAttention(nn.Module):
    def __init__(self, embed_size: int, heads: int) -> None:
        super().__init__()
        self.embed_size, self.heads, self.head_dim = embed_size, heads, embed_size // heads
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
        attention = torch.softmax(energy / (self.embed_size ** (1 / 2)), dim=3)
        out = torch.einsum("nhql,nlhd->nqhd", [attention, values])
        return self.fc_out(out.reshape(n, query_len, self.heads * self.head_dim))


class TransformerBlock(nn.Module):
    def __init__(self, embed_size: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention = SelfAttention(embed_size, heads)
        self.norm1, self.norm2 = nn.LayerNorm(embed_size), nn.LayerNorm(embed_size)
        self.feed_forward = nn.Sequential(
            nn.Linear(embed_size, hidden), nn.ReLU(), nn.Linear(hidden, embed_size)
        )
        self.dropout = nn.Dropout(0.1)

    def forward(self, value: Tensor, key: Tensor, query: Tensor, mask: Tensor | None) -> Tensor:
        attention = self.attention(value, key, query, mask)
        x = self.dropout(self.norm1(attention + query))
        return self.dropout(self.norm2(self.feed_forward(x) + x))


class DecoderBlock(nn.Module):
    def __init__(self, embed_size: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(embed_size)
        self.attention = SelfAttention(embed_size, heads)
        self.transformer_block = TransformerBlock(embed_size, heads, hidden)
        self.dropout = nn.Dropout(0.1)

    def forward(
        self, x: Tensor, value: Tensor, key: Tensor, src_mask: Tensor, trg_mask: Tensor
    ) -> Tensor:
        attention = self.attention(x, x, x, trg_mask)
        query = self.dropout(self.norm(attention + x))
        return self.transformer_block(value, key, query, src_mask)


class LessonTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.src_word_embedding, self.trg_word_embedding = (
            nn.Embedding(50, 32),
            nn.Embedding(59, 32),
        )
        self.src_position, self.trg_position = nn.Embedding(64, 32), nn.Embedding(76, 32)
        self.encoder = nn.ModuleList([TransformerBlock(32, 4, 62) for _ in range(2)])
        self.decoder = nn.ModuleList([DecoderBlock(32, 4, 62) for _ in range(2)])
        self.fc_out = nn.Linear(32, 59)

    def make_src_mask(self, src: Tensor) -> Tensor:
        return (src != PAD).unsqueeze(1).unsqueeze(2)

    def make_trg_mask(self, trg: Tensor) -> Tensor:
        n, trg_len = trg.shape
        return torch.tril(torch.ones((trg_len, trg_len))).expand(n, 1, trg_len, trg_len)

    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        src_mask, trg_mask = self.make_src_mask(src), self.make_trg_mask(trg)
        n, src_len = src.shape
        positions = torch.arange(0, src_len).expand(n, src_len)
        out = self.src_word_embedding(src) + self.src_position(positions)
        for layer in self.encoder:
            out = layer(out, out, out, src_mask)
        n, trg_len = trg.shape
        positions = torch.arange(0, trg_len).expand(n, trg_len)
        x = self.trg_word_embedding(trg) + self.trg_position(positions)
        for layer in self.decoder:
            x = layer(x, out, out, src_mask, trg_mask)
        return self.fc_out(x)


_HUANG_CHANGES = {
    **each_layer("eps in encoder", "encoder.layer_stack.{}.slf_attn.layer_norm.eps", 1e-3),
    **each_layer("eps in decoder", "decoder.layer_stack.{}.pos_ffn.layer_norm.eps", 1e-3),
    **each_layer("scale of scores", "decoder.layer_stack.{}.enc_attn.attention.temperature", 2.0),
    "no norm of the embeddings": {"decoder.layer_norm": nn.Identity()},
}

HUANG_KIN = (
    Style(
        "huang",
        lambda: trained(lambda: HuangTransformer("prj", True, 8), 51, 1.0),
        "one table for all; logits times d^-0.5 in place; a norm of the embeddings; post-norm",
        tables=("encoder.position_enc.pos_table", "decoder.position_enc.pos_table"),
        changes={
            **_HUANG_CHANGES,
            "logits not scaled": {"scale_prj": False},
        },
    ),
    Style(
        "huang_scaled_embeddings",
        lambda: trained(lambda: HuangTransformer("emb", False, 6), 85),
        "embeddings multiplied in place; heads of 6 values, so 24 of 32; output tied",
        tables=("encoder.position_enc.pos_table", "decoder.position_enc.pos_table"),
        changes={**_HUANG_CHANGES, "scale of the source": {"encoder.scale_emb": False}},
    ),
    Style(
        "lessons",
        lambda: trained(LessonTransformer, 87, 0.6),
        "einsum of heads that are not moved; scores divided by the root of the width, after the "
        "mask; values first",
        tables=("src_position.weight", "trg_position.weight"),
        changes={
            **each_layer("eps in encoder", "encoder.{}.norm1.eps", 1e-3),
            **each_layer("eps in decoder", "decoder.{}.norm.eps", 1e-3),
            **each_layer(
                "gelu in decoder", "decoder.{}.transformer_block.feed_forward.1", nn.GELU()
            ),
            **each_layer("scale of scores", "encoder.{}.attention.embed_size", 16),
            **halved("decoder", "decoder.1.attention.heads", "decoder.1.attention.head_dim", 4, 8),
        },
    ),
)
