"""In the style of PyTorch's tutorials: ``nn.Transformer`` and its layers."""

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

# ---- the translation tutorial, batch second ------------------------------------------------------


class PositionalEncoding(nn.Module):
    pos_embedding: Tensor

    def __init__(self, emb_size: int, dropout: float, maxlen: int = 75) -> None:
        super().__init__()
        den = torch.exp(-torch.arange(0, emb_size, 2) * math.log(10000) / emb_size)
        pos = torch.arange(0, maxlen).reshape(maxlen, 1)
        pos_embedding = torch.zeros((maxlen, emb_size))
        pos_embedding[:, 0::2] = torch.sin(pos * den)
        pos_embedding[:, 1::2] = torch.cos(pos * den)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("pos_embedding", pos_embedding.unsqueeze(-2))

    def forward(self, token_embedding: Tensor) -> Tensor:
        return self.dropout(token_embedding + self.pos_embedding[: token_embedding.size(0), :])


class TokenEmbedding(nn.Module):
    def __init__(self, vocab_size: int, emb_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, emb_size)
        self.emb_size = emb_size

    def forward(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens.long()) * math.sqrt(self.emb_size)


class Seq2SeqTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(
            d_model=32,
            nhead=4,
            num_encoder_layers=2,
            num_decoder_layers=2,
            dim_feedforward=56,
            dropout=0.1,
        )
        self.generator = nn.Linear(32, 51)
        self.src_tok_emb = TokenEmbedding(45, 32)
        self.tgt_tok_emb = TokenEmbedding(51, 32)
        self.positional_encoding = PositionalEncoding(32, dropout=0.1)

    def forward(
        self,
        src: Tensor,
        trg: Tensor,
        src_mask: Tensor,
        tgt_mask: Tensor,
        src_padding_mask: Tensor,
        tgt_padding_mask: Tensor,
        memory_key_padding_mask: Tensor,
    ) -> Tensor:
        src_emb = self.positional_encoding(self.src_tok_emb(src))
        tgt_emb = self.positional_encoding(self.tgt_tok_emb(trg))
        outs = self.transformer(
            src_emb,
            tgt_emb,
            src_mask,
            tgt_mask,
            None,
            src_padding_mask,
            tgt_padding_mask,
            memory_key_padding_mask,
        )
        return self.generator(outs)


def generate_square_subsequent_mask(sz: int) -> Tensor:
    mask = (torch.triu(torch.ones((sz, sz))) == 1).transpose(0, 1)
    return mask.float().masked_fill(mask == 0, float("-inf")).masked_fill(mask == 1, 0.0)


def with_created_masks(model: nn.Module, src: Tensor, tgt: Tensor) -> Tensor:
    tgt_mask = generate_square_subsequent_mask(tgt.shape[0])
    src_mask = torch.zeros((src.shape[0], src.shape[0])).type(torch.bool)
    src_padding_mask = (src == PAD).transpose(0, 1)
    tgt_padding_mask = torch.zeros(tgt.shape[1], tgt.shape[0])
    tgt_padding_mask = tgt_padding_mask.masked_fill((tgt == PAD).transpose(0, 1), float("-inf"))
    return model(src, tgt, src_mask, tgt_mask, src_padding_mask, tgt_padding_mask, src_padding_mask)


# ---- batch first, pre-norm, learned positions ----------------------------------------------------


class StockTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.src_embed, self.tgt_embed = nn.Embedding(42, 32), nn.Embedding(58, 32)
        self.src_pos = nn.Parameter(torch.randn(1, 64, 32) * 0.3)
        self.tgt_pos = nn.Parameter(torch.randn(1, 72, 32) * 0.3)
        self.transformer = nn.Transformer(
            32,
            2,
            2,
            2,
            60,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
            layer_norm_eps=1e-6,
        )
        self.fc = nn.Linear(32, 58, bias=False)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        pad_mask = src == PAD
        hidden = self.transformer(
            self.src_embed(src) + self.src_pos[:, : src.size(1)],
            self.tgt_embed(tgt) + self.tgt_pos[:, : tgt.size(1)],
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(tgt.size(1)),
            src_key_padding_mask=pad_mask,
            memory_key_padding_mask=pad_mask,
            tgt_is_causal=True,
        )
        return self.fc(hidden)


# ---- its layers in stacks without a last norm ----------------------------------------------------


