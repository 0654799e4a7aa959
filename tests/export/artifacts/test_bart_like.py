"""BART and its kin as bundles: their graphs against transformers itself."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.combinations import few_of
from tests.support.hf_models import (
    BART_LIKE,
    Padded,
    log_probs,
    make_model,
    padded_batch,
    save_folder,
)
from tests.system.peers.test_bart_like import TOLERANCE, draw_config
from tfexport.errors import InputError
from tfexport.export import export
from tfexport.runtime import Translator
from tfexport.runtime.model.onnxruntime_model import OnnxModel

pytest.importorskip("transformers", reason="make optional installs it")
pytestmark = [
    pytest.mark.peers,
    pytest.mark.slow,
    pytest.mark.usefixtures("few_shapes"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

# test_generation holds exported folders against transformers in `make test`.
# `FAMILIES=all pytest tests/export/artifacts/test_bart_like.py` exports four of each family.
CASES = [(family, seed) for family in BART_LIKE for seed in range(4)]
FEW = [("marian", 1), ("blenderbot-small", 0)]
EXPORTED = CASES if os.environ.get("FAMILIES") == "all" else few_of(FEW)


def rows_of(batch: Padded) -> list[list[int]]:
    kept = zip(batch.ids.tolist(), batch.mask.tolist(), strict=True)
    return [ids[: sum(mask)] for ids, mask in kept]


@pytest.mark.parametrize(("family", "seed"), EXPORTED)
def test_bundle(family: str, seed: int, tmp_path: Path) -> None:
    """Encoder and decoder at once and in steps; greedy and beam graphs by the export's parity."""
    untied, values = draw_config(family, seed)
    limit = values["max_position_embeddings"]
    model = make_model(family, seed, untied=untied, **values)
    folder = save_folder(model, tmp_path / "model", "bin" if seed % 2 else "safetensors")
    # The third is of standard operators alone.
    made = export(folder, tmp_path / "m.bundle", portable=seed == 2)
    assert made.report is not None
    assert made.bundle_manifest is not None
    assert f"{type(model).__name__} of transformers " in made.report.reference
    assert {"generate", "beam"} <= {it.stage for it in made.report.comparisons}
    runtime = OnnxModel(tmp_path / "m.bundle", made.bundle_manifest)
    batch = padded_batch(model, seed, (limit, 3, 1), target=limit)
    wanted, prefix = log_probs(model, batch), batch.target.numpy()
    state = runtime.encode(rows_of(batch))
    steps = [runtime.step(prefix[:, t : t + 1], state).copy() for t in range(limit)]
    whole = runtime.step(prefix, runtime.encode(rows_of(batch)))
    for logits in (whole, np.concatenate(steps, axis=1)):
        found = torch.log_softmax(torch.from_numpy(logits), -1)
        assert ((found - wanted).abs() / wanted.abs().clamp(min=1)).max() < TOLERANCE
    with pytest.raises(InputError, match=f"{limit + 1}"):
        Translator(tmp_path / "m.bundle", threads=1).generate([[4] * (limit + 1)])
