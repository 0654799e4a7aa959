"""The judge: a module's own forward over the complete prefix, for every token, in plain torch.

Nothing here comes from the exporter or the runtime, so that no mistake of theirs is shared.

Axes: B batch, T target length, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.drawn_modules.spec import BATCH, BOS, EOS, Spec

Row = Mapping[str, NDArray[Any]]
NEAR_TIE = 1e-4  # of log-probabilities, below which either of two tokens is right
ALLOWED = 1e-3  # of a log-probability, relative to max(1, its size)


class Judge:
    """Says whether decoded tokens and their scores are those of a module.

    Args:
        spec: how the module is called.
        module: in eval mode.
        call: ``call(model, *inputs, target)``; None for ``model(*inputs, target)``.
    """

    def __init__(self, spec: Spec, module: nn.Module, call: Callable[..., Any] | None) -> None:
        self.spec, self.module, self.call = spec, module, call

    @torch.no_grad()
    def log_probs(self, row: Row, prefix: Sequence[int], least: int = 0) -> Tensor:
        """(V,) log-probabilities of the token after a prefix, of one row alone.

        Args:
            row: of inputs.
            prefix: the tokens before, without BOS.
            least: tokens before which EOS is not allowed; the others' probabilities are then 1
                together.
        """
        inputs = [self._batch_of_one(row[each.name], each.axes) for each in self.spec.inputs]
        ids = torch.tensor([[BOS, *prefix]])
        target = ids.movedim(0, self.spec.target_axes.index(BATCH))
        if self.call is None:
            result = self.module(*inputs, target)
        else:
            result = self.call(self.module, *inputs, target)
        logits = logits_of(result)
        if logits.dim() == 2:
            last = logits[-1]  # flattened, of one row
        elif self.spec.target_axes[0] == BATCH:
            last = logits[0, -1]
        else:
            last = logits[-1, 0]
        last = last.double()
        if len(prefix) < least:
            last[EOS] = float("-inf")
        return last.log_softmax(-1)

    def greedy(self, row: Row, steps: int, least: int = 0) -> list[int]:
        """The tokens after BOS, without EOS.

        Args:
            row: of inputs.
            steps: the most tokens.
            least: tokens before which EOS is not taken.
        """
        tokens: list[int] = []
        for _ in range(steps):
            best = int(self.log_probs(row, tokens, least).argmax())
            if best == EOS:
                break
            tokens.append(best)
        return tokens

    def difference(
        self,
        row: Row,
        tokens: Sequence[int],
        scores: Sequence[float],
        steps: int,
        least: int = 0,
        prefix: Sequence[int] = (),
    ) -> str:
        """How a hypothesis differs from what the module gives; empty if it does not.

        Args:
            row: of inputs.
            tokens: decoded, without EOS.
            scores: the log-probability of each token, and of EOS where it ended.
            steps: the most tokens.
            least: tokens before which EOS was not allowed.
            prefix: tokens that were forced; they need not be the best, and no rule of decoding
                changes their scores.
        """
        if list(tokens[: len(prefix)]) != list(prefix):
            return f"{list(tokens)} does not begin with {list(prefix)}"
        ended = len(scores) == len(tokens) + 1
        if len(tokens) > steps or (not ended and len(tokens) < steps):
            return f"{len(tokens)} tokens of {steps}, without an end"
        if len(scores) - len(tokens) not in (0, 1):
            return f"{len(scores)} scores of {len(tokens)} tokens"
        chosen = [*tokens, *([EOS] if ended else [])]
        for position, (token, score) in enumerate(zip(chosen, scores, strict=True)):
            ruled = 0 if position < len(prefix) else least
            wanted = self.log_probs(row, chosen[:position], ruled)
            exact = float(wanted[token])
            if not abs(score - exact) <= ALLOWED * max(1.0, abs(exact)):
                return f"token {position} is {token}, scored {score:.5f}, by forward {exact:.5f}"
            if position < len(prefix):
                continue
            gap = float(wanted.max() - wanted[token])
            if gap > NEAR_TIE:
                best = int(wanted.argmax())
                return f"token {position} is {token}, by forward {best}, better by {gap:.1e}"
        return ""

    @staticmethod
    def _batch_of_one(array: NDArray[Any], axes: Sequence[int | str]) -> Tensor:
        return torch.tensor(np.asarray(array)).unsqueeze(axes.index(BATCH))


def logits_of(result: Any) -> Tensor:
    """The logits in what a forward gives: ``.logits``, ``["logits"]`` or the first of a tuple."""
    if isinstance(result, Mapping):
        result = result["logits"]
    result = getattr(result, "logits", result)
    if isinstance(result, tuple | list):
        result = result[0]
    assert isinstance(result, Tensor)
    return result
