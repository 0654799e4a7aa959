"""In the styles of Trevett, Ko and Huang: post-norm, heads split by views, no last norm."""

# mypy: no-warn-return-any

import math

import torch
from torch import Tensor, nn

from tests.export.incremental.own_case import PAD
from tests.export.recognition.styles.style import Style, each_layer, halved, trained

# ---- Trevett -------------------------------------------------------------------------------------


class MultiHeadAttentionLayer(nn.Module):
    def __init__(self, hid_dim: int, n_heads: int, dropout: float) -> None:
        super().__init__()
        self.hid_dim, self.n_heads, self.head_dim = hid_dim, n_heads, hid_dim // n_heads
        self.fc_q = nn.Linear(hid_dim, hid_dim)
        self.fc_k = nn.Linear(hid_dim, hid_dim)
        self.fc_v = nn.Linear(hid_dim, hid_dim)
        self.fc_o = nn.Linear(hid_dim, hid_dim)
        self.dropout = nn.Dropout(dropout)
        self.scale = torch.sqrt(torch.FloatTensor([self.head_dim]))

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        batch_size = query.shape[0]
        q, k, v = self.fc_q(query), self.fc_k(key), self.fc_v(value)
        q = q.view(batch_size, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        k = k.view(batch_size, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        v = v.view(batch_size, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        energy = torch.matmul(q, k.permute(0, 1, 3, 2)) / self.scale
        if mask is not None:
            energy = energy.masked_fill(mask == 0, -1e10)
        attention = torch.softmax(energy, dim=-1)
        x = torch.matmul(self.dropout(attention), v).permute(0, 2, 1, 3).contiguous()
        return self.fc_o(x.view(batch_size, -1, self.hid_dim)), attention


class PositionwiseFeedforwardLayer(nn.Module):
    def __init__(self, hid_dim: int, pf_dim: int, dropout: float) -> None:
        super().__init__()
        self.fc_1, self.fc_2 = nn.Linear(hid_dim, pf_dim), nn.Linear(pf_dim, hid_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc_2(self.dropout(torch.relu(self.fc_1(x))))


class EncoderLayer(nn.Module):
    def __init__(self, hid_dim: int, n_heads: int, pf_dim: int, dropout: float) -> None:
        super().__init__()
        self.self_attn_layer_norm = nn.LayerNorm(hid_dim)
        self.ff_layer_norm = nn.LayerNorm(hid_dim)
        self.self_attention = MultiHeadAttentionLayer(hid_dim, n_heads, dropout)
        self.positionwise_feedforward = PositionwiseFeedforwardLayer(hid_dim, pf_dim, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, src: Tensor, src_mask: Tensor) -> Tensor:
        _src, _ = self.self_attention(src, src, src, src_mask)
        src = self.self_attn_layer_norm(src + self.dropout(_src))
        _src = self.positionwise_feedforward(src)
        return self.ff_layer_norm(src + self.dropout(_src))


class Encoder(nn.Module):
    def __init__(self, input_dim: int, hid_dim: int, n_layers: int, max_length: int = 62) -> None:
        super().__init__()
        self.tok_embedding = nn.Embedding(input_dim, hid_dim)
        self.pos_embedding = nn.Embedding(max_length, hid_dim)
        self.layers = nn.ModuleList([EncoderLayer(hid_dim, 4, 50, 0.1) for _ in range(n_layers)])
        self.dropout = nn.Dropout(0.1)
        self.scale = torch.sqrt(torch.FloatTensor([hid_dim]))

    def forward(self, src: Tensor, src_mask: Tensor) -> Tensor:
        batch_size, src_len = src.shape[0], src.shape[1]
        pos = torch.arange(0, src_len).unsqueeze(0).repeat(batch_size, 1)
        src = self.dropout((self.tok_embedding(src) * self.scale) + self.pos_embedding(pos))
        for layer in self.layers:
            src = layer(src, src_mask)
        return src


class DecoderLayer(nn.Module):
    def __init__(self, hid_dim: int, n_heads: int, pf_dim: int, dropout: float) -> None:
        super().__init__()
        self.self_attn_layer_norm = nn.LayerNorm(hid_dim)
        self.enc_attn_layer_norm = nn.LayerNorm(hid_dim)
        self.ff_layer_norm = nn.LayerNorm(hid_dim)
        self.self_attention = MultiHeadAttentionLayer(hid_dim, n_heads, dropout)
        self.encoder_attention = MultiHeadAttentionLayer(hid_dim, n_heads, dropout)
        self.positionwise_feedforward = PositionwiseFeedforwardLayer(hid_dim, pf_dim, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, trg: Tensor, enc_src: Tensor, trg_mask: Tensor, src_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        _trg, _ = self.self_attention(trg, trg, trg, trg_mask)
        trg = self.self_attn_layer_norm(trg + self.dropout(_trg))
        _trg, attention = self.encoder_attention(trg, enc_src, enc_src, src_mask)
        trg = self.enc_attn_layer_norm(trg + self.dropout(_trg))
        _trg = self.positionwise_feedforward(trg)
        return self.ff_layer_norm(trg + self.dropout(_trg)), attention


class Decoder(nn.Module):
    def __init__(self, output_dim: int, hid_dim: int, n_layers: int, max_length: int = 62) -> None:
        super().__init__()
        self.tok_embedding = nn.Embedding(output_dim, hid_dim)
        self.pos_embedding = nn.Embedding(max_length, hid_dim)
        self.layers = nn.ModuleList([DecoderLayer(hid_dim, 4, 50, 0.1) for _ in range(n_layers)])
        self.fc_out = nn.Linear(hid_dim, output_dim)
        self.dropout = nn.Dropout(0.1)
        self.scale = torch.sqrt(torch.FloatTensor([hid_dim]))

    def forward(
        self, trg: Tensor, enc_src: Tensor, trg_mask: Tensor, src_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        batch_size, trg_len = trg.shape[0], trg.shape[1]
        pos = torch.arange(0, trg_len).unsqueeze(0).repeat(batch_size, 1)
        trg = self.dropout((self.tok_embedding(trg) * self.scale) + self.pos_embedding(pos))
        for layer in self.layers:
            trg, attention = layer(trg, enc_src, trg_mask, src_mask)
        return self.fc_out(trg), attention


class Seq2Seq(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(49, 32, 2), Decoder(54, 32, 2)
        self.src_pad_idx = self.trg_pad_idx = PAD

    def make_src_mask(self, src: Tensor) -> Tensor:
        return (src != self.src_pad_idx).unsqueeze(1).unsqueeze(2)

    def make_trg_mask(self, trg: Tensor) -> Tensor:
        trg_pad_mask = (trg != self.trg_pad_idx).unsqueeze(1).unsqueeze(2)
        trg_len = trg.shape[1]
        trg_sub_mask = torch.tril(torch.ones((trg_len, trg_len), device=trg.device)).bool()
        return trg_pad_mask & trg_sub_mask

    def forward(self, src: Tensor, trg: Tensor) -> tuple[Tensor, Tensor]:
        src_mask, trg_mask = self.make_src_mask(src), self.make_trg_mask(trg)
        enc_src = self.encoder(src, src_mask)
        return self.decoder(trg, enc_src, trg_mask, src_mask)


# ---- Ko ------------------------------------------------------------------------------------------


class LayerNorm(nn.Module):
    def __init__(self, d_model: int, eps: float = 1e-12) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(d_model))
        self.beta = nn.Parameter(torch.zeros(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        var = x.var(-1, unbiased=False, keepdim=True)
        out = (x - mean) / torch.sqrt(var + self.eps)
        return self.gamma * out + self.beta


class ScaleDotProductAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.softmax = nn.Softmax(dim=-1)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        _, _, _, d_tensor = k.size()
        score = (q @ k.transpose(2, 3)) / math.sqrt(d_tensor)
        if mask is not None:
            score = score.masked_fill(mask == 0, -10000)
        score = self.softmax(score)
        return score @ v, score


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model: int, n_head: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.attention = ScaleDotProductAttention()
        self.w_q, self.w_k = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.w_v, self.w_concat = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.split(self.w_q(q)), self.split(self.w_k(k)), self.split(self.w_v(v))
        out, _ = self.attention(q, k, v, mask=mask)
        return self.w_concat(self.concat(out))

    def split(self, tensor: Tensor) -> Tensor:
        batch_size, length, d_model = tensor.size()
        return tensor.view(batch_size, length, self.n_head, d_model // self.n_head).transpose(1, 2)

    def concat(self, tensor: Tensor) -> Tensor:
        batch_size, head, length, d_tensor = tensor.size()
        return tensor.transpose(1, 2).contiguous().view(batch_size, length, head * d_tensor)


class PositionwiseFeedForward(nn.Module):
    def __init__(self, d_model: int, hidden: int) -> None:
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(d_model, hidden), nn.Linear(hidden, d_model)
        self.relu, self.dropout = nn.ReLU(), nn.Dropout(p=0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.relu(self.linear1(x))))


class KoLayer(nn.Module):
    def __init__(self, decoder: bool) -> None:
        super().__init__()
        self.self_attention, self.norm1 = MultiHeadAttention(32, 2), LayerNorm(32)
        if decoder:
            self.enc_dec_attention, self.norm2 = MultiHeadAttention(32, 2), LayerNorm(32)
        self.ffn, self.norm3 = PositionwiseFeedForward(32, 58), LayerNorm(32)
        self.dropout1 = nn.Dropout(p=0.1)

    def forward(
        self, x: Tensor, mask: Tensor, enc: Tensor | None = None, src_mask: Tensor | None = None
    ) -> Tensor:
        _x = x
        x = self.dropout1(self.self_attention(q=x, k=x, v=x, mask=mask))
        x = self.norm1(x + _x)
        if enc is not None:
            _x = x
            x = self.enc_dec_attention(q=x, k=enc, v=enc, mask=src_mask)
            x = self.norm2(x + _x)
        _x = x
        x = self.ffn(x)
        return self.norm3(x + _x)


class PlainPositions(nn.Module):
    """A table that is no buffer."""

    def __init__(self, d_model: int, max_len: int) -> None:
        super().__init__()
        self.encoding = torch.zeros(max_len, d_model, requires_grad=False)
        pos = torch.arange(0, max_len).float().unsqueeze(dim=1)
        _2i = torch.arange(0, d_model, step=2).float()
        self.encoding[:, 0::2] = torch.sin(pos / (10000 ** (_2i / d_model)))
        self.encoding[:, 1::2] = torch.cos(pos / (10000 ** (_2i / d_model)))

    def forward(self, x: Tensor) -> Tensor:
        _, seq_len = x.size()
        return self.encoding[:seq_len, :]


class TransformerEmbedding(nn.Module):
    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.tok_emb = nn.Embedding(vocab_size, 32, padding_idx=PAD)
        self.pos_emb = PlainPositions(32, 82)
        self.drop_out = nn.Dropout(p=0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop_out(self.tok_emb(x) + self.pos_emb(x))


class KoStack(nn.Module):
    def __init__(self, vocab_size: int, decoder: bool) -> None:
        super().__init__()
        self.emb = TransformerEmbedding(vocab_size)
        self.layers = nn.ModuleList([KoLayer(decoder) for _ in range(2)])
        if decoder:
            self.linear = nn.Linear(32, vocab_size)

    def forward(self, ids: Tensor, *rest: Tensor) -> Tensor:
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x, *rest)
        return x


class KoTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.src_pad_idx = self.trg_pad_idx = PAD
        self.encoder, self.decoder = KoStack(53, False), KoStack(48, True)

    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        src_mask = (src != self.src_pad_idx).unsqueeze(1).unsqueeze(2)
        trg_pad_mask = (trg != self.trg_pad_idx).unsqueeze(1).unsqueeze(3)
        trg_len = trg.shape[1]
        trg_sub_mask = torch.tril(torch.ones(trg_len, trg_len)).byte()
        enc_src = self.encoder(src, src_mask)
        hidden = self.decoder(trg, trg_pad_mask & trg_sub_mask, enc_src, src_mask)
        return self.decoder.linear(hidden)


TREVETT_KIN = (
    Style(
        "trevett",
        lambda: trained(Seq2Seq, 89, 0.6),
        "scales are tensors of one number, no buffers; learned positions; attention returned",
        tables=("encoder.pos_embedding.weight", "decoder.pos_embedding.weight"),
        changes={
            **each_layer("no norm in encoder", "encoder.layers.{}.ff_layer_norm", nn.Identity()),
            **each_layer(
                "scale of scores in decoder",
                "decoder.layers.{}.self_attention.scale",
                torch.FloatTensor([2.0]),
            ),
            "scale of the source": {"encoder.scale": torch.FloatTensor([1.0])},
            **halved(
                "encoder",
                "encoder.layers.0.self_attention.n_heads",
                "encoder.layers.0.self_attention.head_dim",
                4,
                8,
            ),
            **halved(
                "cross-attention",
                "decoder.layers.1.encoder_attention.n_heads",
                "decoder.layers.1.encoder_attention.head_dim",
                4,
                8,
            ),
        },
    ),
    Style(
        "ko",
        lambda: trained(KoTransformer, 42, 1.0),
        "gamma and beta of an own norm with eps 1e-12; mask -10000; a mask of the padded queries",
        tables=("encoder.emb.pos_emb.encoding", "decoder.emb.pos_emb.encoding"),
        changes={
            **each_layer("eps in encoder", "encoder.layers.{}.norm1.eps", 1e-3),
            **each_layer("eps in decoder", "decoder.layers.{}.norm2.eps", 1e-3),
            **each_layer("gelu in decoder", "decoder.layers.{}.ffn.relu", nn.GELU()),
            **halved("encoder", "encoder.layers.1.self_attention.n_head", "", 2, 16),
            **halved("decoder", "decoder.layers.0.self_attention.n_head", "", 2, 16),
        },
    ),
)
