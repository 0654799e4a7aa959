"""A GRU that remembers where it has looked (See et al. 2017), with state of three types."""

from functools import partial

import torch
from torch import Tensor, nn

from tests.support.modules.kind import TEXT_INPUTS, Kind, draw_text

VOCABULARY = 26
SEPARATOR = 3


class CoverageModel(nn.Module):
    """State: hidden (B, D), coverage (B, S), tokens (B,) int64, separator seen (B, 1) bool."""

    def __init__(self, d_model: int = 24) -> None:
        super().__init__()
        self.source = nn.Embedding(VOCABULARY, d_model)
        self.target = nn.Embedding(VOCABULARY, d_model)
        self.encoder = nn.GRU(d_model, d_model, batch_first=True)
        self.key = nn.Linear(d_model, d_model)
        self.query = nn.Linear(d_model, d_model)
        self.covered = nn.Linear(1, d_model, bias=False)
        self.score = nn.Linear(d_model, 1)
        self.cell = nn.GRUCell(2 * d_model, d_model)
        self.thirds = nn.Embedding(3, d_model)
        self.separated = nn.Parameter(torch.randn(VOCABULARY))
        self.output = nn.Linear(2 * d_model, VOCABULARY)

    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        x, _ = self.encoder(self.source(input_ids))
        return x, attention_mask.bool()

    def start(self, hidden: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        kept = mask.unsqueeze(-1)
        mean = (hidden * kept).sum(1) / kept.sum(1)
        count = torch.zeros(mean.size(0), dtype=torch.int64)
        separated = torch.zeros(mean.size(0), 1, dtype=torch.bool)
        return torch.tanh(mean), torch.zeros(mask.shape), count, separated

    def step(
        self, token: Tensor, position: Tensor, state: tuple[Tensor, ...], memory: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        source, mask = memory
        hidden, coverage, count, separated = state
        separated = separated | (token == SEPARATOR)
        inner = self.key(source) + self.query(hidden)[:, None] + self.covered(coverage[..., None])
        scores = self.score(torch.tanh(inner)).squeeze(-1)
        weights = torch.where(mask, scores, -torch.inf).softmax(-1)
        context = (weights[:, None] @ source).squeeze(1)
        embedded = self.target(token).squeeze(1) + self.thirds(count % 3)
        hidden = self.cell(torch.cat([embedded, context], -1), hidden)
        logits = self.output(torch.cat([hidden, context], -1))
        logits = logits + separated.float() * self.separated
        return logits, (hidden, coverage + weights, count + 1, separated)


KIND = Kind(
    name="coverage",
    make=CoverageModel,
    inputs=TEXT_INPUTS,
    draw=partial(draw_text, vocabulary=VOCABULARY),
    seed=11,
    scale=3.0,
    end_bias=1.0,
)
