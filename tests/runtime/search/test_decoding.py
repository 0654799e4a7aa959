"""Search against plain Python over the definitions in docs/decoding.md, on a table of logits."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.search.test_beam_oracle import BOS, search
from tests.support.table_model import TableModel
from tfexport.runtime.options import DecodingOptions, Step
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search import Request, ResolvedOptions, score_targets
from tfexport.runtime.search.topk import best, log_normalizer

EOS = 1
OPTIONS: list[dict[str, Any]] = [
    {},
    {"beam_size": 3},
    {"beam_size": 4, "num_hypotheses": 4, "early_stopping": False, "length_penalty": 0.5},
    {"beam_size": 4, "beam_groups": 2, "diversity_penalty": 0.7, "num_hypotheses": 4},
    {"beam_size": 3, "coverage_penalty": 0.4, "return_attention": True},
    {"sampling": True, "seed": 7, "num_hypotheses": 3, "top_k": 4},
    {"sampling": True, "seed": 8, "top_p": 0.8, "temperature": 1.3},
    {"return_alternatives": True, "num_hypotheses": 3},
    {"return_alternatives": True, "num_hypotheses": 3, "sampling": True, "seed": 2},
    {"no_repeat_ngram_size": 2, "repetition_penalty": 1.4, "min_length": 2},
]


def facts(made: Hypothesis) -> tuple[Any, ...]:
    return (made.tokens, pytest.approx(made.score, abs=1e-5), made.finished, made.token_scores)


@settings(max_examples=40)
@given(
    options=st.sampled_from(OPTIONS),
    lengths=st.lists(st.integers(1, 6), min_size=2, max_size=5),
    seed=st.integers(0, 1000),
    order=st.randoms(use_true_random=False),
)
def test_results_depend_neither_on_company_nor_on_order(
    options: dict[str, Any], lengths: list[int], seed: int, order: Any
) -> None:
    model = TableModel(7, seed)
    rows = [Request([7 + i] * length, number=i) for i, length in enumerate(lengths)]
    together = search(model, rows, max_length=6, return_token_scores=True, **options)
    shuffled = list(rows)
    order.shuffle(shuffled)
    again = search(model, shuffled, max_length=6, return_token_scores=True, **options)
    for row, hypotheses in zip(rows, together, strict=True):
        (alone,) = search(model, [row], max_length=6, return_token_scores=True, **options)
        for other in (alone, again[shuffled.index(row)]):
            assert [facts(made) for made in other] == [facts(made) for made in hypotheses]
            for one, two in zip(other, hypotheses, strict=True):
                if options.get("return_attention"):
                    assert one.attention is not None
                    assert two.attention is not None
                    assert np.array_equal(one.attention, two.attention)


@given(
    values=st.lists(
        st.lists(st.sampled_from([0.0, 1.0, 2.0, -np.inf]), min_size=9, max_size=9),
        min_size=1, max_size=4,
    ),
    count=st.integers(1, 9),
)  # fmt: skip
def test_best_is_the_head_of_a_sort_with_the_lowest_id_first(
    values: list[list[float]], count: int
) -> None:
    ids, found = best(np.array(values, np.float32), count)
    for row, chosen, kept in zip(values, ids.tolist(), found.tolist(), strict=True):
        expected = sorted(range(9), key=lambda i: (-row[i], i))[:count]
        assert chosen == expected
        assert kept == [row[i] for i in expected]


@given(
    seed=st.integers(0, 1000),
    size=st.integers(600, 900),
    count=st.integers(1, 12),
    step=st.sampled_from([0.0, 0.5, 2.0]),
)
def test_best_of_many_is_the_head_of_a_sort(seed: int, size: int, count: int, step: float) -> None:
    values = np.random.default_rng(seed).normal(size=(3, size)).astype(np.float32)
    values = np.round(values / step) * np.float32(step) if step else values
    values[1, 50:] = -np.inf
    ids, found = best(values, count)
    for row, chosen, kept in zip(values, ids.tolist(), found.tolist(), strict=True):
        expected = sorted(range(size), key=lambda i: (-row[i], i))[:count]
        assert chosen == expected
        assert kept == row[expected].tolist()


def log_probs(model: TableModel, row: Request, tokens: Sequence[int]) -> list[float]:
    logits = [float(v) for v in model.logits(row.ids, [BOS, *tokens])]
    whole = math.log(sum(math.exp(v) for v in logits))
    return [v - whole for v in logits]


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
    diversity=st.sampled_from([0.0, 0.5, 3.0]),
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


def test_prefix_is_taken_in_one_step_and_counts() -> None:
    model, row = TableModel(6, 3), Request([9], prefix=(4, 5, 4))
    (found,) = search(model, [row], max_length=6, return_token_scores=True, end_tokens=(99,))
    made = found[0]
    assert made.tokens[:3] == [4, 5, 4]
    assert len(made.tokens) == 6
    assert model.steps == 3, "three new tokens, three steps, the first with the whole prefix"
    expected = [
        log_probs(model, row, made.tokens[:i])[token] for i, token in enumerate(made.tokens)
    ]
    assert made.token_scores == pytest.approx(expected, abs=1e-5)
    assert made.score == pytest.approx(sum(expected) / 6, abs=1e-5)


@pytest.mark.parametrize("options", [{}, {"beam_size": 2}, {"return_alternatives": True}], ids=str)
def test_prefix_may_fill_the_whole_length(options: dict[str, Any]) -> None:
    model, row = TableModel(6, 3), Request([9], prefix=(4, 5))
    (found,) = search(model, [row], max_length=2, return_attention=True, **options)
    assert found[0].tokens == [4, 5]
    assert not found[0].finished
    expected = log_probs(model, row, [])[4] + log_probs(model, row, [4])[5]
    assert found[0].score == pytest.approx(expected / 2, abs=1e-5)
    assert found[0].attention is not None
    assert found[0].attention.shape == (2, 1)


@pytest.mark.parametrize("options", [{}, {"beam_size": 3}, {"sampling": True}], ids=str)
def test_where_no_token_is_allowed_a_row_ends_as_it_is(options: dict[str, Any]) -> None:
    # Each token once, and never the end: after four tokens nothing is left.
    rows = [Request([9]), Request([8, 8])]
    found = search(TableModel(5, 2), rows, max_length=9, no_repeat_ngram_size=1, suppress=(EOS,),
                   **options)  # fmt: skip
    for hypotheses in found:
        assert sorted(hypotheses[0].tokens) == [0, 2, 3, 4]
        assert not hypotheses[0].finished


def test_nothing_is_allowed_at_all() -> None:
    everything = tuple(range(5))
    ways: list[dict[str, Any]] = [{}, {"beam_size": 2}, {"return_alternatives": True}]
    for options in ways:
        (found,) = search(
            TableModel(5), [Request([9])], suppress=everything, max_length=3, **options
        )
        assert found == [Hypothesis([], 0.0, finished=False)]


def test_samples_follow_the_distribution() -> None:
    model, count = TableModel(6, 4, scale=1.0), 4000
    for options, shaped in (
        ({}, lambda p: p),
        ({"temperature": 0.5}, lambda p: p**2),
        ({"top_k": 3}, lambda p: np.where(p >= np.sort(p)[-3], p, 0)),
        ({"top_p": 0.6}, lambda p: np.where(np.cumsum(np.sort(p)[::-1])[
            np.argsort(np.argsort(-p))] - p < 0.6, p, 0)),
        ({"top_p": 0.0}, lambda p: np.where(p == p.max(), p, 0)),
        ({"top_k": 4, "top_p": 0.7, "temperature": 2.0}, None),
    ):  # fmt: skip
        rows = [Request([9], number=i) for i in range(count)]
        found = search(model, rows, sampling=True, seed=1, max_length=1, **options)
        drawn = [EOS if h[0].finished else h[0].tokens[0] for h in found]
        seen = np.bincount(drawn, minlength=6) / count
        p = np.exp(log_probs(model, rows[0], []))
        if shaped is None:
            p = np.sqrt(p)
            p = np.where(p >= np.sort(p)[-4], p, 0) / np.sort(p)[-4:].sum()
            order = np.argsort(-p)
            kept = order[np.cumsum(p[order]) - p[order] < 0.7]
            expected = np.zeros(6)
            expected[kept] = p[kept]
        else:
            expected = shaped(p)
        expected = expected / expected.sum()
        # Five standard deviations; draws are seeded, so this does not flicker.
        room = 5 * np.sqrt(expected * (1 - expected) / count)
        assert (np.abs(seen - expected) <= room).all(), (options, seen, expected)


def test_seed_and_row_decide_the_draws() -> None:
    model = TableModel(12, 4, scale=0.5)
    rows = [Request([9], number=i) for i in range(30)]

    def draws(seed: int, part: Sequence[Request]) -> list[list[int]]:
        found = search(model, part, sampling=True, seed=seed, max_length=8)
        return [hypotheses[0].tokens for hypotheses in found]

    assert draws(1, rows) == draws(1, rows)
    assert draws(1, rows)[10:] == draws(1, rows[10:])
    assert draws(1, rows) != draws(2, rows)
    assert len({tuple(row) for row in draws(1, rows)}) > 20


def test_score_of_a_sample_is_the_models_own() -> None:
    model, row = TableModel(6, 4), Request([9])
    (found,) = search(model, [row], sampling=True, temperature=3.0, top_k=5, seed=3, max_length=7,
                      num_hypotheses=4)  # fmt: skip
    for made in found:
        tokens = [*made.tokens, *([EOS] if made.finished else [])]
        values = [log_probs(model, row, tokens[:i])[token] for i, token in enumerate(tokens)]
        assert made.score == pytest.approx(sum(values) / len(values), abs=1e-5)
    assert [made.score for made in found] == sorted((m.score for m in found), reverse=True)


def test_alternatives_are_the_best_first_tokens_with_their_best_continuation() -> None:
    model, row = TableModel(7, 5), Request([9, 8], prefix=(3,))
    (found,) = search(model, [row], return_alternatives=True, num_hypotheses=4, max_length=5)
    first = log_probs(model, row, [3])
    order = sorted(range(7), key=lambda token: (-first[token], token))[:4]
    for token, made in zip(order, found, strict=True):
        if token == EOS:
            assert made.tokens == [3]
            assert made.finished
            continue
        longer = Request([9, 8], prefix=(3, token))
        (alone,) = search(model, [longer], max_length=5)
        assert made.tokens == alone[0].tokens
        assert made.score == pytest.approx(alone[0].score)
    likely = math.exp(first[order[1]]) - 1e-6
    (few,) = search(model, [row], return_alternatives=True, num_hypotheses=4, max_length=5,
                    min_alternative_probability=likely)  # fmt: skip
    assert [made.tokens for made in few] == [made.tokens for made in found[:2]]


def test_callback_sees_every_token_and_ends_a_row() -> None:
    seen: list[Step] = []

    def call(step: Step) -> bool:
        seen.append(step)
        return step.row == 1 and step.position == 2

    rows = [Request([9], number=0), Request([8], number=1)]
    found = search(TableModel(6, 11), rows, max_length=5, suppress=(EOS,), callback=call)
    assert [len(hypotheses[0].tokens) for hypotheses in found] == [5, 3]
    assert not found[1][0].finished
    for row in (0, 1):
        steps = [step for step in seen if step.row == row]
        assert [step.token for step in steps] == found[row][0].tokens
        assert [step.position for step in steps] == list(range(len(steps)))
    assert [step.last for step in seen if step.row == 0] == [False] * 4 + [True]


def test_attention_is_the_rows_that_made_the_tokens() -> None:
    model, row = TableModel(6, 12), Request([9, 8, 7], prefix=(2,))
    other = Request([5] * 6, prefix=(3,))
    choices: list[tuple[dict[str, Any], Callable[[Any], Any]]] = [
        ({}, lambda weights: weights[-1].mean(0)),
        ({"attention_layer": 0, "attention_head": 1}, lambda weights: weights[0, 1]),
    ]
    ways: list[dict[str, Any]] = [{}, {"beam_size": 3}]
    for options in ways:
        for choice, pick in choices:
            made = search(model, [row, other], max_length=5, return_attention=True,
                          return_token_scores=True, **options, **choice)[0][0]  # fmt: skip
            assert made.attention is not None
            assert made.attention.shape == (len(made.tokens), 3)
            for i in range(len(made.tokens)):
                weights = model.weights(row.ids, [BOS, *made.tokens[:i]], 3)
                assert made.attention[i] == pytest.approx(pick(weights))


def test_score_of_a_given_target_is_what_decoding_would_have_returned() -> None:
    model = TableModel(6, 13)
    rows = [Request([9, 8], number=0), Request([7], number=1)]
    options = DecodingOptions(return_token_scores=True, return_attention=True, length_penalty=0.7)
    found = search(model, rows, return_token_scores=True, return_attention=True,
                   length_penalty=0.7, max_length=40)  # fmt: skip
    made = [hypotheses[0] for hypotheses in found]
    assert all(one.finished for one in made)
    scored = score_targets(
        model, [row.ids for row in rows], [[*one.tokens, EOS] for one in made],  # type: ignore[arg-type]
        ResolvedOptions.of(options, BOS, (EOS,), 20), vocab_size=6,
    )  # fmt: skip
    assert [facts(one)[:3] for one in scored] == [facts(one)[:3] for one in made]
    for one, two in zip(scored, made, strict=True):
        assert one.token_scores == pytest.approx(two.token_scores)
        assert one.attention is not None
        assert two.attention is not None
        assert np.allclose(one.attention, two.attention)


def test_long_targets_are_scored_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TableModel(6, 13)
    options = ResolvedOptions.of(DecodingOptions(return_attention=True), BOS, (EOS,), 20)
    sources, targets = [[9, 8], [7]], [[2, 3, 4, 5, EOS], [3, EOS]]
    whole = score_targets(model, sources, targets, options, 6)  # type: ignore[arg-type]
    monkeypatch.setattr("tfexport.runtime.search.scoring.LOGITS_AT_ONCE", 24)
    parts = score_targets(model, sources, targets, options, 6)  # type: ignore[arg-type]
    assert [one.score for one in parts] == pytest.approx([one.score for one in whole])
    for one, two in zip(parts, whole, strict=True):
        assert one.attention is not None
        assert np.array_equal(one.attention, two.attention)  # type: ignore[arg-type]


def test_normalizer_of_a_row_without_a_way_on_is_minus_infinity() -> None:
    logits = np.array([[0.0, 0.0], [-np.inf, -np.inf]], np.float32)
    assert log_normalizer(logits).tolist() == [pytest.approx(math.log(2)), -math.inf]
