"""The whole model against torch.nn.Transformer, over configurations that hypothesis draws."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from tests.support import tutorial
from tests.support.oracle import Oracle
from tests.support.originals.weights import shake
from tfexport.model_src import Transformer, TransformerConfig, build_transformer, load_checkpoint
from tfexport.model_src.checkpoint.read_options import checkpoint_of

SIZES: dict[str, Any] = {
    "d_model": 8,
    "num_heads": 2,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "d_ff": 12,
    "source_vocab_size": 11,
    "target_vocab_size": 13,
}

stock_models = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 1000),
        "num_heads": st.sampled_from([1, 2, 4]),
        "encoder_layers": st.integers(1, 3),
        "decoder_layers": st.integers(1, 3),
        "d_model": st.sampled_from([8, 16, 20]),
        "d_ff": st.integers(1, 30),
        "source_size": st.integers(5, 20),
        "target_size": st.integers(5, 20),
        "length": st.integers(10, 40),
        "norm_first": st.booleans(),
        "final_norms": st.booleans(),
        "bias": st.booleans(),
        "batch_first": st.just(False),
        "activation": st.sampled_from(["relu", "gelu"]),
        "layer_norm_eps": st.sampled_from([1e-5, 1e-3]),
    }
)


def to_settings(options: dict[str, Any]) -> list[str]:
    """What ``--set`` has to say of a stock model."""
    return [
        f"num_heads={options['num_heads']}",
        f"norm_placement={'pre' if options['norm_first'] else 'post'}",
        f"activation={options['activation']}",
        f"norm_eps={options['layer_norm_eps']}",
    ]


def batch(
    options: dict[str, Any], size: int = 3
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Source ids (B, S), their mask with padding in the later rows, target ids (B, T)."""
    source = torch.randint(0, options["source_size"], (size, 7))
    target = torch.randint(0, options["target_size"], (size, 5))
    lengths = torch.tensor([7, 4, 1])[:size]
    mask = (torch.arange(7) < lengths.unsqueeze(1)).long()
    return source, mask, target


