"""One small table for both languages and the output, one layer applied again and again (ALBERT)."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.modules.kind import TEXT_INPUTS, Kind, draw_text

VOCABULARY = 36


class Output(nn.Module):
    """Back through the factors: (B, T, D) to logits (B, T, V)."""

    def __init__(self, table: nn.Embedding, widen: nn.Linear) -> None:
        super().__init__()
        self.table, self.widen = table, widen
        self.bias = nn.Parameter(torch.zeros(VOCABULARY))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x @ self.widen.weight, self.table.weight, self.bias)


class FactoredModel(nn.Module):
    def __init__(self, factor: int = 12, d_model: int = 32, times: int = 2) -> None:
        super().__init__()
        self.times = times
        self.table = nn.Embedding(VOCABULARY, factor)
        self.widen = nn.Linear(factor, d_model)
        self.positions = nn.Embedding(64, d_model)
        self.encoder_layer = nn.TransformerEncoderLayer(d_model, 4, 48, batch_first=True)
        self.decoder_layer = nn.TransformerDecoderLayer(d_model, 4, 48, batch_first=True)
        self.output = Output(self.table, self.widen)

    def embed(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
        x: Tensor = self.widen(self.table(ids)) + self.positions(places)
        return x

    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        padding = ~attention_mask.bool()
        x = self.embed(input_ids)
        for _ in range(self.times):
            x = self.encoder_layer(x, src_key_padding_mask=padding)
        return x, padding

    def decode(self, tokens: Tensor, hidden: Tensor, padding: Tensor) -> Tensor:
        length = tokens.size(1)
        mask = torch.full((length, length), float("-inf")).triu(1)
        x = self.embed(tokens)
        for _ in range(self.times):
            x = self.decoder_layer(x, hidden, tgt_mask=mask, memory_key_padding_mask=padding)
        logits: Tensor = self.output(x)
        return logits


KIND = Kind(
    name="factored",
    make=FactoredModel,
    inputs=TEXT_INPUTS,
    draw=partial(draw_text, vocabulary=VOCABULARY),
    seed=2,
    scale=1.5,
    table_scale=0.5,
    end_bias=1.5,
)
