"""A model that is a table: logits that depend on the source and on every token so far.

It stands in for ``runtime.model.bundle_model.Model`` in tests of the search, and imports nothing
of the package.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]


class TableState:
    """The rows of a batch: the source of each, and the tokens it has seen."""

    def __init__(self, ids: Sequence[Sequence[int]], longest: int) -> None:
        self.ids = [list(row) for row in ids]
        self.sources = np.arange(len(ids))
        self.seen: list[list[int]] = [[] for _ in ids]
        self.longest = longest
        self.sizes = [len(self.seen)]

    def select(self, rows: NDArray[np.intp]) -> None:
        self.ids = [self.ids[i] for i in rows]
        self.sources = self.sources[rows]
        self.seen = [list(self.seen[i]) for i in rows]
        self.sizes.append(len(rows))


class TableModel:
    """Logits over ``vocab_size`` tokens, drawn from the seed, the source and the prefix."""

    has_generate = has_min_length = has_shortlist = has_beam = False
    has_attention, searches_encoded = True, False
    log_normalizer = None

    def __init__(self, vocab_size: int, seed: int = 0, scale: float = 2.0, step: float = 0) -> None:
        self.vocab_size, self.seed, self.scale, self.rounding = vocab_size, seed, scale, step
        self.steps = 0

    def logits(self, source: Sequence[int], seen: Sequence[int]) -> Logits:
        """What follows the tokens ``seen``, start token first."""
        generator = np.random.default_rng([self.seed, *source, 1000, *seen])
        values = generator.normal(size=self.vocab_size) * self.scale
        if self.rounding:  # so coarse that many values tie
            values = np.round(values / self.rounding) * self.rounding
        return values.astype(np.float32)

    def weights(self, source: Sequence[int], seen: Sequence[int], longest: int) -> Logits:
        """Attention over the source: two layers of two heads, 0 on padding."""
        generator = np.random.default_rng([self.seed, 7, *source, 1000, *seen])
        values = np.zeros((2, 2, longest), np.float32)
        drawn = generator.random((2, 2, len(source))) ** 4
        values[..., : len(source)] = drawn / drawn.sum(-1, keepdims=True)
        return values

    def encode(self, rows: Sequence[Sequence[int]]) -> TableState:
        return TableState(rows, max(len(row) for row in rows))

    def encoded(self, rows: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
        return rows

    def trace(self, *_: object) -> None:
        """No search in one call, and so no trace of one."""

    def retrace(self, *_: object) -> None:
        """No rows of positions of their own."""

    def attend(
        self, input_ids: NDArray[np.int64], state: TableState, candidates: None = None
    ) -> tuple[Logits, Logits]:
        assert input_ids.shape[0] == len(state.seen), "rows that ended have left the batch"
        self.steps += 1
        logits, weights = [], []
        for row, tokens in enumerate(input_ids.tolist()):
            steps = []
            for token in tokens:
                state.seen[row].append(token)
                seen = state.seen[row]
                steps.append((self.logits(state.ids[row], seen),
                              self.weights(state.ids[row], seen, state.longest)))  # fmt: skip
            logits.append([step[0] for step in steps])
            weights.append([step[1] for step in steps])
        return np.array(logits), np.array(weights).transpose(0, 2, 3, 1, 4)

    def step(
        self, input_ids: NDArray[np.int64], state: TableState, candidates: None = None
    ) -> Logits:
        return self.attend(input_ids, state)[0]