@given(options=stock_models)
@settings(max_examples=40)
def test_stock_model_of_any_shape_equals_torch(
    tmp_path_factory: pytest.TempPathFactory, options: dict[str, Any]
) -> None:
    theirs = tutorial.make(**options)
    path = tmp_path_factory.mktemp("stock") / "model.pt"
    torch.save(theirs.state_dict(), path)
    ours = load_checkpoint(path, settings=to_settings(options)).build()
    source, mask, target = batch(options)
    # In float64, where a difference is one of mathematics and not of rounding.
    expected = theirs.double()(source.T, target.T, mask == 0).transpose(0, 1)
    logits = ours.double()(source, mask, target, torch.ones_like(target))
    torch.testing.assert_close(logits, expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_stock_model_equals_torch_in_float32(norm_first: bool, activation: str) -> None:
    options: dict[str, Any] = {"norm_first": norm_first, "activation": activation}
    theirs = tutorial.make(scale=1.0, d_model=64, d_ff=128, encoder_layers=4, **options)
    ours = checkpoint_of(theirs).build()
    source, mask, target = batch({"source_size": 17, "target_size": 19})
    expected = theirs(source.T, target.T, mask == 0).transpose(0, 1)
    logits = ours(source, mask, target, torch.ones_like(target))
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


variants = st.fixed_dictionaries(
    {
        "norm": st.sampled_from(["layer", "annotated", "rms"]),
        "norm_placement": st.sampled_from(["post", "pre", "res_post"]),
        "activation": st.sampled_from(["relu", "gelu", "silu"]),
        "attention_bias": st.booleans(),
        "feed_forward_bias": st.booleans(),
        "positions": st.sampled_from(["sinusoidal", "learned", "none"]),
        "positions_every_layer": st.booleans(),
        "share_encoder_layers": st.booleans(),
        "share_decoder_layers": st.booleans(),
        "head_dim": st.sampled_from([0, 3]),
        "mask_fill": st.sampled_from([float("-inf"), -1e9]),
        "tie_output": st.booleans(),
        "tie_embeddings": st.booleans(),
        "num_encoder_layers": st.integers(1, 3),
        "num_decoder_layers": st.integers(1, 3),
        "encoder_final_norm": st.booleans(),
        "decoder_final_norm": st.booleans(),
        "norm_bias": st.booleans(),
        "output_bias": st.booleans(),
        "scale_embeddings": st.booleans(),
    }
)


def build(options: dict[str, Any]) -> Transformer:
    torch.manual_seed(3)
    return build_transformer(make_config(options)).eval().requires_grad_(False)


def make_config(options: dict[str, Any]) -> TransformerConfig:
    # One table for both sides has to be of one size.
    sizes = {**SIZES, **({"source_vocab_size": 13} if options.get("tie_embeddings") else {})}
    return TransformerConfig(**{**sizes, **options})


@given(options=variants, seed=st.integers(0, 100))
@settings(max_examples=60)
def test_every_variant_equals_the_plain_formulas(options: dict[str, Any], seed: int) -> None:
    model = shake(build(options), seed).double()
    oracle = Oracle(model.config, model.state_dict())
    source, mask, target = batch({"source_size": 11, "target_size": 13})
    logits = model(source, mask, target, torch.ones_like(target))
    for row in range(3):
        alone = source[row, : int(mask[row].sum())].numpy()
        expected = oracle.logits(alone, target[row].numpy())
        np.testing.assert_allclose(logits[row], expected, atol=1e-6, rtol=1e-6)


@given(options=variants)
@settings(max_examples=40)
def test_cached_steps_of_any_width_equal_the_full_prefix(options: dict[str, Any]) -> None:
    model = build(options).double()  # a difference is then one of mathematics, not of rounding
    source, mask, target = batch({"source_size": 11, "target_size": 13})
    expected = model(source, mask, target, torch.ones_like(target))
    hidden, cross = model.encode(source, mask)
    for widths in ([1, 1, 1, 1, 1], [2, 3], [5]):
        past = model.decoder.empty_cache(hidden)
        pieces = []
        for ids in target.split(widths, dim=1):
            logits, past = model.step(ids, past, cross, mask)
            pieces.append(logits)
        torch.testing.assert_close(torch.cat(pieces, dim=1), expected, atol=1e-8, rtol=1e-8)


@given(options=variants)
@settings(max_examples=6)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_variant_scripts(options: dict[str, Any]) -> None:
    model = build(options)
    scripted = torch.jit.script(model)
    source, mask, target = batch({"source_size": 11, "target_size": 13})
    expected = model(source, mask, target, torch.ones_like(target))
    torch.testing.assert_close(scripted(source, mask, target, torch.ones_like(target)), expected)


@given(options=variants)
@settings(max_examples=20)
def test_padding_changes_nothing(options: dict[str, Any]) -> None:
    model = build(options).double()
    source, mask, target = batch({"source_size": 11, "target_size": 13})
    together = model(source, mask, target, torch.ones_like(target))
    for row in range(3):
        length = int(mask[row].sum())
        one = slice(row, row + 1)
        keep = torch.ones(1, length, dtype=torch.long)
        alone = model(source[one, :length], keep, target[one], torch.ones_like(target[one]))
        torch.testing.assert_close(together[one], alone, atol=1e-8, rtol=1e-8)


def test_decoder_mask_hides_padded_targets() -> None:
    model = build({})
    source, mask, target = batch({"source_size": 11, "target_size": 13})
    other = target.clone()
    other[:, 3:] = (other[:, 3:] + 1) % 13
    keep = torch.tensor([[1, 1, 1, 0, 0]] * 3)
    first, second = model(source, mask, target, keep), model(source, mask, other, keep)
    torch.testing.assert_close(first[:, :3], second[:, :3])


@given(options=variants)
@settings(max_examples=15)
def test_every_parameter_is_trained(options: dict[str, Any]) -> None:
    model = build_transformer(make_config(options)).train()
    source, mask, target = batch({"source_size": 11, "target_size": 13})
    logits = model(source, mask, target, torch.ones_like(target))
    F.cross_entropy(logits.flatten(0, 1), target.flatten()).backward()
    # A key's bias moves all scores of a query alike, so softmax gives it no gradient; and what is
    # called dead here would be dead for every input.
    dead = [
        name
        for name, parameter in model.named_parameters()
        if not name.endswith("k_proj.bias") and (parameter.grad is None or not parameter.grad.any())
    ]
    assert dead == []


def test_dropout_is_active_in_training_only() -> None:
    model = build_transformer(TransformerConfig(**SIZES, dropout=0.5))
    source, mask, target = batch({"source_size": 11, "target_size": 13})
    args = (source, mask, target, torch.ones_like(target))
    assert not torch.equal(model(*args), model(*args))
    model.eval()
    assert torch.equal(model(*args), model(*args))


def test_tied_tables_are_one_parameter() -> None:
    config = TransformerConfig(
        **{**SIZES, "source_vocab_size": 13}, tie_embeddings=True, tie_output=True
    )
    model = build_transformer(config)
    tables = ("source_embedding.tokens.weight", "target_embedding.tokens.weight")
    parameters = [model.get_parameter(name) for name in (*tables, "output_proj.weight")]
    assert len(set(map(id, parameters))) == 1


def test_stock_demo_checkpoint_reads_as_it_is_described(demo_folder: Path) -> None:
    config = load_checkpoint(demo_folder).config
    assert (config.d_model, config.num_heads, config.d_ff) == (256, 8, 512)
    assert (config.num_encoder_layers, config.num_decoder_layers) == (3, 3)
    assert (config.source_vocab_size, config.target_vocab_size) == (6000, 6000)
    assert config.max_positions == 512


def test_fresh_weights_are_xavier_uniform_and_biases_zero() -> None:
    config = TransformerConfig(**{**SIZES, "d_model": 64, "d_ff": 96})
    for name, parameter in build_transformer(config).named_parameters():
        if parameter.dim() > 1:
            bound = (6 / sum(parameter.shape)) ** 0.5
            assert 0.8 * bound < float(parameter.detach().abs().max()) <= bound, name
        elif name.endswith("_proj.bias"):
            assert not parameter.any(), name
