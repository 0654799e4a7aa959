"""The engine against eager PyTorch, over drawn configs. ``--configs N`` draws more of them."""

import numpy as np
import pytest
from drawn import draw_config, draw_model, draw_sources, draw_tokens, engine_model
from eager import Row, beam, greedy, log_probs
from numpy.typing import NDArray
from tfexport_native import Model, instruction_sets

from tfexport.model_src import Transformer

TOLERANCE = 1e-4
# Two candidates that are nearer than this may change places.
CLOSE = 1e-4


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(metafunc.config.getoption("--configs")))


@pytest.fixture
def model(seed: int) -> Transformer:
    return draw_model(draw_config(seed), seed)


@pytest.fixture
def instruction_set(seed: int) -> str:
    """All that run here, in turn."""
    names = instruction_sets()
    return names[seed % len(names)]


def threads(seed: int) -> int:
    return 1 + seed % 3


def test_states_and_log_probabilities_are_those_of_eager_code(
    model: Transformer, seed: int, instruction_set: str
) -> None:
    sources = draw_sources(model.config, seed)
    engine = engine_model(model, threads=threads(seed), instruction_set=instruction_set)
    rows = [Row(model, source) for source in sources]
    for state, row in zip(engine.encode(sources), rows, strict=True):
        np.testing.assert_allclose(state, row.states, rtol=1e-4, atol=TOLERANCE)
    tokens = draw_tokens(model.config, seed, len(sources))
    forced = _logits(engine, sources, tokens, [20])
    stepped = _logits(engine, sources, tokens, [1] * 20)
    several = _logits(engine, sources, tokens, [3, 1, 7, 9])
    np.testing.assert_array_equal(forced, stepped)
    np.testing.assert_array_equal(forced, several)
    for i, row in enumerate(rows):
        logits, _, _ = row.step(row.empty(), tokens[i].tolist())
        difference = np.abs(log_probs(logits) - log_probs(forced[i])).max()
        assert difference < TOLERANCE, f"source {i}"


def _logits(
    engine: Model, sources: list[list[int]], tokens: NDArray[np.int32], widths: list[int]
) -> NDArray[np.float32]:
    batch = engine.new_batch()
    batch.enter(sources)
    found, at = [], 0
    for width in widths:
        logits = np.empty((len(sources), width, engine.vocab_size), np.float32)
        batch.step(tokens[:, at : at + width], logits=logits)
        found.append(logits)
        at += width
    return np.concatenate(found, 1)


def test_attention_columns_and_best_tokens(
    model: Transformer, seed: int, instruction_set: str
) -> None:
    config, sizes = model.config, model.config.decoder
    sources = draw_sources(config, seed + 1)
    suppressed = [3, config.eos_id]
    engine = engine_model(model, {"suppress_tokens": suppressed}, threads(seed), instruction_set)
    batch = engine.new_batch()
    batch.enter(sources)
    assert config.target_vocab_size is not None
    draw = np.random.default_rng(seed)
    columns = draw.integers(0, config.target_vocab_size, 5).astype(np.int32)
    pasts = [Row(model, source).empty() for source in sources]
    for width in (1, 3, 1):
        tokens = draw.integers(0, config.target_vocab_size, (len(sources), width))
        some = np.empty((len(sources), width, 5), np.float32)
        best = np.empty(len(sources), np.int32)
        weights = np.zeros(
            (len(sources), config.num_decoder_layers, sizes.num_heads, width, 13), np.float32
        )
        batch.step(tokens, logits=some, columns=columns, best=best, attention=weights)
        for i, source in enumerate(sources):
            logits, pasts[i], attended = Row(model, source).step(pasts[i], tokens[i].tolist())
            np.testing.assert_allclose(some[i], logits[:, columns], rtol=1e-4, atol=TOLERANCE)
            np.testing.assert_allclose(
                weights[i][..., : len(source)], attended, rtol=0, atol=TOLERANCE
            )
            assert not weights[i][..., len(source) :].any()
            allowed = logits[-1].copy()
            allowed[suppressed] = -np.inf
            assert allowed[best[i]] >= allowed.max() - CLOSE
            assert best[i] not in suppressed


RULES = [
    {},
    {"suppress_tokens": [0, 5, 2]},
    {"first_token": 4},
    {"last_token": 2, "suppress_tokens": [2]},
    {"first_token": 3, "last_token": 6},
]


def test_greedy_tokens_and_scores(model: Transformer, seed: int, instruction_set: str) -> None:
    rules, most = RULES[seed % len(RULES)], 40 if seed % 4 == 0 else 12
    least = (0, 7, 3, 99)[seed % 4]
    sources = draw_sources(model.config, seed + 2)
    engine = engine_model(model, rules, threads(seed), instruction_set)
    sequences, counts, _ = engine.generate(sources, most, False, min_length=least)
    scored, scored_counts, scores = engine.generate(sources, most, True, min_length=least)
    np.testing.assert_array_equal(sequences, scored)
    np.testing.assert_array_equal(counts, scored_counts)
    assert scores is not None
    for i, source in enumerate(sources):
        expected = greedy(model, source, most, rules, least)
        found = sequences[i, : counts[i]].tolist()
        assert (sequences[i, counts[i] :] == model.config.pad_id).all()
        if found != expected.tokens:
            assert expected.gap < CLOSE, (found, expected)
            continue
        assert abs(scores[i] - expected.score) < TOLERANCE


def test_beam_records(model: Transformer, seed: int, instruction_set: str) -> None:
    beams, enough = 1 + seed % 4, 1 + seed % 3
    most = 9
    sources = draw_sources(model.config, seed + 3, 7)
    engine = engine_model(model, None, threads(seed), instruction_set)
    tokens, parents, values, _ = engine.beam(sources, beams, enough, most)
    for i, source in enumerate(sources):
        expected = beam(model, source, beams, enough, most)
        steps = len(expected.tokens)
        if expected.gap < CLOSE:
            continue  # near ties; ``test_ties`` has exact ones
        assert tokens[:steps, i].tolist() == expected.tokens
        assert parents[:steps, i].tolist() == expected.parents
        np.testing.assert_allclose(values[:steps, i], expected.log_probs, atol=TOLERANCE)
