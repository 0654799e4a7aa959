"""Hypotheses from records that are written by hand."""

from typing import Any

import numpy as np
import pytest

from tfexport.runtime.model.interface import BeamRecord
from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search import ResolvedOptions
from tfexport.runtime.search.graph_search import Backtrace

pytestmark = pytest.mark.no_model

BOS, EOS = 1, 2
Candidate = tuple[int, int, float]


def trace(
    *steps: list[Candidate],
    sentence_steps: int | None = None,
    prefix: tuple[int, ...] = (),
    **options: Any,
) -> list[Hypothesis]:
    """The hypotheses of one sentence.

    Args:
        steps: candidates of each step, best first: token, parent, log-probability.
        sentence_steps: after which the sentence was done; all of them by default.
        prefix: the forced first token.
        options: of decoding.
    """
    columns = np.array(steps, object).transpose(2, 0, 1)[:, :, None]
    record = BeamRecord(
        columns[0].astype(np.int64),
        columns[1].astype(np.int64),
        columns[2].astype(np.float32),
        np.array([len(steps) if sentence_steps is None else sentence_steps]),
    )
    chosen = DecodingOptions(**options)
    resolved = ResolvedOptions.of(chosen, BOS, (EOS,), chosen.max_length)
    return Backtrace(record, resolved, prefix).hypotheses(0)


def test_a_candidate_that_stands_for_nothing_is_none() -> None:
    # One token is possible at first: the others continue beams that are not there, or are banned.
    found = trace(
        [(EOS, 0, -1.0), (5, 0, -np.inf), (6, 1, -0.5), (7, 1, -0.5)],
        [(5, 0, -0.5), (6, 0, -0.5), (7, 1, -0.5), (8, 1, -0.5)],
        beam_size=2, num_hypotheses=2, max_length=2,
    )  # fmt: skip
    assert [(h.tokens, h.score) for h in found] == [([], -1.0)]


def test_the_way_back_skips_what_ended() -> None:
    # The end token stands first, so beam 0 of the next step is the second candidate.
    found = trace(
        [(EOS, 0, -0.1), (5, 0, -0.2), (6, 0, -0.3), (7, 0, -9.0)],
        [(8, 1, -0.1), (9, 0, -0.3), (EOS, 0, -5.0), (EOS, 1, -5.0)],
        beam_size=2, num_hypotheses=2, max_length=2, length_penalty=0.0,
    )  # fmt: skip
    assert [h.tokens for h in found] == [[], [6, 8]], "and [5, 9], which is one too many"
    assert [h.score for h in found] == pytest.approx([-0.1, -0.4])


def test_tokens_have_their_scores_in_their_order() -> None:
    (found,) = trace(
        [(5, 0, -1.0), (6, 0, -2.0), (7, 0, -3.0), (8, 0, -4.0)],
        [(EOS, 1, -0.5), (9, 0, -6.0), (9, 1, -7.0), (5, 0, -8.0)],
        beam_size=2, patience=0.5, max_length=5, return_token_scores=True, return_end_token=True,
    )  # fmt: skip
    assert found.tokens == [6, EOS]
    assert found.token_scores == pytest.approx([-2.0, -0.5])
    assert found.score == pytest.approx(-1.25)
    assert found.finished


@pytest.mark.parametrize(("steps", "ended"), [(1, [[]]), (2, [[5], []]), (3, [[6, 8], [5]])])
def test_a_sentence_is_done_after_its_steps(steps: int, ended: list[list[int]]) -> None:
    found = trace(
        [(EOS, 0, -0.1), (5, 0, -0.2), (6, 0, -0.3), (7, 0, -9.0)],
        [(EOS, 0, -0.1), (8, 1, -0.2), (9, 1, -0.3), (9, 0, -0.4)],
        [(EOS, 0, -0.01), (8, 1, -9.5), (8, 0, -9.6), (9, 0, -9.7)],
        sentence_steps=steps, beam_size=2, patience=0.5, max_length=9, length_penalty=2.0,
        num_hypotheses=2,
    )  # fmt: skip
    assert [h.tokens for h in found] == ended


def test_a_forced_first_token_is_in_no_record_and_counts() -> None:
    (found, other) = trace(
        [(EOS, 0, -0.5), (5, 0, -1.0), (6, 0, -2.0), (7, 0, -3.0)],
        [(8, 0, -0.5), (9, 0, -6.0), (9, 1, -7.0), (5, 0, -8.0)],
        prefix=(7,), beam_size=2, num_hypotheses=2, patience=9.0, max_length=3,
        return_token_scores=True,
    )  # fmt: skip
    assert (found.tokens, found.token_scores, found.score) == ([7], [0.0, -0.5], -0.25)
    assert (other.tokens, other.token_scores, other.score) == ([7, 5, 8], [0.0, -1.0, -0.5], -0.5)
