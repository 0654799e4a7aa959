"""Beam search against lists and sorts, as docs/decoding.md words it."""

import itertools
import math

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from tests.support.table_model import TableModel
from tests.support.table_search import EOS, log_probs, search
from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.search import Request

pytestmark = pytest.mark.no_model

ROUNDING = 1e-6  # of sums of log-probabilities


def is_done(
    finished: list[tuple[float, list[int]]], highest: float, length: int, options: DecodingOptions
) -> bool:
    wanted = -(-options.num_hypotheses // options.beam_groups)
    if options.early_stopping:
        width = options.beam_size // options.beam_groups
        return len(finished) >= max(1, wanted, math.floor(width * options.patience + 0.5))
    if len(finished) < wanted:
        return False
    longest = options.max_length if options.length_penalty > 0 else length + 1
    scores = sorted((score for score, _ in finished), reverse=True)
    return bool(scores[wanted - 1] >= highest / longest**options.length_penalty)


def plain_beam(
    model: TableModel, row: Request, options: DecodingOptions
) -> list[tuple[float, list[int]]]:
    """Beam search with lists and sorts, as the documentation words it."""
    groups = options.beam_groups
    width = options.beam_size // groups
    live: list[list[tuple[float, list[int]]]] = [[(0.0, [])] for _ in range(groups)]
    finished: list[list[tuple[float, list[int]]]] = [[] for _ in range(groups)]
    done = [False] * groups
    for length in range(1, options.max_length + 1):
        taken: list[int] = []
        for g in range(groups):
            if done[g]:
                continue
            candidates = []
            for place, (total, tokens) in enumerate(live[g]):
                for token, value in enumerate(log_probs(model, row, tokens)):
                    penalty = options.diversity_penalty * taken.count(token)
                    candidates.append((-(total + value - penalty), place, token, total + value))
            candidates.sort()
            for (one, place, _, _), (two, other, _, _) in itertools.pairwise(candidates):
                if place != other and abs(one - two) < ROUNDING:
                    reject()  # rounding tells them apart, here and there in its own way
            followed: list[tuple[float, list[int]]] = []
            took: list[int] = []
            for rank, (_, place, token, total) in enumerate(candidates):
                tokens = [*live[g][place][1], token]
                if (token == EOS or length == options.max_length) and rank < width:
                    score = total / len(tokens) ** options.length_penalty
                    finished[g].append((score, tokens))
                    took += [token] * (token == EOS)
                if token != EOS and len(followed) < width:
                    followed.append((total, tokens))
            live[g] = followed
            taken += [tokens[-1] for _, tokens in followed] + took
            done[g] = is_done(finished[g], max(t for t, _ in followed), length, options)
        if all(done):
            break
    together = [made for g in range(groups) for made in sorted(finished[g], key=lambda f: -f[0])]
    return sorted(together, key=lambda made: -made[0])[: options.num_hypotheses]


@settings(max_examples=80)
@given(
    seed=st.integers(0, 10_000),
    step=st.sampled_from([0.0, 0.0, 1.0]),
    shape=st.sampled_from([(2, 1), (3, 1), (4, 2), (6, 3), (6, 2)]),
    length_penalty=st.sampled_from([0.0, 1.0, -0.5]),
    patience=st.sampled_from([1.0, 0.5, 2.0]),
    early=st.booleans(),
    # No multiples of the logits' step: the penalty would make equal what rounding tells apart.
    diversity=st.sampled_from([0.0, 0.7, 3.1]),
    data=st.data(),
)
def test_beam_is_what_the_documentation_says(
    seed: int,
    step: float,
    shape: tuple[int, int],
    length_penalty: float,
    patience: float,
    early: bool,
    diversity: float,
    data: st.DataObject,
) -> None:
    size, groups = shape
    options = DecodingOptions(
        beam_size=size, beam_groups=groups, length_penalty=length_penalty, max_length=5,
        patience=patience if early else 1.0, early_stopping=early,
        diversity_penalty=diversity if groups > 1 else 0.0,
        num_hypotheses=data.draw(st.integers(1, size)),
    )  # fmt: skip
    model, row = TableModel(6, seed, step=step), Request([9, 9])
    given_options = {k: v for k, v in vars(options).items() if v != getattr(DecodingOptions, k)}
    (found,) = search(model, [row], **given_options)
    expected = plain_beam(model, row, options)
    assert [made.tokens for made in found] == [
        tokens[:-1] if tokens[-1] == EOS else tokens for _, tokens in expected
    ]
    assert [made.score for made in found] == pytest.approx([s for s, _ in expected], abs=1e-5)
