"""Rows that are encoded once and decoded several times."""

from pathlib import Path

import numpy as np
import pytest

from tfexport.runtime import Translator
from tfexport.runtime.model.engine_name import EngineName

ROWS = [[5, 9, 7], [4], [6, 8]]


@pytest.mark.parametrize("engine", ["onnxruntime", "native"])
def test_encoded_rows_are_decoded_as_their_sources(tiny_bundle: Path, engine: EngineName) -> None:
    if engine == "native":
        pytest.importorskip("tfexport_native")
    with Translator(tiny_bundle, threads=1, engine=engine) as opened:
        model = opened.engine.model
        kept = model.encoded(ROWS)
        for chosen in ([2, 0], [0, 1, 2], [1, 1], [0, 1, 2]):
            tokens = np.array([[1, 4 + row, 6] for row in chosen])
            expected = model.step(tokens, model.encode([ROWS[row] for row in chosen]))
            state = model.encode([kept[row] for row in chosen])
            np.testing.assert_allclose(model.step(tokens, state), expected, atol=1e-5)
            state.select(np.array([1, 0]))  # rows that are moved change no later search
            model.step(tokens[:2, :1], state)


def test_searches_take_encoded_rows_as_their_sources(tiny_bundle: Path) -> None:
    pytest.importorskip("tfexport_native")
    with Translator(tiny_bundle, threads=1, engine="native") as opened:
        model = opened.engine.model
        assert model.searches_encoded
        kept = model.encoded(ROWS)
        for found, expected in zip(
            model.beam(kept, 2, 2, 9), model.beam(ROWS, 2, 2, 9), strict=True
        ):
            np.testing.assert_array_equal(found, expected)
        made, own = model.generate(kept, 9), model.generate(ROWS, 9)
        np.testing.assert_array_equal(made.sequences, own.sequences)
        np.testing.assert_array_equal(made.scores, own.scores)


@pytest.mark.parametrize("engine", ["onnxruntime", "native"])
def test_attention_is_the_same_without_logits(engine: EngineName) -> None:
    if engine == "native":
        pytest.importorskip("tfexport_native")
    with Translator("examples/de-en.bundle", threads=1, engine=engine) as opened:
        model = opened.engine.model
        assert model.has_shortlist
        tokens, none = np.array([[2, 9, 6], [2, 5, 8], [2, 4, 4]]), np.zeros(0, np.int64)
        expected, state = model.attend(tokens, model.encode(ROWS))[1], model.encode(ROWS)
        logits, weights = model.attend(tokens, state, none)
        np.testing.assert_allclose(weights, expected, atol=1e-5)
        assert logits.shape == (3, 3, model.vocab_size)
        assert np.isneginf(logits).all()
        assert state.position == 3


@pytest.mark.onnxruntime
def test_rows_that_are_partly_encoded_are_refused(tiny_bundle: Path) -> None:
    with Translator(tiny_bundle, threads=1, engine="onnxruntime") as opened:
        model = opened.engine.model
        with pytest.raises(ValueError, match="1 of 2 rows"):
            model.encode([*model.encoded(ROWS[:1]), ROWS[1]])
