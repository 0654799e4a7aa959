"""One layer applied several times: its weights are in a graph once, and each use is right."""

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch

from tests.support.combinations import few_of
from tests.support.originals import rebuilt
from tests.support.originals.weights import shake
from tfexport.export import export

# `SHARED_LAYERS=50 pytest tests/export/artifacts/test_shared_layers.py` draws more.
DRAWN = int(os.environ.get("SHARED_LAYERS", "2"))


def drawn(seed: int) -> dict[str, Any]:
    """Sizes of a model; the first are those of the document that it comes from."""
    if seed == 0:
        return {"size": 64, "heads": 4, "inner": 128, "encoders": 2, "decoders": 3}
    draw = random.Random(seed)
    heads = draw.choice([1, 2, 4])
    return {
        "size": heads * draw.choice([4, 8, 16]),
        "heads": heads,
        "inner": draw.choice([8, 24, 32]),
        "encoders": draw.randint(1, 4),
        "decoders": draw.randint(1, 4),
        "activation": draw.choice(["relu", "gelu"]),
    }


@pytest.mark.parametrize("portable", few_of([False, True], False), ids=["fused", "portable"])
@pytest.mark.parametrize("seed", few_of(range(DRAWN), 0))
def test_shared_layers_with_biases_are_equal(seed: int, portable: bool, tmp_path: Path) -> None:
    sizes = drawn(seed)
    model = shake(rebuilt.Rebuilt(**sizes), seed)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    config = {
        "num_heads": sizes["heads"],
        "num_encoder_layers": sizes["encoders"],
        "num_decoder_layers": sizes["decoders"],
        "activation": sizes.get("activation", "relu"),
        "share_encoder_layers": True,
        "share_decoder_layers": True,
        "positions_every_layer": True,
    }
    settings = [f"{key}={str(value).lower()}" for key, value in config.items()]
    path = tmp_path / "model.onnx"
    export(
        tmp_path / "model.pt",
        path,
        graph="forward",
        settings=settings,
        portable=portable,
        verify=False,
    )
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(path, options)
    for batch, source, target in ((1, 1, 1), (3, 7, 4)):
        src = torch.randn(batch, source, sizes["size"])
        tgt = torch.randn(batch, target, sizes["size"])
        (found,) = session.run(
            None,
            {
                "inputs_embeds": src.numpy(),
                "attention_mask": np.ones((batch, source), np.int64),
                "decoder_inputs_embeds": tgt.numpy(),
                "decoder_attention_mask": np.ones((batch, target), np.int64),
            },
        )
        expected = model(src, tgt, tgt_mask=rebuilt.causal(target))
        assert np.abs(found - expected.numpy()).max() < 1e-4
