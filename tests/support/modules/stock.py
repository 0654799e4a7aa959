"""torch's encoder and decoder as they are, and a layer of one's own around torch's attention."""

import math
from functools import partial

import torch
from torch import Tensor, nn

from tests.support.modules.kind import TEXT_INPUTS, Kind, draw_text

VOCABULARY = 32
LONGEST = 64


class OwnLayer(nn.Module):
    """Attention to the source through a gate."""

    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(d_model, heads, dropout=0.1, batch_first=True)
        self.gate = nn.Linear(d_model, d_model)
        self.norm = nn.LayerNorm(d_model)

    def forward(self, x: Tensor, hidden: Tensor, padding: Tensor) -> Tensor:
        attended, _ = self.attention(
            x, hidden, hidden, key_padding_mask=padding, average_attn_weights=False
        )
        y: Tensor = self.norm(x + torch.sigmoid(self.gate(x)) * attended)
        return y


class StockModel(nn.Module):
    """Framed as PyTorch's tutorial has it, batch first."""

    positions: Tensor

    def __init__(self, d_model: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.source = nn.Embedding(VOCABULARY, d_model)
        self.target = nn.Embedding(VOCABULARY, d_model)
        rates = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        angles = torch.arange(LONGEST).unsqueeze(1) * rates
        self.register_buffer("positions", torch.cat([angles.sin(), angles.cos()], 1))
        encoder_layer = nn.TransformerEncoderLayer(d_model, heads, 48, batch_first=True)
        self.encoder = nn.TransformerEncoder(encoder_layer, 1)
        decoder_layer = nn.TransformerDecoderLayer(d_model, heads, 48, batch_first=True)
        self.decoder = nn.TransformerDecoder(decoder_layer, 1)
        self.own = OwnLayer(d_model, heads)
        self.dropout = nn.Dropout(0.1)
        self.output = nn.Linear(d_model, VOCABULARY)

    def embed(self, table: nn.Embedding, ids: Tensor) -> Tensor:
        x = table(ids) * math.sqrt(table.embedding_dim)
        embedded: Tensor = self.dropout(x + self.positions[: ids.size(1)])
        return embedded

    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        padding = attention_mask == 0
        x = self.embed(self.source, input_ids)
        return self.encoder(x, src_key_padding_mask=padding), padding

    def decode(self, tokens: Tensor, hidden: Tensor, padding: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.size(1), dtype=torch.float32)
        x = self.embed(self.target, tokens)
        x = self.decoder(x, hidden, tgt_mask=mask, memory_key_padding_mask=padding)
        logits: Tensor = self.output(self.own(x, hidden, padding))
        return logits


KIND = Kind(
    name="stock",
    make=StockModel,
    inputs=TEXT_INPUTS,
    draw=partial(draw_text, vocabulary=VOCABULARY),
    seed=1,
    scale=1.5,
    table_scale=0.2,
    end_bias=0.75,
)
