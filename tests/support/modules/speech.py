"""Frames of sound to text: strided convolution, GRU, and a GRU that attends."""

import numpy as np
import torch
from torch import Tensor, nn

from tests.support.modules.kind import Kind, Row

VOCABULARY = 28
FRAME = 20


class Listener(nn.Module):
    """Listen, attend and spell (Chan et al. 2016), small."""

    def __init__(self, d_model: int = 24) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(FRAME, d_model, 5, stride=3, padding=2)
        self.encoder = nn.GRU(d_model, d_model // 2, batch_first=True, bidirectional=True)
        self.first = nn.Linear(d_model, d_model)
        self.embedding = nn.Embedding(VOCABULARY, d_model)
        self.query = nn.Linear(d_model, d_model)
        self.cell = nn.GRUCell(2 * d_model, d_model)
        self.output = nn.Linear(2 * d_model, VOCABULARY)

    def encode(self, frames: Tensor) -> Tensor:
        x = torch.relu(self.convolution(frames.transpose(1, 2)))
        heard: Tensor = self.encoder(x.transpose(1, 2))[0]
        return heard

    def start(self, heard: Tensor) -> Tensor:
        hidden: Tensor = torch.tanh(self.first(heard.mean(1)))
        return hidden

    def step(
        self, token: Tensor, position: Tensor, state: tuple[Tensor, ...], memory: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        (heard,), (hidden,) = memory, state
        scores = heard @ self.query(hidden).unsqueeze(2)  # (B, S, 1)
        context = (scores.softmax(1) * heard).sum(1)
        hidden = self.cell(torch.cat([self.embedding(token[:, 0]), context], 1), hidden)
        return self.output(torch.cat([hidden, context], 1)), (hidden,)


def draw(rng: np.random.Generator) -> Row:
    time = int(rng.choice([4, 11, 26, 47]))
    return {"frames": rng.standard_normal((time, FRAME), np.float32)}


KIND = Kind(
    name="speech",
    make=Listener,
    inputs=(("frames", "float32", ("batch", "time", FRAME)),),
    draw=draw,
    seed=5,
    scale=3.0,
    end_bias=1.0,
)
