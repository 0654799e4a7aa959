"""The choice of a token in torch files, by a model's own rules; see ``greedy_rules``.

Axes: B batch, V vocabulary.
"""

import torch
from torch import Tensor, nn

from tfexport.export.graphs.greedy_rules import GreedyRules


class GreedyChoice(nn.Module):
    """The best token of every row, or the one that is forced.

    Attributes:
        first: the forced first token; -1 for none.
        last: the forced last one; -1 for none.
    """

    def __init__(self, rules: GreedyRules, vocab_size: int) -> None:
        super().__init__()
        self.suppresses = bool(rules.suppress_tokens)
        self.bias = nn.Buffer(rules.bias(vocab_size if self.suppresses else 0))
        self.first = -1 if rules.first_token is None else rules.first_token
        self.last = -1 if rules.last_token is None else rules.last_token

    def forward(self, logits: Tensor, step: int, steps: int) -> Tensor:
        """Logits (B, 1, V) of one of ``steps`` steps to tokens (B, 1)."""
        best = self.best(logits)
        if self.last >= 0 and step + 1 == steps:
            return torch.full_like(best, self.last)
        if self.first >= 0 and step == 0:
            return torch.full_like(best, self.first)
        return best

    @torch.jit.unused
    def at(self, logits: Tensor, position: Tensor, limit: Tensor) -> Tensor:
        """``forward``, with the step and their number as tensors (1,)."""
        best = self.best(logits)
        if self.first >= 0:
            best = torch.where(position == 0, self.first, best)
        if self.last >= 0:
            best = torch.where(position + 1 == limit, self.last, best)
        return best

    def best(self, logits: Tensor) -> Tensor:
        """The best token that is allowed, (B, 1)."""
        return (logits + self.bias if self.suppresses else logits).argmax(-1)
