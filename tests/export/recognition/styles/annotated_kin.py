"""In the styles of the Annotated Transformer and of Gordić, who follows it: pre-norm, scaled."""

# mypy: no-warn-return-any

import copy
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.export.incremental.own_case import PAD
from tests.export.recognition.styles.style import Style, each_layer, halved, trained

# ---- harvardnlp ----------------------------------------------------------------------------------


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


class SublayerConnection(nn.Module):
    def __init__(self, size: int, dropout: float) -> None:
        super().__init__()
        self.norm = LayerNorm(size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + self.dropout(sublayer(self.norm(x)))


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: nn.Module
) -> tuple[Tensor, Tensor]:
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = dropout(F.softmax(scores, dim=-1))
    return torch.matmul(p_attn, value), p_attn


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
        x, self.attn = attention(query, key, value, mask, self.dropout)
        x = x.transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
        return self.linears[-1](x)


class PositionwiseFeedForward(nn.Module):
    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.w_1, self.w_2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.w_2(self.dropout(F.relu(self.w_1(x))))


class EncoderLayer(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.self_attn = MultiHeadedAttention(4, size)
        self.feed_forward = PositionwiseFeedForward(size, 52)
        self.sublayer = clones(SublayerConnection(size, 0.1), 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))
        return self.sublayer[1](x, self.feed_forward)


class DecoderLayer(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.self_attn = MultiHeadedAttention(4, size)
        self.src_attn = MultiHeadedAttention(4, size)
        self.feed_forward = PositionwiseFeedForward(size, 52)
        self.sublayer = clones(SublayerConnection(size, 0.1), 3)

    def forward(self, x: Tensor, memory: Tensor, src_mask: Tensor, tgt_mask: Tensor) -> Tensor:
        m = memory
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, tgt_mask))
        x = self.sublayer[1](x, lambda x: self.src_attn(x, m, m, src_mask))
        return self.sublayer[2](x, self.feed_forward)


class Stack(nn.Module):
    def __init__(self, layer: nn.Module, n: int) -> None:
        super().__init__()
        self.layers = clones(layer, n)
        self.norm = LayerNorm(32)

    def forward(self, x: Tensor, *rest: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, *rest)
        return self.norm(x)


class Embeddings(nn.Module):
    def __init__(self, d_model: int, vocab: int) -> None:
        super().__init__()
        self.lut = nn.Embedding(vocab, d_model)
        self.d_model = d_model

    def forward(self, x: Tensor) -> Tensor:
        return self.lut(x) * math.sqrt(self.d_model)


