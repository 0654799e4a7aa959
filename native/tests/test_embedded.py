"""Encoders whose embeddings are given, of other sizes than the decoder, compared with torch."""

import dataclasses
import random
from typing import Any

import numpy as np
import pytest
import torch
from drawn import draw_config, draw_tokens, engine_tensors, quantize
from drawn import draw_model as draw_module
from numpy.typing import NDArray
from test_states import decoder_config, logits, without_encoder
from tfexport_native import Model, NativeError, Tensor, instruction_sets

from tests.support.combinations import few_of
from tfexport.model_src import TransformerConfig
from tfexport.model_src.build import EncoderLayers, build_encoder
from tfexport.runtime.model.native_engine import encoder_config

Floats = NDArray[np.float32]
SEEDS = range(8)
# One, a few, about a panel, a tile and a group of sources, and a picture of the usual size.
LENGTHS = (1, 2, 31, 32, 33, 97, 257, 578, 1)


def draw_layers(seed: int) -> tuple[TransformerConfig, EncoderLayers]:
    """The layers of an encoder, of drawn settings and weights."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    heads, dim = draw.randint(1, 4), draw.choice((1, 5, 8, 16, 24, 33))
    config = TransformerConfig(
        d_model=draw.randint(2, 70), num_heads=heads, head_dim=dim, num_decoder_layers=1,
        num_encoder_layers=draw.randint(1, 3), d_ff=draw.randint(1, 70), positions="none",
        norm=draw.choice(("layer", "annotated", "rms")), norm_eps=draw.choice((1e-5, 1e-3)),
        norm_placement=draw.choice(("pre", "pre", "post", "res_post")),
        encoder_final_norm=draw.random() < 0.7, norm_bias=draw.random() < 0.7,
        activation=draw.choice(("relu", "gelu", "gelu_tanh", "quick_gelu", "silu")),
        attention_bias=draw.random() < 0.7, feed_forward_bias=draw.random() < 0.7,
        gated_feed_forward=draw.random() < 0.3, scale_scores=draw.random() < 0.7,
        residual_scale=draw.choice((1.0, 1.0, 0.8)), dropout=0.0,
    )  # fmt: skip
    layers = build_encoder(config).eval()
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.add_(torch.randn(parameter.shape) * (0.5 / parameter.shape[-1] ** 0.5))
    return config, layers


def draw_embeddings(config: TransformerConfig, seed: int) -> list[Floats]:
    draw = np.random.default_rng(seed)
    return [draw.standard_normal((n, config.d_model)).astype(np.float32) for n in LENGTHS]


def make(seed: int, int8: bool = False, **how: Any) -> tuple[Model, EncoderLayers, list[Floats]]:
    """A model with an encoder of embeddings, its layers in torch, and embeddings."""
    config, layers = draw_layers(seed)
    of_layers = {name: Tensor(each.numpy()) for name, each in layers.state_dict().items()}
    for name, each in of_layers.items() if int8 else ():
        if name.endswith("proj.weight"):
            of_layers[name] = quantize(each.values)
            whole, scales = of_layers[name][:2]
            assert scales is not None
            layers.state_dict()[name].copy_(torch.from_numpy(whole * scales[:, None]))
    decoder = draw_config(seed)
    tensors = without_encoder(engine_tensors(draw_module(decoder, seed)))
    draw = np.random.default_rng(seed)
    for name, each in tensors.items():
        if name.endswith(("cross_attn.k_proj.weight", "cross_attn.v_proj.weight")):
            shape = each.values.shape[0], config.d_model
            tensors[name] = Tensor((draw.standard_normal(shape) * 0.1).astype(np.float32))
    settings = decoder_config(decoder, config.d_model) | encoder_config(config.to_dict())
    model = Model(settings, {**tensors, **of_layers}, **how)
    return model, layers, draw_embeddings(config, seed)


@torch.no_grad()
def in_torch(
    layers: EncoderLayers, embeddings: list[Floats], dtype: torch.dtype = torch.float64
) -> list[Floats]:
    of = layers.to(dtype)
    return [of(torch.from_numpy(x[None]).to(dtype))[0].float().numpy() for x in embeddings]


@pytest.mark.parametrize("seed", SEEDS)
def test_states_are_those_of_torch(seed: int) -> None:
    names = instruction_sets()
    how = {"threads": 1 + seed % 3, "instruction_set": names[seed % len(names)]}
    model, layers, embeddings = make(seed, **how)
    rounded, exact = (in_torch(layers, embeddings, d) for d in (torch.float32, torch.float64))
    for found, own, wanted in zip(model.encode(embeddings), rounded, exact, strict=True):
        margin = 1e-4 * max(1, np.abs(wanted).max()) + 5 * np.abs(own - wanted).max()
        assert np.abs(found - wanted).max() <= margin


@pytest.mark.parametrize("seed", few_of(SEEDS[:6], 0, 3))
def test_int8_states_are_near_those_of_the_dequantised_weights(seed: int) -> None:
    model, layers, embeddings = make(seed, int8=True)
    for found, wanted in zip(model.encode(embeddings), in_torch(layers, embeddings), strict=True):
        scale = np.abs(wanted).max()
        assert np.abs(found - wanted).mean() < 0.05 * scale
        assert np.abs(found - wanted).max() > 0  # integers they are


@pytest.mark.parametrize("int8", [False, True])
def test_a_source_depends_neither_on_its_neighbours_nor_on_threads(int8: bool) -> None:
    for name in instruction_sets():
        one, _, embeddings = make(4, int8, instruction_set=name)
        together = one.encode(embeddings)
        for threads in (1, 3):
            model, _, _ = make(4, int8, threads=threads, instruction_set=name)
            for i in (8, 3, 7, 0):
                (alone,) = model.encode([embeddings[i]])
                np.testing.assert_array_equal(alone, together[i])


def test_a_decoder_takes_the_states_as_ever() -> None:
    model, layers, embeddings = make(5)
    states, tokens = model.encode(embeddings), draw_tokens(draw_config(5), 5, len(embeddings))
    wanted = logits(model, in_torch(layers, embeddings), tokens)
    np.testing.assert_allclose(logits(model, states, tokens), wanted, rtol=1e-3, atol=1e-3)


def test_what_is_no_embedding_is_refused() -> None:
    model, _, embeddings = make(1)
    width = embeddings[0].shape[1]
    for given, wrong in (
        ([embeddings[0][:, 1:].copy()], rf"expected float32 states \(S, {width}\)"),
        ([embeddings[0][:0]], "source 0 is empty"),
        ([[1, 2]], "takes states, not ids"),
        ([], "no sources"),
    ):
        with pytest.raises(NativeError, match=wrong):
            model.encode(given)  # type: ignore[arg-type]
    found = model.encode([np.full((40, width), np.nan, np.float32)])[0]
    assert np.isnan(found).all()
    decoder = draw_config(1)
    tensors = without_encoder(engine_tensors(draw_module(decoder, 1)))
    alone = Model(decoder_config(decoder, decoder.d_model), tensors)
    with pytest.raises(NativeError, match="states are given, not ids"):
        alone.encode([np.zeros((3, decoder.d_model), np.float32)])
    of_layers = encoder_config(dataclasses.replace(draw_layers(1)[0], d_model=5).to_dict())
    for wrong_config, wrong in (
        ({**of_layers, "encoder.d_model": decoder.d_model + 1}, "as memory_width says"),
        ({**of_layers, "encoder.num_encoder_layers": 0}, "an encoder of embeddings has layers"),
        ({**of_layers, "encoder.positions": 3}, r"unknown key 'encoder\.positions'"),
        ({"encoder.norm": "layer"}, r"missing key 'encoder\.d_model'"),
        ({**of_layers, "encoder.activation": "sine"}, r"encoder\.activation is 'sine'"),
        ({**of_layers, "encoder.d_model": decoder.d_model}, r"encoder\.layers\.0"),
    ):
        settings = decoder_config(decoder, decoder.d_model) | wrong_config
        with pytest.raises(NativeError, match=wrong):
            Model(settings, tensors)
