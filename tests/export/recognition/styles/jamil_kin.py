"""In the styles of Jamil and Lynn: pre-norm, with norms that divide by an unbiased deviation."""

# mypy: no-warn-return-any

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.export.incremental.own_case import PAD
from tests.export.recognition.styles.style import Style, each_layer, halved, trained

# ---- Jamil ---------------------------------------------------------------------------------------


class LayerNormalization(nn.Module):
    def __init__(self, features: int, eps: float = 10**-6) -> None:
        super().__init__()
        self.eps = eps
        self.alpha = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=-1, keepdim=True)
        std = x.std(dim=-1, keepdim=True)
        return self.alpha * (x - mean) / (std + self.eps) + self.bias


class FeedForwardBlock(nn.Module):
    def __init__(self, d_model: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.linear_1, self.linear_2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(self.dropout(torch.relu(self.linear_1(x))))


class InputEmbeddings(nn.Module):
    def __init__(self, d_model: int, vocab_size: int) -> None:
        super().__init__()
        self.d_model = d_model
        self.embedding = nn.Embedding(vocab_size, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.embedding(x) * math.sqrt(self.d_model)


class SequencePositions(nn.Module):
    pe: Tensor

    def __init__(self, d_model: int, seq_len: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        pe = torch.zeros(seq_len, d_model)
        position = torch.arange(0, seq_len, dtype=torch.float).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x: Tensor) -> Tensor:
        x = x + (self.pe[:, : x.shape[1], :]).requires_grad_(False)
        return self.dropout(x)


class ResidualConnection(nn.Module):
    def __init__(self, norm: nn.Module, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.norm = norm

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + self.dropout(sublayer(self.norm(x)))


class MultiHeadAttentionBlock(nn.Module):
    def __init__(self, d_model: int, h: int, dropout: float) -> None:
        super().__init__()
        self.d_model, self.h, self.d_k = d_model, h, d_model // h
        self.w_q = nn.Linear(d_model, d_model, bias=False)
        self.w_k = nn.Linear(d_model, d_model, bias=False)
        self.w_v = nn.Linear(d_model, d_model, bias=False)
        self.w_o = nn.Linear(d_model, d_model, bias=False)
        self.dropout = nn.Dropout(dropout)

    @staticmethod
    def attention(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor, dropout: nn.Dropout | None
    ) -> tuple[Tensor, Tensor]:
        d_k = query.shape[-1]
        attention_scores = (query @ key.transpose(-2, -1)) / math.sqrt(d_k)
        if mask is not None:
            attention_scores.masked_fill_(mask == 0, -1e9)
        attention_scores = attention_scores.softmax(dim=-1)
        if dropout is not None:
            attention_scores = dropout(attention_scores)
        return (attention_scores @ value), attention_scores

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        query, key, value = self.w_q(q), self.w_k(k), self.w_v(v)
        query = query.view(query.shape[0], query.shape[1], self.h, self.d_k).transpose(1, 2)
        key = key.view(key.shape[0], key.shape[1], self.h, self.d_k).transpose(1, 2)
        value = value.view(value.shape[0], value.shape[1], self.h, self.d_k).transpose(1, 2)
        x, self.attention_scores = self.attention(query, key, value, mask, self.dropout)
        x = x.transpose(1, 2).contiguous().view(x.shape[0], -1, self.h * self.d_k)
        return self.w_o(x)


class Block(nn.Module):
    def __init__(self, norm: Callable[[], nn.Module], decoder: bool) -> None:
        super().__init__()
        self.self_attention_block = MultiHeadAttentionBlock(32, 4, 0.1)
        if decoder:
            self.cross_attention_block = MultiHeadAttentionBlock(32, 4, 0.1)
        self.feed_forward_block = FeedForwardBlock(32, 76, 0.1)
        self.residual_connections = nn.ModuleList(
            [ResidualConnection(norm(), 0.1) for _ in range(3 if decoder else 2)]
        )

    def forward(
        self,
        x: Tensor,
        mask: Tensor,
        encoder_output: Tensor | None = None,
        src_mask: Tensor | None = None,
    ) -> Tensor:
        memory = encoder_output
        x = self.residual_connections[0](x, lambda x: self.self_attention_block(x, x, x, mask))
        if memory is not None:
            x = self.residual_connections[1](
                x, lambda x: self.cross_attention_block(x, memory, memory, src_mask)
            )
        return self.residual_connections[-1](x, self.feed_forward_block)


class Blocks(nn.Module):
    def __init__(self, layers: nn.ModuleList, norm: nn.Module) -> None:
        super().__init__()
        self.layers, self.norm = layers, norm

    def forward(self, x: Tensor, *rest: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, *rest)
        return self.norm(x)


class ProjectionLayer(nn.Module):
    def __init__(self, d_model: int, vocab_size: int) -> None:
        super().__init__()
        self.proj = nn.Linear(d_model, vocab_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x)


class BlockTransformer(nn.Module):
    def __init__(self, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.encoder = Blocks(nn.ModuleList([Block(norm, False) for _ in range(2)]), norm())
        self.decoder = Blocks(nn.ModuleList([Block(norm, True) for _ in range(2)]), norm())
        self.src_embed, self.tgt_embed = InputEmbeddings(32, 47), InputEmbeddings(32, 44)
        self.src_pos, self.tgt_pos = SequencePositions(32, 70, 0.1), SequencePositions(32, 60, 0.1)
        self.projection_layer = ProjectionLayer(32, 44)

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        return self.encoder(self.src_pos(self.src_embed(src)), src_mask)

    def decode(
        self, encoder_output: Tensor, src_mask: Tensor, tgt: Tensor, tgt_mask: Tensor
    ) -> Tensor:
        return self.decoder(self.tgt_pos(self.tgt_embed(tgt)), tgt_mask, encoder_output, src_mask)

    def project(self, x: Tensor) -> Tensor:
        return self.projection_layer(x)


def causal_mask(size: int) -> Tensor:
    mask = torch.triu(torch.ones((1, size, size)), diagonal=1).type(torch.int)
    return mask == 0


def encode_decode_project(model: nn.Module, encoder_input: Tensor, decoder_input: Tensor) -> Tensor:
    assert isinstance(model, BlockTransformer)
    encoder_mask = (encoder_input != PAD).unsqueeze(1).unsqueeze(1).int()
    padding = (decoder_input != PAD).unsqueeze(1).unsqueeze(1).int()
    decoder_mask = padding & causal_mask(decoder_input.size(1))
    encoder_output = model.encode(encoder_input, encoder_mask)
    decoder_output = model.decode(encoder_output, encoder_mask, decoder_input, decoder_mask)
    return model.project(decoder_output)


# ---- Lynn ----------------------------------------------------------------------------------------


class Norm(nn.Module):
    def __init__(self, d_model: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.size = d_model
        self.alpha = nn.Parameter(torch.ones(self.size))
        self.bias = nn.Parameter(torch.zeros(self.size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        centred = self.alpha * (x - x.mean(dim=-1, keepdim=True))
        return centred / (x.std(dim=-1, keepdim=True) + self.eps) + self.bias


class MultiHeadAttention(nn.Module):
    def __init__(self, heads: int, d_model: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.d_model, self.d_k, self.h = d_model, d_model // heads, heads
        self.q_linear = nn.Linear(d_model, d_model)
        self.v_linear = nn.Linear(d_model, d_model)
        self.k_linear = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        bs = q.size(0)
        k = self.k_linear(k).view(bs, -1, self.h, self.d_k)
        q = self.q_linear(q).view(bs, -1, self.h, self.d_k)
        v = self.v_linear(v).view(bs, -1, self.h, self.d_k)
        k, q, v = k.transpose(1, 2), q.transpose(1, 2), v.transpose(1, 2)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        scores = torch.matmul(self.dropout(F.softmax(scores, dim=-1)), v)
        concat = scores.transpose(1, 2).contiguous().view(bs, -1, self.d_model)
        return self.out(concat)


class FeedForward(nn.Module):
    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.linear_1, self.linear_2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(F.relu(self.linear_1(x)))


class LynnLayer(nn.Module):
    def __init__(self, d_model: int, heads: int, decoder: bool) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = Norm(d_model), Norm(d_model)
        self.attn_1 = MultiHeadAttention(heads, d_model)
        if decoder:
            self.norm_3, self.attn_2 = Norm(d_model), MultiHeadAttention(heads, d_model)
        self.ff = FeedForward(d_model, 84)
        self.dropout_1, self.dropout_2 = nn.Dropout(0.1), nn.Dropout(0.1)

    def forward(
        self,
        x: Tensor,
        mask: Tensor,
        e_outputs: Tensor | None = None,
        src_mask: Tensor | None = None,
    ) -> Tensor:
        x2 = self.norm_1(x)
        x = x + self.dropout_1(self.attn_1(x2, x2, x2, mask))
        x2 = self.norm_2(x)
        if e_outputs is None:
            return x + self.dropout_2(self.ff(x2))
        x = x + self.dropout_2(self.attn_2(x2, e_outputs, e_outputs, src_mask))
        return x + self.ff(self.norm_3(x))


class PositionalEncoder(nn.Module):
    pe: Tensor

    def __init__(self, d_model: int, max_seq_len: int = 66) -> None:
        super().__init__()
        self.d_model = d_model
        pe = torch.zeros(max_seq_len, d_model)
        for pos in range(max_seq_len):
            for i in range(0, d_model, 2):
                pe[pos, i] = math.sin(pos / (10000 ** ((2 * i) / d_model)))
                pe[pos, i + 1] = math.cos(pos / (10000 ** ((2 * (i + 1)) / d_model)))
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x: Tensor) -> Tensor:
        x = x * math.sqrt(self.d_model)
        return x + self.pe[:, : x.size(1)].detach()


class LynnStack(nn.Module):
    def __init__(self, vocab_size: int, decoder: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, 32)
        self.pe = PositionalEncoder(32)
        self.layers = nn.ModuleList([LynnLayer(32, 2, decoder) for _ in range(2)])
        self.norm = Norm(32)

    def forward(self, ids: Tensor, *rest: Tensor) -> Tensor:
        x = self.pe(self.embed(ids))
        for layer in self.layers:
            x = layer(x, *rest)
        return self.norm(x)


class LynnTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = LynnStack(55, False), LynnStack(42, True)
        self.out = nn.Linear(32, 42)

    def forward(self, src: Tensor, trg: Tensor, src_mask: Tensor, trg_mask: Tensor) -> Tensor:
        e_outputs = self.encoder(src, src_mask)
        return self.out(self.decoder(trg, trg_mask, e_outputs, src_mask))


def with_nopeak_mask(model: nn.Module, src: Tensor, trg: Tensor) -> Tensor:
    src_mask, trg_mask = (src != PAD).unsqueeze(-2), (trg != PAD).unsqueeze(-2)
    size = trg.size(1)
    nopeak = torch.ones(1, size, size, dtype=torch.uint8).triu(diagonal=1) == 0
    return model(src, trg, src_mask, trg_mask & nopeak)


def scalar_norm() -> LayerNormalization:
    return LayerNormalization(1)


JAMIL_KIN = (
    Style(
        "jamil",
        lambda: trained(lambda: BlockTransformer(lambda: LayerNormalization(32)), 23),
        "projections without biases; encode, decode and project are called one by one",
        forward=encode_decode_project,
        tables=("src_pos.pe", "tgt_pos.pe"),
        changes={
            **each_layer(
                "eps of the norm in encoder",
                "encoder.layers.{}.residual_connections.0.norm.eps",
                0.1,
            ),
            **each_layer(
                "eps of the norm in decoder",
                "decoder.layers.{}.residual_connections.1.norm.eps",
                0.1,
            ),
            "scale of the source": {"src_embed.d_model": 1},
            "no final norm in encoder": {"encoder.norm": nn.Identity()},
            "no final norm in decoder": {"decoder.norm": nn.Identity()},
            **halved(
                "encoder",
                "encoder.layers.1.self_attention_block.h",
                "encoder.layers.1.self_attention_block.d_k",
                4,
                8,
            ),
            **halved(
                "cross-attention",
                "decoder.layers.0.cross_attention_block.h",
                "decoder.layers.0.cross_attention_block.d_k",
                4,
                8,
            ),
        },
    ),
    Style(
        "jamil_scalar_norm",
        lambda: trained(lambda: BlockTransformer(scalar_norm), 24),
        "each norm has one weight and one bias for all values, as in the first version",
        forward=encode_decode_project,
        tables=("tgt_pos.pe",),
        changes=each_layer(
            "norm left out", "decoder.layers.{}.residual_connections.2.norm", nn.Identity()
        ),
    ),
    Style(
        "lynn",
        lambda: trained(LynnTransformer, 25),
        "a table with other exponents than the paper's; keys are projected first",
        forward=with_nopeak_mask,
        tables=("encoder.pe.pe", "decoder.pe.pe"),
        changes={
            **each_layer("eps of the norm in encoder", "encoder.layers.{}.norm_2.eps", 0.1),
            "no final norm in encoder": {"encoder.norm": nn.Identity()},
            "no final norm in decoder": {"decoder.norm": nn.Identity()},
        },
    ),
)
