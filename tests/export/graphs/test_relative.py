"""Relative positions that no fused operator has: graphs compared with modules without a cache."""

import os
from pathlib import Path

import pytest

from tests.support.originals.weights import shake
from tfexport.export import export
from tfexport.model_src import TransformerConfig, build_transformer
from tfexport.model_src.checkpoint.layouts.native import save_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_shapes")]

# `FAMILIES=all pytest tests/export/graphs/test_relative.py` exports all of them.
CASES = [(kind, portable) for kind in ("shaw", "rotary") for portable in (False, True)]
EXPORTED = CASES if os.environ.get("FAMILIES") == "all" else CASES[:1]


def saved(kind: str, path: Path) -> Path:
    config = TransformerConfig(
        d_model=12, num_heads=3, decoder_num_heads=2, num_encoder_layers=1, num_decoder_layers=1,
        d_ff=12, source_vocab_size=20, target_vocab_size=20, pad_id=0, bos_id=1, eos_id=2,
        positions="none", relative_positions=kind, relative_max_distance=4,  # type: ignore[arg-type]
    )  # fmt: skip
    save_checkpoint(shake(build_transformer(config), scale=1.5), path)
    return path


@pytest.mark.usefixtures("no_step_graph")
@pytest.mark.parametrize(("kind", "portable"), EXPORTED)
def test_bundle(kind: str, portable: bool, tmp_path: Path) -> None:
    model = saved(kind, tmp_path / "model.safetensors")
    made = export(model, tmp_path / "m.bundle", portable=portable)
    assert made.report is not None
    stages = {it.stage: it.difference for it in made.report.comparisons}
    assert {"full prefix", "cached steps", "generate", "beam"} <= set(stages)
    assert made.report.passed


def test_biases_that_are_inputs_have_the_heads_of_their_stack(tmp_path: Path) -> None:
    model = saved("rotary", tmp_path / "model.safetensors")
    made = export(model, tmp_path / "f.onnx", graph="forward", attention_biases=True)
    assert made.report is not None
    assert made.report.passed
