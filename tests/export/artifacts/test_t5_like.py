"""T5 and its kin as bundles: their graphs against transformers itself."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.model_src.checkpoint.layouts.test_t5_like import draw, make, unlike
from tests.support.combinations import few_of
from tests.support.hf_models import T5_LIKE, Padded, log_probs, padded_batch, save_folder
from tfexport.export import export
from tfexport.runtime.model.onnxruntime_model import OnnxModel

version = pytest.importorskip("transformers").__version__
pytestmark = [
    pytest.mark.peers,
    pytest.mark.slow,
    pytest.mark.usefixtures("few_shapes"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

# `FAMILIES=all pytest tests/export/artifacts/test_t5_like.py` exports four of each family.
CASES = [(family, seed) for family in T5_LIKE for seed in range(4)]
FEW = [("t5", 0), ("umt5", 3)]
EXPORTED = CASES if os.environ.get("FAMILIES") == "all" else few_of(FEW, FEW[1])


def rows_of(batch: Padded) -> list[list[int]]:
    kept = zip(batch.ids.tolist(), batch.mask.tolist(), strict=True)
    return [ids[: sum(mask)] for ids, mask in kept]


@pytest.mark.parametrize(("family", "seed"), EXPORTED)
def test_graphs(family: str, seed: int, tmp_path: Path) -> None:
    model = make(family, seed, **draw(family, seed))
    folder = save_folder(model, tmp_path / "model")
    # The third is of standard operators alone.
    made = export(folder, tmp_path / "m.bundle", portable=seed == 2)
    assert made.report is not None
    assert made.bundle_manifest is not None
    assert made.report.reference == f"{type(model).__name__} of transformers {version}"
    runtime = OnnxModel(tmp_path / "m.bundle", made.bundle_manifest)
    lengths, target = ((150, 131, 9), 140) if seed % 2 else ((35, 12, 1), 33)
    batch = padded_batch(model, seed, lengths, target)
    wanted, prefix = log_probs(model, batch), batch.target.numpy()
    state = runtime.encode(rows_of(batch))
    steps = [runtime.step(prefix[:, t : t + 1], state).copy() for t in range(target)]
    whole = runtime.step(prefix, runtime.encode(rows_of(batch)))
    for logits in (whole, np.concatenate(steps, axis=1)):
        assert unlike(torch.log_softmax(torch.from_numpy(logits), -1), wanted) < 1e-4
