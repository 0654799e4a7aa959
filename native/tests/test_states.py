"""States of an encoder elsewhere, in place of ids; with and without an encoder of one's own."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from drawn import (
    draw_config,
    draw_sources,
    draw_tokens,
    draw_weights,
    engine_config,
    engine_model,
    engine_tensors,
)
from drawn import draw_model as draw_module
from numpy.typing import NDArray
from tfexport_native import Model, NativeError, Tensor, instruction_sets

from tfexport.model_src import TransformerConfig

SEEDS = range(8)
Floats = NDArray[np.float32]


def without_encoder(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the decoder."""
    of_encoder = ("encoder.", "source_embedding.")
    return {name: each for name, each in tensors.items() if not name.startswith(of_encoder)}


def decoder_config(config: TransformerConfig, width: int, **rules: Any) -> dict[str, Any]:
    """That of a decoder alone, whose states have so many values."""
    return engine_config(config, num_encoder_layers=0, memory_width=width, **rules)


def logits(model: Model, sources: Any, tokens: NDArray[np.int32]) -> Floats:
    batch = model.new_batch()
    batch.enter(sources)
    found = np.empty((*tokens.shape, model.vocab_size), np.float32)
    batch.step(tokens, logits=found)
    return found


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("alone", [False, True], ids=["with encoder", "decoder alone"])
def test_states_give_what_the_ids_give_that_they_were_made_of(seed: int, alone: bool) -> None:
    config, tensors = draw_weights(seed, int8=seed % 2 == 1)
    sets = instruction_sets()
    given = 1 + seed % 3, sets[seed // 2 % len(sets)]
    model = of_states = Model(engine_config(config), tensors, *given)
    if alone:
        of_decoder = decoder_config(config, config.d_model)
        of_states = Model(of_decoder, without_encoder(tensors), *given)
    # More than the engine takes at a time.
    sources = [source for i in range(12) for source in draw_sources(config, seed + i)]
    assert sum(map(len, sources)) > 256
    states = model.encode(sources)
    tokens = draw_tokens(config, seed, len(sources))
    np.testing.assert_array_equal(logits(of_states, states, tokens), logits(model, sources, tokens))
    for wanted, found in zip(
        (*model.generate(sources, 12, True), *model.beam(sources, 3, 2, 8)),
        (*of_states.generate(states, 12, True), *of_states.beam(states, 3, 2, 8)),
        strict=True,
    ):
        np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("width", [1, 7, 16, 50])
def test_states_may_have_another_width(seed: int, width: int) -> None:
    config = draw_config(seed)
    module = draw_module(config, seed)
    tensors = engine_tensors(module)
    draw = np.random.default_rng(seed)
    projection = (draw.standard_normal((config.d_model, width)) / width**0.5).astype(np.float32)
    wide = without_encoder(tensors)
    for name, tensor in wide.items():
        if name.endswith(("cross_attn.k_proj.weight", "cross_attn.v_proj.weight")):
            wide[name] = Tensor((tensor.values @ projection).astype(np.float32))
    sources = [draw.standard_normal((n, width)).astype(np.float32) for n in (1, 40, 17)]
    tokens = draw_tokens(config, seed, len(sources))
    found = logits(Model(decoder_config(config, width), wide), sources, tokens)
    wanted = logits(engine_model(module), [x @ projection.T for x in sources], tokens)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_source_of_states_has_no_limit_of_positions() -> None:
    config = dataclasses.replace(draw_config(1), positions="learned", max_positions=24)
    model = engine_model(draw_module(config, 1))
    states = np.zeros((300, config.d_model), np.float32)
    assert model.generate([states], 12, False)[0].shape[0] == 1
    with pytest.raises(NativeError, match="has 300 tokens; the model takes 24"):
        model.generate([[1] * 300], 12, False)


def test_what_is_no_source_is_refused() -> None:
    config, tensors = draw_weights(0)
    width = config.d_model
    model = Model(decoder_config(config, width), without_encoder(tensors))
    states = np.zeros((3, width), np.float32)
    batch = model.new_batch()
    wrong: str
    given: Any
    for given, wrong in (
        ([[1, 2]], "no encoder; it takes states"),
        ([states, states[:0]], "source 1 is empty"),
        ([states, states[:, 1:].copy()], rf"expected float32 states \(S, {width}\)"),
        ([states.astype(np.float64)], "source 0 is float64"),
        ([states, [1, 2]], "source 1 is no array"),
        ([], "no sources"),
    ):
        for call in (
            lambda sources: model.generate(sources, 4, False),
            lambda sources: model.beam(sources, 1, 1, 4),
            batch.enter,
        ):
            with pytest.raises(NativeError, match=wrong):
                call(given)
    assert batch.rows == 0
    with pytest.raises(NativeError, match="states are given, not ids"):
        model.encode([states])  # type: ignore[list-item]
    for both in ({"memory_width": width}, {"num_encoder_layers": 0}):
        with pytest.raises(NativeError, match="encoder layers, or else a memory_width"):
            Model(engine_config(config, **both), tensors)
