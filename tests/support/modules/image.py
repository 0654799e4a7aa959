"""A picture to text: convolutions, torch's decoder, the prefix decoded anew for every token."""

import numpy as np
import torch
from torch import Tensor, nn

from tests.support.modules.kind import Kind, Row

VOCABULARY = 24


class Captioner(nn.Module):
    """Columns of a picture of 32 rows are what the decoder attends to."""

    def __init__(self, d_model: int = 32) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.project = nn.Linear(8 * 8, d_model)
        self.columns = nn.Embedding(64, d_model)
        self.embedding = nn.Embedding(VOCABULARY, d_model)
        self.positions = nn.Embedding(64, d_model)
        layer = nn.TransformerDecoderLayer(d_model, 4, 48, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 1)
        self.output = nn.Linear(d_model, VOCABULARY)

    def encode(self, image: Tensor) -> Tensor:
        x = self.convolutions(image)  # (B, 8, 8, W / 4)
        x = self.project(x.permute(0, 3, 1, 2).flatten(2))
        columns: Tensor = x + self.columns(torch.arange(x.size(1)))
        return columns

    def decode(self, tokens: Tensor, memory: Tensor) -> Tensor:
        length = tokens.size(1)
        later = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)
        x = self.embedding(tokens) + self.positions(torch.arange(length))
        logits: Tensor = self.output(self.decoder(x, memory, tgt_mask=later))
        return logits


def draw(rng: np.random.Generator) -> Row:
    width = int(rng.choice([9, 24, 31, 58]))
    return {"image": rng.random((1, 32, width), np.float32)}


KIND = Kind(
    name="image",
    make=Captioner,
    inputs=(("image", "float32", ("batch", 1, 32, "width")),),
    draw=draw,
    seed=1,
    scale=2.5,
    end_bias=1.5,
)
