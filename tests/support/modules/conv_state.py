"""Convolutions on both sides (Gehring et al. 2017): the decoder's state is the last few inputs."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.modules.kind import Kind, Row

VOCABULARY = 26
SOUNDS = 22
KERNEL = 3


class ConvDecoderModel(nn.Module):
    """Memory: keys and values (B, S, E). State: (B, E, kernel - 1) for each layer."""

    def __init__(self, d_model: int = 24, layers: int = 2) -> None:
        super().__init__()
        self.sounds = nn.Embedding(SOUNDS, d_model)
        self.encoder = nn.Conv1d(d_model, 2 * d_model, KERNEL, padding="same")
        self.embedding = nn.Embedding(VOCABULARY, d_model)
        self.decoder = nn.ModuleList(nn.Conv1d(d_model, 2 * d_model, KERNEL) for _ in range(layers))
        self.query = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(layers))
        self.output = nn.Linear(d_model, VOCABULARY)

    def encode(self, phonemes: Tensor) -> tuple[Tensor, Tensor]:
        x = self.sounds(phonemes)
        keys = F.glu(self.encoder(x.transpose(1, 2)), dim=1).transpose(1, 2)
        return keys, (keys + x) * 0.5**0.5

    def start(self, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        batch, _, width = keys.shape
        return tuple(torch.zeros(batch, width, KERNEL - 1) for _ in self.decoder)

    def step(
        self, token: Tensor, position: Tensor, state: tuple[Tensor, ...], memory: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        keys, values = memory
        embedded = self.embedding(token).transpose(1, 2)  # (B, E, 1)
        x, windows = embedded, []
        for convolution, query, window in zip(self.decoder, self.query, state, strict=True):
            window = torch.cat([window, x], 2)
            y = F.glu(convolution(window), dim=1)
            asked = query((y + embedded)[:, :, 0])  # (B, E)
            weights = torch.einsum("be,bse->bs", asked, keys).softmax(-1)
            y = y + torch.einsum("bs,bse->be", weights, values).unsqueeze(2)
            x = (x + y) * 0.5**0.5
            windows.append(window[:, :, 1:])
        return self.output(x[:, :, 0]), tuple(windows)


def draw(rng: np.random.Generator) -> Row:
    return {"phonemes": rng.integers(0, SOUNDS, int(rng.choice([1, 4, 9, 15])))}


KIND = Kind(
    name="conv_state",
    make=ConvDecoderModel,
    inputs=(("phonemes", "int64", ("batch", "length")),),
    draw=draw,
    seed=1,
    scale=2.5,
    end_bias=1.5,
)
