"""Eager PyTorch, with which every artifact is compared: its runs, and the loop over batches.

Axes: B batch, S source, K hypotheses of a beam, T target, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tfexport.bundle import SpecialIds
from tfexport.export.graphs.step_model import NO_RULES, GreedyRules
from tfexport.export.parity.plan import ComparisonPlan
from tfexport.export.report import DRAWN, Comparison, ParityReport
from tfexport.export.rounding import NO_NOISE, Noise, Rounding, suited_threads
from tfexport.module_rows import Array
from tfexport.typing import Progress, silent

NEW_TOKENS = 32
# Of onnxruntime. Idle threads of a larger pool would busy-wait on the cores that PyTorch needs.
THREADS = 1

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
Shape = tuple[int, int]
Value = TypeVar("Value")
Compare = Callable[["EagerRun"], Iterable[Comparison]]


@dataclass(frozen=True)
class EagerRun:
    """One batch, and its greedy decoding in eager PyTorch without a cache.

    Attributes:
        eager: the original.
        rows: the sources, ids or inputs by name. A batch of drawn vectors has none, but a shape.
        shape: the batch and the longest source, (B, S).
        inputs: the kind of the rows: ``DRAWN``, or real ones.
        tokens: (B, T), empty before the batch is decoded. Decoding continues after the end token,
            so every row has T tokens.
        logits: (B, T, V); each position from a run over the full prefix.
        memory: what the encoder gives for each row without padding; None if rows of a batch have a
            longer one.
        noise: the float32 noise of the original on this batch.
    """

    eager: Eager
    rows: Sequence[Any]
    shape: Shape
    inputs: str = DRAWN
    tokens: Ids = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    logits: Floats = field(default_factory=lambda: np.zeros((0, 0, 0), np.float32))
    memory: Sequence[tuple[Tensor, ...]] | None = None
    noise: Noise = NO_NOISE

    @property
    def special_ids(self) -> SpecialIds:
        """The special ids of the vocabularies."""
        return self.eager.special_ids

    @property
    def steps(self) -> int:
        """The number of steps, T."""
        return int(self.tokens.shape[1])

    @property
    def prefix(self) -> Ids:
        """The decoder inputs that give ``logits``: the start token and all tokens but the last."""
        return start_with(self.special_ids.decoder_start, self.tokens)

    @cached_property
    def by_rules(self) -> EagerRun:
        """The same batch by the model's own rules; its logits are those of allowed tokens."""
        rules = self.eager.rules
        return self if rules == NO_RULES else self.eager.decode(self, self.steps, rules)

    @cached_property
    def _known(self) -> dict[tuple[str, bytes], Any]:
        return {}

    def once(self, name: str, ids: Ids, compute: Callable[[], Value]) -> Value:
        """A result of eager PyTorch for these ids, computed once for all engines."""
        key = name, ids.tobytes()
        if key not in self._known:
            self._known[key] = compute()
        value: Value = self._known[key]
        return value


class Eager(ABC):
    """The original of a model in eager PyTorch.

    Attributes:
        title: the step that progress names.
        code: the modules and functions that it runs.
        rounding: measures the original.
        rules: those of the model's greedy search.
        steps: the number of tokens that a row decodes.
        most_steps: the same for the first batch, which shows what happens late only.
        special_ids: the special ids of the vocabularies; a model that decodes no tokens may lack
            them.
        runs_own_code: whether the original is the user's own code.
        compares_log_probs: whether log-probabilities are compared in place of logits.
    """

    title = "comparing with eager PyTorch"
    runs_own_code: bool
    compares_log_probs: bool

    def __init__(
        self, code: Any, rounding: Rounding, rules: GreedyRules, longest: int | None
    ) -> None:
        self.code, self.rounding, self.rules = code, rounding, rules
        self.steps = NEW_TOKENS if longest is None else min(NEW_TOKENS, longest)
        self.most_steps = self.steps

    @property
    @abstractmethod
    def special_ids(self) -> SpecialIds:
        """See the class."""

    @abstractmethod
    def batches(self, plan: ComparisonPlan) -> Iterator[EagerRun]:
        """Batches, not decoded: of drawn inputs, then of the real rows that are not too long."""

    @abstractmethod
    def decode(
        self, batch: EagerRun, steps: int | None = None, rules: GreedyRules = NO_RULES
    ) -> EagerRun:
        """Decode a batch greedily.

        Args:
            batch: one that was decoded is decoded again.
            steps: the number of tokens of each row.
            rules: of the search; the logits are then those of allowed tokens.
        """

    @abstractmethod
    def follow(self, ids: Sequence[int], prefix: Sequence[int]) -> Floats:
        """The logits (T, V) after each token of a prefix (T,), for a source of ids."""

    @abstractmethod
    def score(self, run: EagerRun, beams: int, prefixes: Sequence[Tensor]) -> Iterator[Tensor]:
        """Score prefixes of beams.

        Args:
            run: its rows.
            beams: K, of each row.
            prefixes: those of every step, (B * K, T) each.

        Yields:
            The logits (B * K, V) that follow those of each step.
        """

    @abstractmethod
    def feeds(self, rows: Sequence[Any]) -> dict[str, Array]:
        """The inputs of a graph for rows, by name."""

    @abstractmethod
    def compare_programs(self, run: EagerRun) -> Iterator[Comparison]:
        """Compare the two programs that a model may have: nothing of one that has not two."""

    @abstractmethod
    def report(self, comparisons: list[Comparison]) -> ParityReport:
        """Comparisons as a report."""


def compare_batches(
    eager: Eager, plan: ComparisonPlan, compare: Compare, decodes: bool = True
) -> ParityReport:
    """Compare an artifact on every batch of a plan.

    Args:
        eager: the original.
        plan: what to compare.
        compare: returns the comparisons of one batch; called under ``torch.no_grad``.
        decodes: whether the batches are decoded before.
    """
    batches = list(eager.batches(plan))
    report = compare_each(eager, batches, compare, plan.progress, decodes=decodes)
    return replace(report, level=plan.level)


def compare_each(
    eager: Eager,
    batches: Sequence[EagerRun],
    compare: Compare,
    progress: Progress = silent,
    title: str | None = None,
    decodes: bool = True,
) -> ParityReport:
    """``compare_batches`` of these batches; ``title`` names the step of ``progress``."""
    title, total = title or eager.title, len(batches)
    results: list[Comparison] = []
    with torch.no_grad(), suited_threads(eager.code):
        for done, batch in enumerate(batches):
            progress(title, done, total)
            run = batch
            if decodes:
                run = eager.decode(batch, eager.steps if done else eager.most_steps)
            results += [replace(each, inputs=batch.inputs) for each in compare(run)]
    progress(title, total, total)
    return eager.report(results)


def start_with(start_id: int, tokens: Ids) -> Ids:
    """Decoded tokens (B, T) to the decoder inputs (B, T): shifted right after the start token."""
    start = np.full((len(tokens), 1), start_id)
    return np.concatenate([start, tokens[:, :-1]], axis=1)
