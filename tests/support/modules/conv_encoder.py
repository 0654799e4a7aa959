"""Gated convolutions over text, and torch's decoder with torch's own masks."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.modules.kind import TEXT_INPUTS, Kind, draw_text

VOCABULARY = 30


class ConvEncoderModel(nn.Module):
    def __init__(self, d_model: int = 24, layers: int = 2) -> None:
        super().__init__()
        self.source = nn.Embedding(VOCABULARY, d_model, padding_idx=0)
        self.target = nn.Embedding(VOCABULARY, d_model, padding_idx=0)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(d_model, 2 * d_model, 3, padding=1) for _ in range(layers)
        )
        self.positions = nn.Parameter(torch.randn(64, d_model))
        layer = nn.TransformerDecoderLayer(
            d_model, 2, 40, activation="gelu", batch_first=True, norm_first=True
        )
        self.decoder = nn.TransformerDecoder(layer, 1, norm=nn.LayerNorm(d_model))
        self.output = nn.Linear(d_model, VOCABULARY)

    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        padding = attention_mask == 0
        x = self.source(input_ids).transpose(1, 2)
        for convolution in self.convolutions:
            x = x.masked_fill(padding[:, None], 0)
            x = x + F.glu(convolution(x), dim=1)
        return x.transpose(1, 2), padding

    def decode(self, tokens: Tensor, hidden: Tensor, padding: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.size(1))
        x = self.target(tokens) + self.positions[: tokens.size(1)]
        x = self.decoder(
            x, hidden, tgt_mask=mask, tgt_is_causal=True, memory_key_padding_mask=padding
        )
        logits: Tensor = self.output(x)
        return logits


KIND = Kind(
    name="conv_encoder",
    make=ConvEncoderModel,
    inputs=TEXT_INPUTS,
    draw=partial(draw_text, vocabulary=VOCABULARY),
    seed=1,
    scale=3.0,
    end_bias=1.5,
)