class StackedLayers(nn.Module):
    """Three encoder layers and one decoder layer, one table for all, positions by a lookup."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(52, 32, padding_idx=PAD)
        self.embed_positions = nn.Embedding(68, 32)
        encoder_layer = nn.TransformerEncoderLayer(32, 4, 44, activation=F.silu, batch_first=True)
        self.encoder = nn.TransformerEncoder(encoder_layer, 3, enable_nested_tensor=False)
        decoder_layer = nn.TransformerDecoderLayer(32, 4, 72, activation=F.silu, batch_first=True)
        self.decoder = nn.TransformerDecoder(decoder_layer, 1)

    def embed(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.size(1), device=ids.device).unsqueeze(0)
        return self.embed_tokens(ids) + self.embed_positions(positions)

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
        padding = input_ids.eq(PAD)
        memory = self.encoder(self.embed(input_ids), src_key_padding_mask=padding)
        length = decoder_input_ids.size(1)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        hidden = self.decoder(
            self.embed(decoder_input_ids), memory, future, memory_key_padding_mask=padding
        )
        return F.linear(hidden, self.embed_tokens.weight)


STOCK_KIN = (
    Style(
        "pytorch_tutorial",
        lambda: trained(Seq2SeqTransformer, 69, 0.6),
        "nn.Transformer, batch second, masks of floats made outside, post-norm with last norms",
        inputs=(SOURCE_BATCH_SECOND,),
        target=TARGET_BATCH_SECOND,
        forward=with_created_masks,
        tables=("positional_encoding.pos_embedding",),
        changes={
            **each_layer("eps in encoder", "transformer.encoder.layers.{}.norm1.eps", 1e-3),
            **each_layer("eps in decoder", "transformer.decoder.layers.{}.norm2.eps", 1e-3),
            **each_layer("pre-norm in encoder", "transformer.encoder.layers.{}.norm_first", True),
            **each_layer("pre-norm in decoder", "transformer.decoder.layers.{}.norm_first", True),
            **each_layer("gelu in encoder", "transformer.encoder.layers.{}.activation", F.gelu),
            **each_layer("gelu in decoder", "transformer.decoder.layers.{}.activation", F.gelu),
            **each_layer(
                "no norm in decoder", "transformer.decoder.layers.{}.norm3", nn.Identity()
            ),
            "no final norm in encoder": {"transformer.encoder.norm": None},
            "no final norm in decoder": {"transformer.decoder.norm": None},
            "scale of the source": {"src_tok_emb.emb_size": 1},
            "scale of the target": {"tgt_tok_emb.emb_size": 16},
            "eps of the final norm": {"transformer.decoder.norm.eps": 1e-2},
        },
        stock=True,
    ),
    Style(
        "pytorch_pre_norm",
        lambda: trained(StockTransformer, 32, 1.0),
        "nn.Transformer, pre-norm, gelu, learned positions as parameters, no scale",
        tables=("src_pos", "tgt_pos"),
        changes={
            **each_layer("eps in encoder", "transformer.encoder.layers.{}.norm1.eps", 1e-3),
            **each_layer("eps in decoder", "transformer.decoder.layers.{}.norm3.eps", 1e-3),
            **each_layer("post-norm in encoder", "transformer.encoder.layers.{}.norm_first", False),
            **each_layer("post-norm in decoder", "transformer.decoder.layers.{}.norm_first", False),
            **each_layer("relu in encoder", "transformer.encoder.layers.{}.activation", F.relu),
            **each_layer(
                "gelu's other form in decoder",
                "transformer.decoder.layers.{}.activation",
                nn.GELU(approximate="tanh"),
            ),
            **each_layer(
                "no norm in decoder", "transformer.decoder.layers.{}.norm2", nn.Identity()
            ),
            "no final norm in encoder": {"transformer.encoder.norm": None},
            "no final norm in decoder": {"transformer.decoder.norm": None},
        },
        stock=True,
    ),
    Style(
        "pytorch_stacks",
        lambda: trained(StackedLayers, 79, 1.0, 1.3),
        "torch's layers, three and one, of other d_ff; silu; no last norms; one table for all",
        tables=("embed_positions.weight",),
        changes={
            **each_layer("eps in encoder", "encoder.layers.{}.norm2.eps", 1e-3, 3),
            **each_layer("pre-norm in encoder", "encoder.layers.{}.norm_first", True, 3),
            **each_layer("gelu in encoder", "encoder.layers.{}.activation", F.gelu, 3),
            **each_layer("no norm in encoder", "encoder.layers.{}.norm1", nn.Identity(), 3),
            "pre-norm in decoder": {"decoder.layers.0.norm_first": True},
            "relu in decoder": {"decoder.layers.0.activation": F.relu},
            "a norm of other values": {"decoder.norm": nn.LayerNorm(32)},
        },
        stock=True,
    ),
)
