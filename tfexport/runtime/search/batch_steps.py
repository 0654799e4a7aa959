"""A search as a choice of tokens by logits, and the batch that it goes on in.

Axes: R rows, S source, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tfexport.runtime.model.interface import Floats, Ids, Model
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search.prefill import Prefilled, advance, all_candidates
from tfexport.runtime.search.request import Request
from tfexport.runtime.search.resolved_options import ResolvedOptions
from tfexport.runtime.step import Step


class AbandonedError(Exception):
    """A search that nobody waits for any more; see ``ResolvedOptions.going``."""


class NextStep(NamedTuple):
    """The next tokens of a search.

    Attributes:
        rows: (R,), rows of the step before that go on, in this order; some may be repeated.
        tokens: (R,), the next token of each.
    """

    rows: NDArray[np.intp]
    tokens: Ids


class Choice(Protocol):
    """The choice of tokens, step by step, for rows of one batch or of a running one."""

    @property
    def first_rows(self) -> NDArray[np.intp]:
        """The request that each row of the first logits belongs to."""

    def take(
        self, logits: Floats, attention: Floats | None = None
    ) -> tuple[list[Step], NextStep | None]:
        """Choose the next tokens.

        Args:
            logits: (R, V), changed in place; first of ``first_rows``, then of the last next step.
            attention: (R, S) of the same step, if it is needed.

        Returns:
            The tokens, for callbacks; and what to decode next, None when all rows are finished.
        """

    def hypotheses(self) -> list[list[Hypothesis]]:
        """For each request its hypotheses so far, best first."""


class BatchSteps:
    """The logits of a batch, step by step.

    Attributes:
        logits: (R, V) of the newest position.
        attention: (R, S) of the newest position; None if nothing asks for it.
    """

    def __init__(
        self,
        model: Model,
        requests: Sequence[Request],
        options: ResolvedOptions,
        prefilled: Prefilled,
    ) -> None:
        """Go on from a prefill; its logits may be missing if no step is taken."""
        self._model, self._options, self._state = model, options, prefilled.state
        self._candidates = all_candidates(requests)
        self.logits = np.zeros((0, 0), np.float32) if prefilled.logits is None else prefilled.logits
        self.attention = None if prefilled.attention is None else prefilled.attention[:, -1:, :]
        if self.attention is not None:
            self.attention = self.attention.reshape(-1, self.attention.shape[-1])

    def select(self, rows: NDArray[np.intp]) -> None:
        """Repeat rows before the first step; see ``DecoderState.select``."""
        if len(rows) == len(self.logits):
            return
        self._state.select(rows)
        self.logits = self.logits[rows]
        self.attention = None if self.attention is None else self.attention[rows]

    def advance(self, then: NextStep) -> None:
        """Give rows their next tokens.

        Raises:
            AbandonedError: nobody waits for them.
        """
        if self._options.going is not None and not self._options.going():
            raise AbandonedError
        self._state.select(then.rows)
        logits, attention = advance(
            self._model, then.tokens[:, None], self._state, self._options, self._candidates
        )
        self.logits = logits[:, -1]
        self.attention = None if attention is None else attention[:, -1]


def run(choice: Choice, steps: BatchSteps) -> list[list[Hypothesis]]:
    """Take all steps; for each request its hypotheses, best first."""
    while True:
        _, then = choice.take(steps.logits, steps.attention)
        if then is None:
            return choice.hypotheses()
        steps.advance(then)
