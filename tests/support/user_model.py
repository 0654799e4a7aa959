"""Models whose lines messages name. Its text is also written into packages, archives and cells."""

from typing import Any

import torch
from torch import Tensor, nn


class Small(nn.Module):
    """A running sum over the target, and the mean of the source."""

    def __init__(self, words: int = 20, size: int = 16) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(words, size), nn.Embedding(words, size)
        self.out = nn.Linear(size, words)

    def forward(self, source: Tensor, target: Tensor) -> Any:
        assert (source >= 0).all(), "an id"  # without effect on the result
        keep = (source != 0).unsqueeze(2)
        mean = (self.source(source) * keep).sum(1, keepdim=True) / keep.sum(1, keepdim=True)
        summed = self.target(target).cumsum(1)
        return self.out(torch.tanh(summed + mean))


class Sized(Small):
    """A length that becomes a number."""

    def forward(self, source: Tensor, target: Tensor) -> Any:
        ones = torch.ones(int(target.size(1)), 1)
        return super().forward(source, target) * ones


class Branching(Small):
    """A branch on values."""

    def forward(self, source: Tensor, target: Tensor) -> Any:
        made = super().forward(source, target)
        if made.sum() > 0:
            made = made * 2
        return made
