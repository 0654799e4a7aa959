"""torch's own nn.Transformer, with learned relative positions given to it as float masks."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.modules.kind import TEXT_INPUTS, Kind, draw_text

VOCABULARY = 24
HEADS = 4
FARTHEST = 6


class RelativeBias(nn.Module):
    """A number for each head and distance; one number for all that are farther away."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2 * FARTHEST + 1, HEADS)

    def forward(self, length: int) -> Tensor:
        places = torch.arange(length)
        distance = (places[None] - places[:, None]).clamp(-FARTHEST, FARTHEST) + FARTHEST
        bias: Tensor = self.table(distance).permute(2, 0, 1)  # (H, T, T)
        return bias


class RelativeModel(nn.Module):
    def __init__(self, d_model: int = 32) -> None:
        super().__init__()
        self.source = nn.Embedding(VOCABULARY, d_model)
        self.target = nn.Embedding(VOCABULARY, d_model)
        self.source_bias, self.target_bias = RelativeBias(), RelativeBias()
        # Not ReLU: with it torch runs a fast path, which takes float masks for boolean ones.
        self.transformer = nn.Transformer(
            d_model, HEADS, 1, 1, 48, activation=F.silu, batch_first=True
        )
        self.output = nn.Linear(d_model, VOCABULARY)

    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        padding = torch.zeros(attention_mask.shape).masked_fill(attention_mask == 0, float("-inf"))
        bias = self.source_bias(input_ids.size(1)).repeat(input_ids.size(0), 1, 1)
        x = self.transformer.encoder(
            self.source(input_ids), mask=bias, src_key_padding_mask=padding
        )
        return x, padding

    def decode(self, tokens: Tensor, hidden: Tensor, padding: Tensor) -> Tensor:
        batch, length = tokens.shape
        causal = self.transformer.generate_square_subsequent_mask(length)
        bias = (self.target_bias(length) + causal).repeat(batch, 1, 1)
        x = self.transformer.decoder(
            self.target(tokens), hidden, tgt_mask=bias, memory_key_padding_mask=padding
        )
        logits: Tensor = self.output(x)
        return logits


KIND = Kind(
    name="relative_bias",
    make=RelativeModel,
    inputs=TEXT_INPUTS,
    draw=partial(draw_text, vocabulary=VOCABULARY),
    seed=6,
    scale=1.5,
)
