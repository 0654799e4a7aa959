"""The rules of transformers on a table of logits, compared with a plain statement of them.

tests/system/peers/test_generation.py holds whole folders against transformers itself.
"""

import math
import random
from typing import Any

import numpy as np
import pytest

from tests.support.table_model import TableModel
from tests.support.table_search import BOS, EOS, log_probs, search
from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search import Request, ResolvedOptions
from tfexport.runtime.search.beam import FinishedGroup, is_done

pytestmark = pytest.mark.no_model

ROW = Request([9, 9])
RULES: dict[str, Any] = {"search_rules": "transformers"}
SIZE = 12


def allowed(model: TableModel, tokens: list[int], options: dict[str, Any]) -> list[float]:
    """Log-probabilities of the next token, after the processors, in their order."""
    scores, seen = log_probs(model, ROW, tokens), [BOS, *tokens]
    penalty = options.get("repetition_penalty", 1.0)
    for token in set(seen):
        scores[token] *= penalty
    if size := options.get("no_repeat_ngram_size"):
        for start in range(len(seen) - size + 1):
            if seen[start : start + size - 1] == seen[len(seen) - size + 1 :]:
                scores[seen[start + size - 1]] = -math.inf
    if len(tokens) < options.get("min_length", 0):
        scores[EOS] = -math.inf
    if options.get("last_token") is not None and len(tokens) == options["max_length"] - 1:
        scores = [-math.inf] * SIZE
        scores[options["last_token"]] = 0.0
    if not tokens:
        for token in options.get("suppress_first_tokens", ()):
            scores[token] = -math.inf
    if options.get("renormalize_logits"):
        whole = math.log(sum(map(math.exp, scores)))
        scores = [score - whole for score in scores]
    return scores


def plain_beam(model: TableModel, options: dict[str, Any]) -> list[tuple[float, list[int]]]:
    """Beam search as transformers writes it down, one sentence at a time."""
    width, penalty = options["beam_size"], options.get("length_penalty", 1.0)
    running: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []
    for length in range(1, options["max_length"] + 1):
        candidates = sorted(
            (
                (total + score, [*tokens, token])
                for total, tokens in running
                for token, score in enumerate(allowed(model, tokens, options))
            ),
            key=lambda made: -made[0],
        )[: 2 * width]
        for rank, (total, tokens) in enumerate(candidates):
            over = tokens[-1] == EOS or length == options["max_length"]
            if over and rank < width and math.isfinite(total):
                finished.append((total / length**penalty, tokens))
        finished = sorted(finished, key=lambda made: -made[0])[:width]
        running = [made for made in candidates if made[1][-1] != EOS][:width]
        if len(finished) == width:
            by = options["max_length"] if options.get("exhaustive") and penalty > 0 else length
            if options["early_stopping"] or running[0][0] / by**penalty <= finished[-1][0]:
                break
    return finished


@pytest.mark.parametrize("seed", range(60))
def test_beams_are_those_of_the_plain_statement(seed: int) -> None:
    draw = random.Random(seed)
    early = draw.random() < 0.4
    options: dict[str, Any] = {
        **RULES,
        "beam_size": draw.choice([2, 3, 4]),
        "max_length": draw.choice([2, 5, 8]),
        "length_penalty": draw.choice([0.0, 1.0, 2.0, -0.5]),
        "early_stopping": early,
        "exhaustive": not early and draw.random() < 0.5,
        "renormalize_logits": draw.random() < 0.4,
        "repetition_penalty": draw.choice([1.0, 1.0, 1.5, 0.7]),
        "no_repeat_ngram_size": draw.choice([0, 0, 2]),
        "min_length": draw.choice([0, 2]),
        "last_token": draw.choice([None, EOS]),
        "suppress_first_tokens": draw.choice([(), (4, 5)]),
    }
    options["num_hypotheses"] = options["beam_size"]
    model = TableModel(SIZE, seed)
    (found,) = search(model, [ROW], **options)
    expected = plain_beam(model, options)
    ended = [tokens[:-1] if tokens[-1] == EOS else tokens for _, tokens in expected]
    assert [made.tokens for made in found] == ended
    assert [made.score for made in found] == pytest.approx([s for s, _ in expected], abs=1e-4)


@pytest.mark.parametrize("seed", range(20))
def test_greedy_search_penalises_logits_and_counts_the_start_token(seed: int) -> None:
    model, tokens = TableModel(SIZE, seed), list[int]()
    while len(tokens) < 6 and EOS not in tokens:
        logits = model.logits(ROW.ids, [BOS, *tokens])
        for token in {BOS, *tokens}:
            logits[token] *= 0.5 if logits[token] > 0 else 2.0
        tokens.append(int(np.argmax(logits)))
    (found,) = search(model, [ROW], **RULES, repetition_penalty=2.0, max_length=6)
    assert [*found[0].tokens, EOS][: len(tokens)] == tokens


def done(found: list[float], highest: float, length: int, **options: Any) -> bool:
    given = DecodingOptions(beam_size=2, **RULES, **options)
    resolved = ResolvedOptions.of(given, BOS, (EOS,), 10)
    return is_done(resolved, FinishedGroup([Hypothesis([], s) for s in found]), highest, length)


def test_when_a_beam_is_done() -> None:
    # A sum of -6 is worth -2 now, and -0.6 if nothing more is lost until the tenth token.
    assert not done([-1.0], -6.0, 3, early_stopping=True)
    assert done([-1.0, -9.0], -6.0, 3, early_stopping=True)
    assert not done([-1.0, -2.1], -6.0, 3, early_stopping=False)
    assert done([-1.0, -1.9], -6.0, 3, early_stopping=False)
    assert not done([-1.0, -1.9], -6.0, 3, early_stopping=False, exhaustive=True)
    assert done([-0.3, -0.5], -6.0, 3, early_stopping=False, exhaustive=True)
    assert done([], -6.0, 10, early_stopping=False)


def test_what_a_prefix_scores_is_left_out() -> None:
    model, row = TableModel(SIZE, 1), Request([9, 9], prefix=(5, 6))
    options: dict[str, Any] = {**RULES, "max_length": 5, "return_token_scores": True}
    for given in ({**options, "beam_size": 3, "early_stopping": False}, options):
        (found,) = search(model, [row], **given)
        assert found[0].token_scores is not None
        chosen = found[0].token_scores[2:]
        assert found[0].score == pytest.approx(sum(chosen) / len(chosen))
        assert found[0].tokens[:2] == [5, 6]


def test_a_forced_first_token_is_certain_and_counts() -> None:
    model, row = TableModel(SIZE, 1), Request([9, 9], prefix=(5,))
    own: dict[str, Any] = {}
    for rules in (own, RULES):
        (found,) = search(
            model, [row], first_token=5, max_length=4, return_token_scores=True, **rules
        )
        assert found[0].token_scores is not None
        assert found[0].token_scores[0] == 0
        assert found[0].score == pytest.approx(
            sum(found[0].token_scores) / len(found[0].token_scores)
        )
