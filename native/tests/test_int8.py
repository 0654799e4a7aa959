"""int8 weights against the plain formula: rows rounded to integers, whole sums, two scales."""

import copy
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from drawn import draw_config, draw_model, draw_sources, engine_config, engine_tensors, quantize
from eager import Row, log_probs
from tfexport_native import Model, Tensor, instruction_sets
from torch import nn

from tfexport.model_src import Transformer

SEEDS = range(12)
BYTES = 255
WORDS = 32767
# Instruction sets whose rows are words, of both signs; rows of the others are bytes, from the least
# value to the largest; with some, fewer of them if weights are large, or pairs would saturate.
PAGE = Path(__file__).parents[1] / "README.md"
OF_WORDS = set(re.findall(r"^\| `(\w+)` \|.*\| up to 16 bits \|$", PAGE.read_text(), re.M))
OF_PAIRS = set(re.findall(r"^\| `(\w+)` \|.*\| 8 bits, .*pairs.* \|$", PAGE.read_text(), re.M))


class WholeLinear(nn.Module):
    """y = (q x' ) scale_of_row scale_of_output + bias, with x' integers."""

    def __init__(self, linear: nn.Linear, weight: Tensor, instruction_set: str) -> None:
        super().__init__()
        self._weight, self._bias = weight, linear.bias
        self._words, self._steps = instruction_set in OF_WORDS, BYTES
        if instruction_set in OF_PAIRS:
            self._steps = min(BYTES, WORDS // (2 * int(np.abs(weight.values).max())))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self._weight.scales is not None
        values = x.detach().numpy()
        low = np.minimum(values.min(-1, keepdims=True), 0)
        high = np.maximum(values.max(-1, keepdims=True), 0)
        if self._words:
            low, steps = np.minimum(low, -high), np.float32(WORDS)
            step, zero = np.maximum(-low, np.float32(1e-30)) / steps, np.float32(0)
        else:
            step = np.maximum(high - low, np.float32(1e-30)) / np.float32(self._steps)
            zero = np.rint(-low / step)
        whole = np.rint(values / step).astype(np.int64)
        if not self._words:
            whole = np.clip(whole, -zero, self._steps - zero).astype(np.int64)
        sums = whole @ self._weight.values.astype(np.int64).T
        product = sums * step.astype(np.float64) * self._weight.scales
        y = torch.from_numpy(product.astype(np.float32))
        return y if self._bias is None else y + self._bias


def quantized(
    model: Transformer, instruction_set: str, largest: int
) -> tuple[Transformer, dict[str, Tensor]]:
    """A module with whole products, and the engine's weights of it."""
    model = copy.deepcopy(model)
    tensors = engine_tensors(model)
    for name, module in list(model.named_modules()):
        if not isinstance(module, nn.Linear | nn.Embedding):
            continue
        key = f"{name}.weight"
        tensors[key] = quantize(tensors[key].values, largest)
        if isinstance(module, nn.Embedding):
            values, scales, _ = tensors[key]
            assert scales is not None
            module.weight = nn.Parameter(torch.from_numpy(values * scales[:, None]))
        else:
            parent, _, own = name.rpartition(".")
            setattr(
                model.get_submodule(parent), own, WholeLinear(module, tensors[key], instruction_set)
            )
    return model, tensors


@pytest.mark.parametrize("instruction_set", instruction_sets())
@pytest.mark.parametrize("seed", SEEDS)
def test_int8_weights_give_the_formulas_numbers(seed: int, instruction_set: str) -> None:
    config = draw_config(1000 + seed)
    largest = 63 if seed % 2 else 127  # as bundles have it, and all of a byte
    model, tensors = quantized(draw_model(config, seed), instruction_set, largest)
    engine = Model(engine_config(config), tensors, 2, instruction_set)
    sources = draw_sources(config, seed)
    assert config.target_vocab_size is not None
    draw = np.random.default_rng(seed)
    tokens = draw.integers(0, config.target_vocab_size, (len(sources), 7)).astype(np.int32)
    batch = engine.new_batch()
    batch.enter(sources)
    logits = np.empty((*tokens.shape, engine.vocab_size), np.float32)
    best = np.empty(len(sources), np.int32)
    batch.step(tokens, logits=logits, best=best)
    np.testing.assert_array_equal(best, logits[:, -1].argmax(-1))
    # A value near the middle of two integers may be rounded to either.
    tolerance = 1e-3 if instruction_set in OF_WORDS else 0.1
    for i, source in enumerate(sources):
        row = Row(model, source)
        expected, _, _ = row.step(row.empty(), tokens[i].tolist())
        difference = np.abs(log_probs(expected) - log_probs(logits[i]))
        assert difference.max() < tolerance


@pytest.mark.parametrize("kind", ["self_attn", "cross_attn"])
def test_of_a_group_that_is_quantised_in_part_all_is_float32(kind: str) -> None:
    """As a quality gate may have it, which keeps one parameter after the other in float32."""
    config = draw_config(0)
    tensors = engine_tensors(draw_model(config, 0))
    key = f"decoder.layers.0.{kind}.k_proj.weight"
    rounded = quantize(tensors[key].values)
    assert rounded.scales is not None
    meant = Tensor(rounded.values.astype(np.float32) * rounded.scales[:, None])
    sources = draw_sources(config, 0)
    found = [
        Model(engine_config(config), {**tensors, key: one}).generate(sources, 9, True)
        for one in (rounded, meant)
    ]
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
