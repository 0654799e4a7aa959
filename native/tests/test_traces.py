"""What a greedy search leaves, and rows that go on from any of its positions."""

import functools
import operator
import random

import numpy as np
import pytest
from drawn import draw_sources
from numpy.typing import NDArray
from test_batches import drawn_model
from tfexport_native import Batch, Model, NativeError, Run, Trace

MOST = 12


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "drawn" in metafunc.fixturenames:
        metafunc.parametrize("drawn", range(8))


def read_alone(
    model: Model, source: list[int], tokens: list[int]
) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """Log-probabilities (T, V) after each token, and the last layer's attention (T, S)."""
    batch = model.new_batch()
    batch.enter([source])
    logits = np.empty((1, len(tokens), model.vocab_size), np.float32)
    weights = np.zeros((1, *model.attention_shape, len(tokens), len(source)), np.float32)
    batch.step(np.array([tokens]), logits=logits, attention=weights)
    wide = logits[0].astype(np.float64)
    highest = wide.max(-1, keepdims=True)
    sums = highest + np.log(np.exp(wide - highest).sum(-1, keepdims=True))
    return wide - sums, weights[0, -1].mean(0)


def traced(number: int) -> tuple[int, Model, list[list[int]], Trace]:
    config, model = drawn_model(number)
    sources = draw_sources(config, number + 2)
    return config.special_ids.decoder_start, model, sources, model.trace(sources, MOST)


def test_a_trace_has_what_chose_each_token(drawn: int) -> None:
    start, model, sources, trace = traced(drawn)
    sequences, counts, scores = model.generate(sources, MOST, True)
    np.testing.assert_array_equal(trace.sequences, sequences)
    np.testing.assert_array_equal(trace.counts, counts)
    for row, source in enumerate(sources):
        tokens = sequences[row, : counts[row]].tolist()
        log_probs, attention = read_alone(model, source, [start, *tokens[:-1]])
        chosen = log_probs[range(len(tokens)), tokens]
        given = model.log_probs(trace.states[row, : len(tokens)], tokens)
        np.testing.assert_allclose(given, chosen, atol=2e-5)
        assert scores is not None
        assert scores[row] == np.float32(functools.reduce(operator.add, given) / len(tokens))
        found = trace.attention[row, : len(tokens)]
        np.testing.assert_allclose(found[:, : len(source)], attention, atol=1e-6)
        assert not found[:, len(source) :].any()


def test_rows_go_on_from_any_position(drawn: int) -> None:
    start, model, sources, trace = traced(drawn)
    draw = random.Random(drawn)
    rows = [draw.randrange(len(sources)) for _ in range(7)]
    lengths = [draw.randint(0, int(trace.counts[row])) for row in rows]
    begun = [[start, *trace.sequences[row].tolist()][:count]
             for row, count in zip(rows, lengths, strict=True)]  # fmt: skip
    given = [[draw.randrange(model.vocab_size) for _ in range(draw.randint(1, 6))] for _ in rows]
    wanted = [[draw.randrange(model.vocab_size) for _ in row] for row in given]
    branch = trace.batch.branch(rows, lengths)
    flat = [[token for row in each for token in row] for each in (given, wanted)]
    counts = [len(row) for row in given]
    found = branch.read(flat[0], counts, flat[1])
    states, attention = trace.batch.branch(rows, lengths).trace(flat[0], counts)
    np.testing.assert_array_equal(model.log_probs(states, flat[1]), found.log_probs)
    at = 0
    for row, before, tokens, targets in zip(rows, begun, given, wanted, strict=True):
        log_probs, attended = read_alone(model, sources[row], [*before, *tokens])
        log_probs, attended = log_probs[len(before) :], attended[len(before) :]
        part, every = slice(at, at + len(tokens)), range(len(tokens))
        at += len(tokens)
        np.testing.assert_allclose(found.log_probs[part], log_probs[every, targets], atol=2e-5)
        np.testing.assert_array_equal(found.best[part], log_probs.argmax(-1))
        gaps = log_probs.max(-1) - log_probs[every, targets]
        np.testing.assert_allclose(found.gaps[part], gaps, atol=2e-5)
        np.testing.assert_allclose(attention[part, : len(sources[row])], attended, atol=1e-6)
        assert not attention[part, len(sources[row]) :].any()
    # What was read is part of the rows, and the trace is as it was.
    assert run_on(branch.branch([6], [lengths[6]]), given[6][0]) == run_on(
        trace.batch.branch([rows[6]], [lengths[6]]), given[6][0]
    )
    again = run_on(branch, 1)
    for row, before, tokens, made in zip(rows, begun, given, again, strict=True):
        alone = model.new_batch()
        alone.enter([sources[row]])
        alone.step(np.array([[*before, *tokens]]))
        assert run_on(alone, 1) == [made]


def test_steps_leave_the_states_that_chose_their_tokens(drawn: int) -> None:
    start, model, sources, trace = traced(drawn)
    count = len(sources)
    states = np.empty((count, 5, model.state_size), np.float32)
    how = Run(end=0, steps=5, seconds=60)
    branch = trace.batch.branch(range(count), [0] * count)
    chosen, counts = branch.run([start] * count, [5] * count, how, states)
    for row, source in enumerate(sources):
        tokens = chosen[row, : counts[row]].tolist()
        log_probs, _ = read_alone(model, source, [start, *tokens[:-1]])
        expected = log_probs[range(len(tokens)), tokens]
        given = model.log_probs(states[row, : len(tokens)], tokens)
        np.testing.assert_allclose(given, expected, atol=2e-5)


def test_states_and_tokens_that_do_not_fit_are_refused() -> None:
    _, model, _, trace = traced(0)
    states = trace.states[0, :2]
    for given, tokens, message in (
        (states, [1], "states"),
        (states[:, :-1], [1, 1], "states"),
        (states, [1, model.vocab_size], "a token"),
        (states, [1, -1], "a token"),
    ):
        with pytest.raises(NativeError, match=message):
            model.log_probs(given, tokens)


def run_on(batch: Batch, token: int) -> list[list[int]]:
    """Five more tokens of each row, after one."""
    count = batch.rows
    chosen, counts = batch.run([token] * count, [5] * count, Run(end=0, steps=5, seconds=60))
    return [row[:made].tolist() for row, made in zip(chosen, counts, strict=True)]


def test_rows_and_positions_that_are_none_are_refused() -> None:
    _, model, sources, trace = traced(0)
    count = int(trace.counts[0])
    for rows, lengths, message in (
        ([len(sources)], [0], "row 5 of 5"),
        ([-1], [0], "row -1 of 5"),
        ([0], [count + 1], "positions"),
        ([0], [-1], "positions"),
        ([0, 1], [0], "1 lengths of 2 rows"),
    ):
        with pytest.raises(NativeError, match=message):
            trace.batch.branch(rows, lengths)
    branch = trace.batch.branch([0, 1], [0, 0])
    for tokens, counts, targets, message in (
        ([1, 2], [2, 0], [1, 2], "no tokens"),
        ([1, 2], [1, 1], [1, model.vocab_size], "a target"),
        ([1, -1], [1, 1], [1, 1], "has id -1"),
        ([1, 2], [1, 1], [1], "1 targets"),
    ):
        with pytest.raises(NativeError, match=message):
            branch.read(tokens, counts, targets)
    assert run_on(branch, 1) == run_on(trace.batch.branch([0, 1], [0, 0]), 1)
