"""The interface of searches that choose tokens by logits, and the batches that they run in.

Axes: R rows, S source, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tfexport.runtime.model.abandoned import AbandonedError
from tfexport.runtime.model.interface import Floats, Ids, Model, Rows
from tfexport.runtime.options import DecodingOptions, Step
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search.logits import token_log_probs
from tfexport.runtime.search.request import Request, ResolvedOptions

# Axes: B batch, P prefix, S source, V vocabulary, L layers, H heads, T positions.


@dataclass
class Prefixes:
    """The decoded target prefixes of a batch.

    Attributes:
        prefix: (B, P).
        prefix_scores: (B, P), natural-log probabilities of its tokens, unfiltered; that of a
            forced first token is 0.
        attention: (B, P + 1, S), or (B, P, S) without a position after the prefix; None if nothing
            asks for it.
    """

    prefix: Ids
    prefix_scores: NDArray[np.float64]
    attention: Floats | None = None


@dataclass(kw_only=True)
class Prefilled(Prefixes):
    """The state of a batch after prefill.

    Attributes:
        state: the state of the decoder, after the start token and the prefix.
        logits: (B, V) of the position after the prefix; None if it has ``max_length`` tokens.
        watched: (B, V), unfiltered, of the position that was asked for.
    """

    state: Rows
    logits: Floats | None
    watched: Floats | None = None


def prefill(
    model: Model,
    requests: Sequence[Request],
    options: ResolvedOptions,
    *,
    full_vocabulary: bool = False,
    watch: int | None = None,
) -> Prefilled:
    """Encode rows whose prefixes are equally long, and run the decoder over these.

    Args:
        model: the model that decodes.
        requests: the rows.
        options: how to decode them.
        full_vocabulary: compute all logits, not only those of the rows' candidates.
        watch: of the start token and the prefix, the place whose logits are kept too.
    """
    state = model.encode([request.source for request in requests])
    prefix = np.array([request.prefix for request in requests], np.int64)
    prefix = prefix.reshape(len(requests), -1)
    length = prefix.shape[1]
    start = np.full((len(requests), 1), options.bos_id, np.int64)
    tokens = np.concatenate([start, prefix], axis=1)
    full = length >= options.max_length
    if full:
        # The position after the last token may be beyond the position table.
        tokens = tokens[:, :-1]
    if not tokens.shape[1]:
        longest = max(request.length for request in requests)
        none = np.zeros((len(requests), 0, longest), np.float32)
        attention = none if options.needs_attention else None
        scores = np.zeros((len(requests), 0))
        return Prefilled(prefix, scores, attention, state=state, logits=None)
    # A prefix may hold tokens outside the shortlist; its probability needs the full vocabulary.
    candidates = None if length or full_vocabulary else all_candidates(requests)
    logits, attention = advance(model, tokens, state, options, candidates)
    scores = np.zeros(prefix.shape)
    for i in range(length):
        scores[:, i] = token_log_probs(logits[:, i], prefix[:, i])
    if length and options.first_token is not None:
        scores[prefix[:, 0] == options.first_token, 0] = 0  # a forced token is certain
    newest = None if full else logits[:, -1]
    watched = None if watch is None else logits[:, watch].copy()  # ``newest`` is written to
    return Prefilled(prefix, scores, attention, state=state, logits=newest, watched=watched)


def advance(
    model: Model,
    tokens: Ids,
    state: Rows,
    options: DecodingOptions,
    candidates: Ids | None = None,
) -> tuple[Floats, Floats | None]:
    """Run the decoder: tokens (R, T) to logits (R, T, V) and, if needed, attention (R, T, S).

    With ``candidates`` only their logits are computed, if the bundle can; others are then -inf.
    """
    if candidates is not None and not model.has_shortlist:
        candidates = None
    if not options.needs_attention:
        return model.step(tokens, state, candidates), None
    logits, weights = model.attend(tokens, state, candidates)
    return logits, select_attention(weights, options)


def all_candidates(requests: Sequence[Request]) -> Ids | None:
    """The union of all rows' candidates, ascending; None if a row may choose any token.

    ``LogitFilters`` restricts each row to its own candidates.
    """
    given = [row.candidates for row in requests if row.candidates is not None]
    if len(given) < len(requests):
        return None
    union: Ids = np.unique(np.concatenate(given))
    return union


def select_attention(weights: Floats, options: DecodingOptions) -> Floats:
    """Select a layer, and a head or the mean of heads: (R, L, H, T, S) to (R, T, S)."""
    layer = weights[:, options.attention_layer]
    if options.attention_head is not None:
        return layer[:, options.attention_head]
    mean: Floats = layer.mean(1)
    return mean


class NextStep(NamedTuple):
    """The next tokens of a search.

    Attributes:
        rows: (R,), index of the previous row that each row continues; rows may be repeated or
            dropped.
        tokens: (R,), the next token of each.
    """

    rows: NDArray[np.intp]
    tokens: Ids


class Choice(Protocol):
    """A search: it chooses tokens step by step, for rows of one batch or of a running one."""

    @property
    def first_rows(self) -> NDArray[np.intp]:
        """The request that each row of the first logits belongs to."""

    def take(
        self, logits: Floats, attention: Floats | None = None
    ) -> tuple[list[Step], NextStep | None]:
        """Choose the next tokens.

        Args:
            logits: (R, V), changed in place; of ``first_rows`` first, then of the previous
                ``NextStep``.
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
        """Continue a prefill; its logits may be None if no step is taken."""
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
            AbandonedError: ``going`` returned false.
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
