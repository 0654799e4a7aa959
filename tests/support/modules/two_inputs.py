"""A question and what was seen in a picture: two inputs, one behind the other in the memory."""

import numpy as np
import torch
from torch import Tensor, nn

from tests.support.modules.kind import TEXT_INPUTS, Kind, Row, draw_text

VOCABULARY = 30
FEATURES = 12


class Answerer(nn.Module):
    """Memory: text and regions (B, S + R, E), True where it is padding. State: inputs so far."""

    def __init__(self, d_model: int = 24) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, d_model)
        self.regions = nn.Linear(FEATURES, d_model)
        self.positions = nn.Embedding(64, d_model)
        layer = nn.TransformerEncoderLayer(d_model, 4, 40, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.target = nn.Embedding(VOCABULARY, d_model)
        self.attention = nn.MultiheadAttention(d_model, 4, batch_first=True)
        self.cross = nn.MultiheadAttention(d_model, 4, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.output = nn.Linear(d_model, VOCABULARY)

    def encode(
        self, input_ids: Tensor, attention_mask: Tensor, regions: Tensor
    ) -> tuple[Tensor, Tensor]:
        text = self.words(input_ids) + self.positions(torch.arange(input_ids.size(1)))
        x = torch.cat([text, self.regions(regions)], 1)
        seen = torch.ones(regions.shape[:2], dtype=torch.bool)
        padding = torch.cat([attention_mask.bool(), seen], 1).logical_not()
        return self.encoder(x, src_key_padding_mask=padding), padding

    def start(self, hidden: Tensor, padding: Tensor) -> tuple[Tensor]:
        return (hidden[:, :0],)

    def step(
        self, token: Tensor, position: Tensor, state: tuple[Tensor, ...], memory: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor]]:
        hidden, padding = memory
        x = self.target(token) + self.positions(position)
        inputs = torch.cat([state[0], x], 1)
        x = self.norm1(x + self.attention(x, inputs, inputs, need_weights=False)[0])
        attended, _ = self.cross(x, hidden, hidden, key_padding_mask=padding)
        return self.output(self.norm2(x + attended)).squeeze(1), (inputs,)


def draw(rng: np.random.Generator) -> Row:
    regions = rng.standard_normal((int(rng.choice([1, 3, 6])), FEATURES), np.float32)
    return {**draw_text(rng, VOCABULARY), "regions": regions}


KIND = Kind(
    name="two_inputs",
    make=Answerer,
    inputs=(*TEXT_INPUTS, ("regions", "float32", ("batch", "regions", FEATURES))),
    draw=draw,
    seed=0,
    scale=2.5,
    end_bias=1.5,
)
