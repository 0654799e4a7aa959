"""Beam search as wide as the space against brute force: every target there is, one by one.

The oracle is plain Python over the definitions in docs/decoding.md; it shares no line with the
search.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.table_model import TableModel
from tests.support.table_search import BOS, search
from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.search import Request

pytestmark = pytest.mark.no_model


class Oracle:
    """Every hypothesis there is, with its score, by definition."""

    def __init__(
        self,
        model: TableModel,
        request: Request,
        end_tokens: tuple[int, ...],
        suppress: tuple[int, ...],
        sequences: tuple[tuple[int, ...], ...],
        options: DecodingOptions,
    ) -> None:
        self.model, self.request, self.options = model, request, options
        self.end_tokens, self.suppress, self.sequences = end_tokens, suppress, sequences

    def log_probs(self, tokens: Sequence[int]) -> list[float]:
        """Of every next token; -inf where it is banned."""
        logits = [float(v) for v in self.model.logits(self.request.ids, [BOS, *tokens])]
        free = len(tokens) >= len(self.request.prefix)
        if free:
            for token in set(tokens):
                penalty = self.options.repetition_penalty
                logits[token] *= penalty if logits[token] <= 0 else 1 / penalty
            for token in range(len(logits)):
                if self.is_banned(tokens, token):
                    logits[token] = -math.inf
        whole = sum(math.exp(value) for value in logits)
        return [value - math.log(whole) if whole else -math.inf for value in logits]

    def is_banned(self, tokens: Sequence[int], token: int) -> bool:
        after = [*tokens, token]
        size = self.options.no_repeat_ngram_size
        if size:
            runs = [after[i : i + size] for i in range(len(after) - size + 1)]
            if runs and runs[-1] in runs[:-1]:
                return True
        allowed = self.request.candidates
        return (
            token in self.suppress
            or any(tuple(after[-len(s) :]) == s for s in self.sequences)
            or (token in self.end_tokens and len(tokens) < self.options.min_length)
            or (allowed is not None and token not in allowed)
        )

    def all(self) -> Iterator[tuple[float, list[int]]]:
        scores = [
            self.log_probs(self.request.prefix[:i])[token]
            for i, token in enumerate(self.request.prefix)
        ]
        yield from self.grow([*self.request.prefix], scores)

    def grow(self, tokens: list[int], scores: list[float]) -> Iterator[tuple[float, list[int]]]:
        found = self.log_probs(tokens)
        ways = [token for token, value in enumerate(found) if value > -math.inf]
        if len(tokens) == self.options.max_length or not ways:
            yield self.score(tokens, scores), tokens
            return
        for token in ways:
            after, sums = [*tokens, token], [*scores, found[token]]
            if token in self.end_tokens:
                yield self.score(after, sums), tokens
            else:
                yield from self.grow(after, sums)

    def score(self, tokens: Sequence[int], scores: Sequence[float]) -> float:
        if not tokens:
            return 0.0
        result: float = sum(scores) / len(tokens) ** self.options.length_penalty
        if self.options.coverage_penalty:
            length = len(self.request.ids)
            for place in range(length):
                total = 0.0
                for i in range(len(tokens)):
                    seen = [BOS, *tokens[:i]]
                    weights = self.model.weights(self.request.ids, seen, length)[-1]
                    total += float(weights[:, place].mean())
                result += self.options.coverage_penalty * math.log(min(1.0, total))
        return result


@st.composite
def problems(draw: st.DrawFn) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """Vocabulary size, what goes into a request, and options that go together."""
    size = draw(st.integers(3, 5))
    tokens = st.integers(2, size - 1)
    max_length = draw(st.integers(1, 4))
    prefix = draw(st.lists(tokens, max_size=min(2, max_length)))
    request: dict[str, Any] = {"prefix": tuple(prefix)}
    if draw(st.booleans()):
        chosen = draw(st.sets(st.integers(0, size - 1), min_size=1))
        request["candidates"] = np.array(sorted(chosen))
    options = {
        "max_length": max_length,
        "min_length": draw(st.integers(0, max_length)),
        "length_penalty": draw(st.sampled_from([-1.0, 0.0, 0.6, 1.0, 2.0])),
        "coverage_penalty": draw(st.sampled_from([0.0, 0.0, 0.3])),
        "no_repeat_ngram_size": draw(st.sampled_from([0, 0, 1, 2])),
        "repetition_penalty": draw(st.sampled_from([1.0, 0.7, 1.5])),
        "end_tokens": draw(st.sampled_from([(1,), (1, 2) if 2 not in prefix else (1,)])),
        "suppress": tuple(draw(st.sets(st.integers(0, size - 1), max_size=1))),
        "sequences": tuple(
            tuple(s) for s in draw(st.lists(st.lists(tokens, min_size=1, max_size=2), max_size=1))
        ),
    }
    return size, request, options


@settings(max_examples=150)
@given(problem=problems(), seed=st.integers(0, 10_000))
def test_a_beam_as_wide_as_the_space_finds_the_best(
    problem: tuple[int, dict[str, Any], dict[str, Any]], seed: int
) -> None:
    size, fields, options = problem
    model = TableModel(size, seed)
    rows = [Request([3, 4, 5], **fields), Request([6], **fields)]
    width = size ** options["max_length"] + 1
    found = search(model, rows, beam_size=width, early_stopping=False, **options)
    given_options = {
        name: value
        for name, value in options.items()
        if name not in ("end_tokens", "suppress", "sequences")
    }
    chosen = DecodingOptions(**given_options, beam_size=2)
    for row, hypotheses in zip(rows, found, strict=True):
        oracle = Oracle(
            model, row, options["end_tokens"], options["suppress"], options["sequences"], chosen
        )
        best, tokens = max(oracle.all(), key=lambda one: one[0])
        assert hypotheses[0].score == pytest.approx(best, abs=1e-5)
        assert hypotheses[0].tokens == tokens


@settings(max_examples=60)
@given(problem=problems(), seed=st.integers(0, 10_000))
def test_n_best_of_a_wide_beam_are_the_n_best_there_are(
    problem: tuple[int, dict[str, Any], dict[str, Any]], seed: int
) -> None:
    size, fields, options = problem
    model = TableModel(size, seed)
    row = Request([3, 4, 5], **fields)
    width = size ** options["max_length"] + 1
    (found,) = search(
        model, [row], beam_size=width, num_hypotheses=4, early_stopping=False, **options
    )
    names = ("end_tokens", "suppress", "sequences")
    chosen = DecodingOptions(**{k: v for k, v in options.items() if k not in names}, beam_size=2)
    ends, suppress, sequences = (options[name] for name in names)
    oracle = Oracle(model, row, ends, suppress, sequences, chosen)
    expected = sorted((score for score, _ in oracle.all()), reverse=True)[:4]
    assert [made.score for made in found] == pytest.approx(expected, abs=1e-5)


def test_the_oracle_can_fail() -> None:
    """A narrow beam misses the optimum somewhere, so the comparison above says something."""
    missed = 0
    for seed in range(40):
        model, row = TableModel(5, seed, scale=1.0), Request([3])
        options = DecodingOptions(beam_size=2, max_length=4, early_stopping=False)
        oracle = Oracle(model, row, (1,), (), (), options)
        best = max(score for score, _ in oracle.all())
        (found,) = search(model, [row], beam_size=2, max_length=4, early_stopping=False)
        assert found[0].score <= best + 1e-6
        missed += found[0].score < best - 1e-6
    assert 0 < missed < 40
