"""A mixture of experts: each token goes through the two of four that a router likes best."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.modules.kind import TEXT_INPUTS, Kind, draw_text

VOCABULARY = 28
HEADS, SIZE = 2, 12
WIDTH = HEADS * SIZE


class Experts(nn.Module):
    def __init__(self, experts: int = 4, chosen: int = 2, inner: int = 32) -> None:
        super().__init__()
        self.chosen = chosen
        self.router = nn.Linear(WIDTH, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, WIDTH, inner) / WIDTH**0.5)
        self.down = nn.Parameter(torch.randn(experts, inner, WIDTH) / inner**0.5)

    def forward(self, x: Tensor) -> Tensor:
        gates, chosen = self.router(x).softmax(-1).topk(self.chosen, -1)  # (B, T, 2)
        gates = gates / gates.sum(-1, keepdim=True)
        inner = F.relu(torch.einsum("btd,btkdf->btkf", x, self.up[chosen]))
        return torch.einsum("btkf,btkfd,btk->btd", inner, self.down[chosen], gates)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key_value = nn.Linear(WIDTH, 2 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def keys(self, x: Tensor) -> Tensor:
        """(B, T, E) to keys and values in one, (B, 2, H, T, D)."""
        both: Tensor = self.key_value(x).unflatten(-1, (2, HEADS, SIZE))
        return both.permute(0, 2, 3, 1, 4)

    def forward(self, x: Tensor, keys: Tensor, mask: Tensor | None = None) -> Tensor:
        query = self.query(x).unflatten(-1, (HEADS, SIZE)).transpose(1, 2)
        key, value = keys.unbind(1)
        scores = query @ key.transpose(-1, -2) / SIZE**0.5
        if mask is not None:
            scores = scores + mask
        y: Tensor = self.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))
        return y


class ExpertsModel(nn.Module):
    """State: one tensor, the keys and values of both layers (B, L, 2, H, T, D)."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.source = nn.Embedding(VOCABULARY, WIDTH)
        self.target = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(64, WIDTH)
        self.encoder_experts = Experts()
        self.encoder_attention = Attention()
        self.attentions: Any = nn.ModuleList(Attention() for _ in range(layers))
        self.crosses: Any = nn.ModuleList(Attention() for _ in range(layers))
        self.experts = nn.ModuleList(Experts() for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3 * layers))
        self.output = nn.Linear(WIDTH, VOCABULARY)

    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        mask = (1.0 - attention_mask[:, None, None].float()) * -1e9
        x = self.source(input_ids) + self.positions(torch.arange(input_ids.size(1)))
        x = x + self.encoder_attention(x, self.encoder_attention.keys(x), mask)
        return x + self.encoder_experts(x), mask

    def start(self, hidden: Tensor, mask: Tensor) -> Tensor:
        return hidden.new_zeros(hidden.size(0), len(self.attentions), 2, HEADS, 0, SIZE)

    def step(
        self, token: Tensor, position: Tensor, state: tuple[Tensor, ...], memory: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor]:
        hidden, mask = memory
        x, caches = self.target(token) + self.positions(position), []
        for i, (attention, cross, experts) in enumerate(
            zip(self.attentions, self.crosses, self.experts, strict=True)
        ):
            cache = torch.cat([state[0][:, i], attention.keys(x)], dim=3)
            x = self.norms[3 * i](x + attention(x, cache))
            x = self.norms[3 * i + 1](x + cross(x, cross.keys(hidden), mask))
            x = self.norms[3 * i + 2](x + experts(x))
            caches.append(cache)
        return self.output(x)[:, 0], torch.stack(caches, 1)


KIND = Kind(
    name="experts",
    make=ExpertsModel,
    inputs=TEXT_INPUTS,
    draw=partial(draw_text, vocabulary=VOCABULARY),
    seed=1,
    scale=1.5,
    end_bias=1.5,
)