class PositionalEncoding(nn.Module):
    pe: Tensor

    def __init__(self, d_model: int, dropout: float, max_len: int = 90) -> None:
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(0, max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * -(math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.pe[:, : x.size(1)].requires_grad_(False)
        return self.dropout(x)


class Generator(nn.Module):
    def __init__(self, d_model: int, vocab: int) -> None:
        super().__init__()
        self.proj = nn.Linear(d_model, vocab)

    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(self.proj(x), dim=-1)


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Stack(EncoderLayer(32), 2)
        self.decoder = Stack(DecoderLayer(32), 2)
        position = PositionalEncoding(32, 0.1)
        self.src_embed = nn.Sequential(Embeddings(32, 41), copy.deepcopy(position))
        self.tgt_embed = nn.Sequential(Embeddings(32, 46), copy.deepcopy(position))
        self.generator = Generator(32, 46)

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor, tgt_mask: Tensor) -> Tensor:
        memory = self.encoder(self.src_embed(src), src_mask)
        return self.decoder(self.tgt_embed(tgt), memory, src_mask, tgt_mask)


def subsequent_mask(size: int) -> Tensor:
    attn_shape = (1, size, size)
    mask = torch.triu(torch.ones(attn_shape), diagonal=1).type(torch.uint8)
    return mask == 0


def with_generator(model: nn.Module, src: Tensor, tgt: Tensor) -> Tensor:
    src_mask = (src != PAD).unsqueeze(-2)
    tgt_mask = (tgt != PAD).unsqueeze(-2)
    tgt_mask = tgt_mask & subsequent_mask(tgt.size(-1)).type_as(tgt_mask.data)
    return model.get_submodule("generator")(model(src, tgt, src_mask, tgt_mask))


# ---- Gordić --------------------------------------------------------------------------------------


class MultiHeadedAttentionNets(nn.Module):
    def __init__(self, model_dimension: int, number_of_heads: int) -> None:
        super().__init__()
        self.head_dimension = model_dimension // number_of_heads
        self.number_of_heads = number_of_heads
        self.qkv_nets = nn.ModuleList(
            [nn.Linear(model_dimension, model_dimension) for _ in range(3)]
        )
        self.out_projection_net = nn.Linear(model_dimension, model_dimension)
        self.attention_dropout = nn.Dropout(p=0.1)
        self.softmax = nn.Softmax(dim=-1)

    def attention(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.head_dimension)
        scores.masked_fill_(mask == torch.tensor(False), float("-inf"))
        return torch.matmul(self.attention_dropout(self.softmax(scores)), value)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        batch_size = query.shape[0]
        query, key, value = [
            net(x).view(batch_size, -1, self.number_of_heads, self.head_dimension).transpose(1, 2)
            for net, x in zip(self.qkv_nets, (query, key, value), strict=True)
        ]
        tokens = self.attention(query, key, value, mask)
        width = self.number_of_heads * self.head_dimension
        return self.out_projection_net(tokens.transpose(1, 2).reshape(batch_size, -1, width))


class PositionwiseNet(nn.Module):
    def __init__(self, model_dimension: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(model_dimension, 68)
        self.linear2 = nn.Linear(68, model_dimension)
        self.relu, self.dropout = nn.ReLU(), nn.Dropout(p=0.1)

    def forward(self, representations: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.relu(self.linear1(representations))))


class SublayerLogic(nn.Module):
    def __init__(self, model_dimension: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(model_dimension)
        self.dropout = nn.Dropout(p=0.1)

    def forward(self, representations: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return representations + self.dropout(sublayer(self.norm(representations)))


class GordicLayer(nn.Module):
    def __init__(self, decoder: bool) -> None:
        super().__init__()
        self.sublayers = nn.ModuleList([SublayerLogic(32) for _ in range(3 if decoder else 2)])
        self.trg_multi_headed_attention = MultiHeadedAttentionNets(32, 2)
        if decoder:
            self.src_multi_headed_attention = MultiHeadedAttentionNets(32, 2)
        self.pointwise_net = PositionwiseNet(32)

    def forward(
        self, x: Tensor, mask: Tensor, srb: Tensor | None = None, src_mask: Tensor | None = None
    ) -> Tensor:
        x = self.sublayers[0](x, lambda y: self.trg_multi_headed_attention(y, y, y, mask))
        if srb is not None:
            x = self.sublayers[1](
                x, lambda y: self.src_multi_headed_attention(y, srb, srb, src_mask)
            )
        return self.sublayers[-1](x, self.pointwise_net)


class TransformerWithNets(nn.Module):
    positional_encodings_table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.src_embedding, self.trg_embedding = nn.Embedding(43, 32), nn.Embedding(57, 32)
        position_id = torch.arange(0, 80).unsqueeze(1)
        frequencies = torch.pow(10000.0, -torch.arange(0, 32, 2, dtype=torch.float) / 32)
        table = torch.zeros(80, 32)
        table[:, 0::2] = torch.sin(position_id * frequencies)
        table[:, 1::2] = torch.cos(position_id * frequencies)
        self.register_buffer("positional_encodings_table", table)
        self.encoder_layers = nn.ModuleList([GordicLayer(False) for _ in range(2)])
        self.decoder_layers = nn.ModuleList([GordicLayer(True) for _ in range(2)])
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(32), nn.LayerNorm(32)
        self.linear = nn.Linear(32, 57)
        self.log_softmax = nn.LogSoftmax(dim=-1)

    def embed(self, table: nn.Module, ids: Tensor) -> Tensor:
        embeddings = table(ids) * math.sqrt(32)
        return embeddings + self.positional_encodings_table[: embeddings.shape[1]]

    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        src_mask = (src != PAD).view(src.shape[0], 1, 1, -1)
        trg_mask = (trg != PAD).view(trg.shape[0], 1, 1, -1)
        length = trg.shape[1]
        no_look_forward = torch.triu(torch.ones((1, 1, length, length)) == 1).transpose(2, 3)
        trg_mask = trg_mask & no_look_forward
        x = self.embed(self.src_embedding, src)
        for layer in self.encoder_layers:
            x = layer(x, src_mask)
        srb = self.encoder_norm(x)
        y = self.embed(self.trg_embedding, trg)
        for layer in self.decoder_layers:
            y = layer(y, trg_mask, srb, src_mask)
        log_probs = self.log_softmax(self.linear(self.decoder_norm(y)))
        return log_probs.reshape(-1, log_probs.shape[-1])


ANNOTATED_KIN = (
    Style(
        "annotated",
        lambda: trained(EncoderDecoder, 41, 0.4),
        "masks and generator outside of forward; the unbiased deviation, eps added to it",
        forward=with_generator,
        tables=("src_embed.1.pe", "tgt_embed.1.pe"),
        changes={
            **each_layer(
                "eps of the norm in encoder", "encoder.layers.{}.sublayer.0.norm.eps", 0.1
            ),
            **each_layer(
                "eps of the norm in decoder", "decoder.layers.{}.sublayer.1.norm.eps", 0.1
            ),
            "eps of the final norm": {"decoder.norm.eps": 1e-2},
            "scale of the source": {"src_embed.0.d_model": 30},
            "scale of the target": {"tgt_embed.0.d_model": 1},
            **halved(
                "encoder", "encoder.layers.0.self_attn.h", "encoder.layers.0.self_attn.d_k", 4, 8
            ),
            **halved(
                "decoder", "decoder.layers.1.src_attn.h", "decoder.layers.1.src_attn.d_k", 4, 8
            ),
        },
    ),
    Style(
        "gordic",
        lambda: trained(TransformerWithNets, 22),
        "projections in a list; masked in place with -inf; flattened log-probabilities",
        tables=("positional_encodings_table",),
        changes={
            **each_layer(
                "eps of the norm in encoder", "encoder_layers.{}.sublayers.1.norm.eps", 1e-2
            ),
            **each_layer(
                "eps of the norm in decoder", "decoder_layers.{}.sublayers.2.norm.eps", 1e-2
            ),
            **each_layer(
                "softmax over queries in decoder",
                "decoder_layers.{}.src_multi_headed_attention.softmax",
                nn.Softmax(dim=-2),
            ),
        },
    ),
)
