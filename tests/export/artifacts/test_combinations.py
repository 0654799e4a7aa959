"""Configs in every pairwise combination of their values: exported and compared as each artifact."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import SETTINGS
from tests.support.combinations import few_of
from tests.support.originals.weights import shake
from tfexport.export import export
from tfexport.export.parity import checkpoint as eager_checkpoint
from tfexport.model_src import TransformerConfig, build_transformer, save_checkpoint

AXES: dict[str, list[Any]] = {
    "norm": ["layer", "annotated", "rms"],
    "norm_placement": ["post", "pre", "res_post"],
    "activation": ["relu", "gelu", "silu"],
    "positions": ["sinusoidal", "learned", "none"],
    "attention_bias": [True, False],
    "feed_forward_bias": [True, False],
    "share_encoder_layers": [False, True],
    "share_decoder_layers": [False, True],
    "positions_every_layer": [False, True],
    "tie_output": [False, True],
    "head_dim": [0, 5],
    "num_encoder_layers": [1, 2],
    "mask_fill": [-math.inf, -1e9],
}


def pairwise() -> list[dict[str, Any]]:
    """Configurations in which every two values of two axes meet at least once, greedily."""
    places = [(name, i) for name, values in AXES.items() for i in range(len(values))]
    missing = {(a, b) for a in places for b in places if a[0] < b[0]}
    generator, rows = np.random.default_rng(0), []
    while missing:
        best: dict[str, int] = {}
        most: set[Any] = set()
        for _ in range(20):
            row: dict[str, int] = {}
            for name in generator.permutation(list(AXES)):
                # The value that meets the most of what is missing with those that are chosen.
                met = [
                    sum(
                        (min((name, i), other), max((name, i), other)) in missing
                        for other in row.items()
                    )
                    + generator.random()
                    for i in range(len(AXES[name]))
                ]
                row[str(name)] = int(np.argmax(met))
            found = {pair for pair in missing if all(row[name] == i for name, i in pair)}
            if len(found) > len(most):
                best, most = row, found
        if most:
            rows.append({name: AXES[name][i] for name, i in best.items()})
            missing -= most
    return rows


PAIRS = pairwise()


@pytest.mark.slow
@pytest.mark.parametrize("i", few_of(range(len(PAIRS)), 0))
def test_combinations_are_equal_through_onnx_and_torchscript(
    tmp_path: Path, i: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other one as a bundle, the rest as one portable file; all as TorchScript."""
    # Where positions begin, and where they end.
    monkeypatch.setattr(eager_checkpoint, "BATCHES", (1, 3))
    monkeypatch.setattr(eager_checkpoint, "SOURCE_LENGTHS", (1, 7))
    # More layers of their own are no other graph; the demo model, in every form, has three.
    layers = 2 if PAIRS[i]["share_decoder_layers"] else 1
    config = TransformerConfig(
        d_model=8, num_heads=2, num_decoder_layers=layers, d_ff=12, max_positions=20,
        source_vocab_size=11, target_vocab_size=11, **SETTINGS, **PAIRS[i],
    )  # fmt: skip
    model = shake(build_transformer(config))
    save_checkpoint(model, tmp_path / "model.safetensors")
    reports = [export(tmp_path, tmp_path / "model.ts").report]
    if i % 2:
        made = export(tmp_path, tmp_path / "a.bundle")
        assert made.manifest.config == config.to_dict()
        reports.append(made.report)
    else:
        file = tmp_path / "g.onnx"
        reports.append(export(tmp_path, file, graph="generate", portable=True).report)
    for report in reports:
        assert report is not None
        assert report.passed
