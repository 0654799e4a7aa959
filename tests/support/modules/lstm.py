"""LSTM to LSTM with additive attention (Bahdanau et al. 2015)."""

from functools import partial

import torch
from torch import Tensor, nn

from tests.support.modules.kind import TEXT_INPUTS, Kind, draw_text

VOCABULARY = 26


class Translator(nn.Module):
    """Memory: outputs (B, S, D), projected keys (B, S, D), mask (B, S) and last output (B, D).

    State: as torch's LSTM has it, (1, B, D).
    """

    def __init__(self, d_model: int = 24) -> None:
        super().__init__()
        self.source = nn.Embedding(VOCABULARY, d_model)
        self.target = nn.Embedding(VOCABULARY, d_model)
        self.encoder = nn.LSTM(d_model, d_model, num_layers=2, batch_first=True)
        self.bridge = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.score = nn.Linear(d_model, 1, bias=False)
        self.decoder = nn.LSTM(2 * d_model, d_model, batch_first=True)
        self.output = nn.Linear(2 * d_model, VOCABULARY)

    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        outputs, _ = self.encoder(self.source(input_ids))
        last = attention_mask.sum(1) - 1
        index = last[:, None, None].expand(-1, 1, outputs.size(2))
        return outputs, self.key(outputs), attention_mask == 0, outputs.gather(1, index)[:, 0]

    def start(
        self, outputs: Tensor, keys: Tensor, padding: Tensor, last: Tensor
    ) -> tuple[Tensor, ...]:
        hidden = torch.tanh(self.bridge(last)).unsqueeze(0)
        return hidden, torch.zeros_like(hidden)

    def step(
        self, token: Tensor, position: Tensor, state: tuple[Tensor, ...], memory: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        hidden, cell = state
        outputs, keys, padding, _ = memory
        scores = self.score(torch.tanh(keys + self.query(hidden[-1])[:, None]))[:, :, 0]
        weights = scores.masked_fill(padding, float("-inf")).softmax(-1)
        context = torch.bmm(weights[:, None], outputs)
        x = torch.cat([self.target(token), context], -1)
        x, (hidden, cell) = self.decoder(x, (hidden, cell))
        return self.output(torch.cat([x, context], -1))[:, 0], (hidden, cell)


KIND = Kind(
    name="lstm",
    make=Translator,
    inputs=TEXT_INPUTS,
    draw=partial(draw_text, vocabulary=VOCABULARY),
    seed=0,
    scale=3.5,
    table_scale=3.5,
)
