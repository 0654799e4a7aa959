"""Weights in 16 bits: every bit of a result is that of the same weights in float32."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import draw_halves, draw_sources, draw_tokens, engine_config
from numpy.typing import NDArray
from tfexport_native import Model, NativeError, PackedFile, Tensor, instruction_sets

from tfexport.model_src import TransformerConfig

SEEDS = range(12)
VARIABLE = "TFEXPORT_NATIVE_WEIGHTS"


def results(config: TransformerConfig, model: Model, seed: int) -> list[NDArray[Any]]:
    """What each kind of call gives."""
    sources = [*draw_sources(config, seed), *draw_sources(config, seed + 1)]
    sequences, counts, scores = model.generate(sources, 9, True)
    assert scores is not None
    beams = model.beam(sources, 2, 2, 8)
    tokens = draw_tokens(config, seed, len(sources))[:, :6]
    logits = np.empty((*tokens.shape, model.vocab_size), np.float32)
    best = np.empty(len(sources), np.int32)
    some = np.empty((*tokens.shape, 3), np.float32)
    for found, columns in ((logits, None), (some, np.array([5, 0, 7]))):
        batch = model.new_batch()
        batch.enter(sources)
        batch.step(tokens, logits=found, columns=columns, best=best)
    return [sequences, counts, scores, *beams, *model.encode(sources), logits, some, best]


def size_of(model: Model, path: Path) -> int:
    """Of the weights, packed."""
    model.save(PackedFile(path, "digest"))
    return path.stat().st_size


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "mixed"])
@pytest.mark.parametrize("seed", SEEDS)
def test_results_are_those_of_float32(
    seed: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, tensors = draw_halves(seed, kind)
    for name in instruction_sets():
        threads = 1 + (seed + len(name)) % 3
        monkeypatch.setenv(VARIABLE, "float32")
        wide = Model(engine_config(config), tensors, 2, name)
        expected = results(config, wide, seed)
        monkeypatch.delenv(VARIABLE)
        halves = Model(engine_config(config), tensors, threads, name)
        file = PackedFile(tmp_path / "halves", "digest")
        assert size_of(halves, file.path) < size_of(wide, tmp_path / "wide")
        mapped = Model(engine_config(config), tensors, threads, name, file)
        for model in (halves, mapped):
            for one, other in zip(results(config, model, seed), expected, strict=True):
                assert one.tobytes() == other.tobytes(), name


@pytest.mark.parametrize("value", [1 + 2**-20, 65520, 2**-26 * 1.5, float("nan")])
def test_a_single_value_that_does_not_fit_keeps_a_matrix_in_float32(
    value: float, tmp_path: Path
) -> None:
    """The last one: all of a matrix is looked at, and the others are not touched by it."""
    config, tensors = draw_halves(1, "float16")
    sizes = [size_of(Model(engine_config(config), tensors), tmp_path / "halves")]
    for name in ("decoder.layers.0.feed_forward.up_proj.weight", "output_proj.weight"):
        changed = tensors[name].values.copy()
        changed[-1, -1] = value
        changed = {**tensors, name: Tensor(changed)}
        sizes.append(size_of(Model(engine_config(config), changed), tmp_path / "changed"))
        # Rows of the projection are not in the file if they are float32.
        assert (sizes[-1] > sizes[0]) == (name != "output_proj.weight")
        assert sizes[-1] != sizes[0]


def test_int8_and_halves_multiplied_together_are_float32() -> None:
    config, tensors = draw_halves(0, "bfloat16")
    key = "decoder.layers.0.self_attn.k_proj.weight"
    rows = len(tensors[key].values)
    whole = np.random.default_rng(0).integers(-127, 128, tensors[key].values.shape).astype(np.int8)
    scales = np.linspace(0.001, 0.002, rows, dtype=np.float32)
    meant = Tensor(whole.astype(np.float32) * scales[:, None])
    found = [
        results(config, Model(engine_config(config), {**tensors, key: one}), 0)
        for one in (Tensor(whole, scales), meant)
    ]
    for one, other in zip(*found, strict=True):
        assert one.tobytes() == other.tobytes()


def test_an_unknown_way_to_keep_weights_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "float64")
    config, tensors = draw_halves(0, "bfloat16")
    with pytest.raises(NativeError, match='WEIGHTS is "float64"; expected stored or float32'):
        Model(engine_config(config), tensors)


@pytest.mark.parametrize(
    "name", [VARIABLE, "TFEXPORT_NATIVE_INSTRUCTION_SET", "TFEXPORT_NATIVE_SHARING"]
)
def test_an_empty_variable_is_as_none(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config, tensors = draw_halves(0, "bfloat16")
    expected = results(config, Model(engine_config(config), tensors), 0)
    known = instruction_sets()
    monkeypatch.setenv(name, "")
    assert instruction_sets() == known
    found = results(config, Model(engine_config(config), tensors), 0)
    for one, other in zip(found, expected, strict=True):
        assert one.tobytes() == other.tobytes()


def test_subnormal_values_survive_a_process_that_flushes_them(tmp_path: Path) -> None:
    """Libraries built with -ffast-math switch subnormal numbers off for all of a process."""
    code = (
        "import torch\nassert torch.set_flush_denormal(True)\nimport numpy as np\n"
        "from test_halves import draw_halves, results, Model, engine_config, Tensor\n"
        "config, tensors = draw_halves(4, 'float16')\n"
        "tensors = {name: Tensor(tensor.values * np.float32(2**-7)) if tensor.values.ndim == 2\n"
        "           else tensor for name, tensor in tensors.items()}\n"
        "tensors = {name: Tensor(tensor.values.astype(np.float16).astype(np.float32))\n"
        "           if tensor.values.ndim == 2 else tensor for name, tensor in tensors.items()}\n"
        "for name in __import__('tfexport_native').instruction_sets():\n"
        "    for found in results(config, Model(engine_config(config), tensors, 1, name), 4):\n"
        "        print(name, hash(found.tobytes()))\n"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True,
            check=True, env={**os.environ, "PYTHONHASHSEED": "0", **extra},
        ).stdout
        for extra in ({}, {VARIABLE: "float32"})
    ]  # fmt: skip
    assert said[0] == said[1]
    assert said[0]
