"""Layers of encoders whose embeddings are of any form, compared with the whole forward."""

# mypy: no-warn-return-any

import dataclasses
import json
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.export.incremental.own_case import draw_inputs
from tests.export.recognition.styles.other_kin import Attention, FeedForward, Sublayer
from tests.export.recognition.test_decoder import (
    Over,
    call_of,
    difference,
    files_of,
    made,
    recognise,
)
from tests.export.recognition.test_recognition import arguments, bundle_of
from tests.support.combinations import few_of
from tests.support.manifests import rewrite
from tfexport.bundle import open_bundle
from tfexport.errors import BundleError
from tfexport.export import verify
from tfexport.export.artifacts import recognised_decoder as artifacts
from tfexport.export.artifacts.module_source import read_module
from tfexport.export.recognition import decoder
from tfexport.export.recognition.decoder import RecognisedDecoder, recognise_decoder
from tfexport.runtime import Translator

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*nested.tensor:UserWarning"),
    pytest.mark.slow,
]
WIDTH = 24  # of the encoder; its decoder has 32


class Encoded(Over):
    """Frames, two by two, and positions, before layers of another width than the decoder's."""

    def __init__(self, layers: Callable[[], nn.Module] | None = None) -> None:
        super().__init__()
        self.near = nn.Conv1d(10, WIDTH, 3, padding=1)
        self.places = nn.Parameter(torch.randn(80, WIDTH))
        self.layers = Layers() if layers is None else layers()
        for layer in self.decoder.cross:
            layer.k_proj, layer.v_proj = nn.Linear(WIDTH, 32), nn.Linear(WIDTH, 32)

    def memory(self, frames: Tensor) -> Tensor:
        x = self.near(frames.transpose(1, 2)).transpose(1, 2)
        return self.layers(x + self.places[: x.size(1)])


class Layers(nn.Module):
    """Two pre-norm layers and a last norm."""

    def __init__(self, **odd: bool) -> None:
        super().__init__()
        qk_norm, sandwich = odd.get("qk_norm", False), odd.get("sandwich", False)
        parts: list[Callable[[], nn.Module]] = [
            lambda: Attention(WIDTH, 3, qk_norm), lambda: FeedForward(WIDTH, 40),
        ] * 2  # fmt: skip
        self.parts = nn.ModuleList([Sublayer(part(), WIDTH, sandwich) for part in parts])
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return self.norm(x)


class Unmasked(nn.Module):
    """torch's layers, batch second."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 40, **settings)
        norm = nn.LayerNorm(WIDTH) if settings.get("norm_first") else None
        self.stack = nn.TransformerEncoder(layer, 2, norm, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.stack(x.transpose(0, 1)).transpose(0, 1)


class Hiding(Layers):
    """What is quiet is hidden in the layers, and not from the decoder."""

    def forward(self, x: Tensor) -> Tensor:
        keep = (x.abs().sum(-1) > 1)[:, None, None]
        for part in self.parts:
            x = part(x, keep=keep) if isinstance(part.f, Attention) else part(x)
        return self.norm(x)


class Longer(Layers):
    """The stream is scaled by the length."""

    def forward(self, x: Tensor) -> Tensor:
        length = torch.ones_like(x[0, :, 0]).sum()
        return super().forward(x) * (1 + length / 50)


KNOWN = (
    made("own", Encoded),
    made("torch", lambda: Encoded(lambda: Unmasked(norm_first=True, activation="gelu"))),
    made("post", lambda: Encoded(lambda: Unmasked(bias=False))),
)
OTHERS = (
    made("norms", lambda: Encoded(lambda: Layers(qk_norm=True))),
    made("hides", lambda: Encoded(Hiding)),
    made("longer", lambda: Encoded(Longer)),
    made("sandwich", lambda: Encoded(lambda: Layers(sandwich=True))),
    made("convolutions", lambda: Encoded(lambda: nn.Linear(WIDTH, WIDTH))),
)
WHY = {
    "norms": "keys and values of different tensors",
    "hides": "1 sublayers are no layers of self, feed_forward",
    "longer": r"mul at test_encoder.py:.* is no norm and no sublayer",
    "sandwich": "a sublayer with 2 norms",
    "convolutions": r"linear at test_encoder.py:.* is no norm and no sublayer",
}


def name_of(value: Any) -> str:
    return str(value.name)


# The second has torch's layers as the third, and their order as the first.
@pytest.mark.parametrize("style", few_of(KNOWN, KNOWN[0], KNOWN[2]), ids=name_of)
def test_layers_compute_the_same(style: Any) -> None:
    found = recognise(style)
    assert found.layers is not None
    config = found.layers.config
    wanted = {"own": ("pre", 3, 40, True), "torch": ("pre", 2, 40, True),
              "post": ("post", 2, 40, False)}  # fmt: skip
    assert (config.norm_placement, config.num_heads, config.d_ff, config.norm_bias) == wanted[
        style.name
    ]
    assert config.d_model == WIDTH
    assert found.layers.embeddings.axes == ("batch", "memory_length", WIDTH)
    assert difference(style, found) <= 5e-5


@pytest.mark.parametrize("style", few_of(OTHERS, OTHERS[1]), ids=name_of)
def test_other_encoders_keep_their_own_code(style: Any) -> None:
    call = call_of(style)
    found = artifacts.recognised_decoder(call, read_module(call, "", {}).probe)
    assert found.layers is None
    assert re.search(WHY[style.name], found.why_no_layers)
    assert difference(style, found) <= 5e-5


def test_errors_of_any_kind_are_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise KeyError("of any kind")

    monkeypatch.setattr(decoder, "recognise_encoder", fails)
    given: Any = None
    found, why = decoder._read_layers(given, given, [given], True)
    assert found is None
    assert why.startswith("its program could not be read: KeyError: 'of any kind'")


def test_layers_that_differ_are_left_to_the_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*given: Any, **options: Any) -> RecognisedDecoder:
        found = recognise_decoder(*given, **options)
        assert found.layers is not None
        config = dataclasses.replace(found.layers.config, activation="silu")
        return dataclasses.replace(found, layers=dataclasses.replace(found.layers, config=config))

    call = call_of(KNOWN[0])
    monkeypatch.setattr(artifacts, "recognise_decoder", wrong)
    found = artifacts.recognised_decoder(call, read_module(call, "", {}).probe)
    assert found.layers is None
    assert found.why_no_layers.startswith("what was recognised differs from ")


@pytest.mark.usefixtures("no_beam_graph", "few_shapes")
def test_the_bundle_has_the_layers_and_their_embeddings(tmp_path: Path) -> None:
    style, path = KNOWN[0], tmp_path / "a.bundle"
    result = bundle_of(style, path)
    manifest = result.bundle_manifest
    assert manifest is not None
    assert {"embeddings", "encoder", "decoder", "generate"} == set(manifest.graphs)
    assert manifest.embedded_encoder is not None
    assert manifest.parameters["layers.norm.weight"] == ["encoder.norm.weight"]
    # The layers' weights are stored once, for the graphs and the engine.
    stored = json.loads((path / "weights.json").read_text())
    matrices = [name for name in stored if name.startswith("encoder.") and "proj.w" in name]
    size = (path / "weights.bin").stat().st_size
    assert len(matrices) == 12
    assert max(stored[name]["offset"] for name in matrices) < size - 4 * WIDTH * 40
    inputs = draw_inputs(style.case, 3, {"source_length": 9}, 1)[0].numpy()
    rows = [{"frames": row} for row in (*inputs, inputs[0, :4])]
    found = []
    for engine in ("onnxruntime", *(["native"] if find_spec("tfexport_native") else [])):
        with Translator(path, engine=engine) as translator:  # type: ignore[arg-type]
            made = translator.generate_from(rows, max_length=8)
            found.append([list(each.hypotheses[0].tokens) for each in made])
    assert found[0] == found[-1]
    assert len(np.unique(np.concatenate(found[0]))) > 1
    # A weight that differs from the graphs' is found.
    called = arguments(style)
    name = "encoder.layers.{}.feed_forward.up_proj.weight"
    stored[name.format(0)] = stored[name.format(1)]
    (path / "weights.json").write_text(json.dumps(stored))
    rewrite(path, lambda values: values["files"].update(files_of(path)))
    failed = verify(path, style.build(), **called, level="quick")
    wrong = {each.stage for each in failed.comparisons if not each.passed}
    assert wrong - {"native", "native tokens"} == {"decoder of states"}

    def spoil(values: dict[str, Any]) -> None:
        encoder = values["module"]["decoder"]["encoder"]
        encoder["config"]["d_model"] = 5
        encoder["embeddings"]["dtype"] = "int64"
        del values["graphs"]["embeddings"]

    rewrite(path, spoil)
    with pytest.raises(BundleError) as caught:
        open_bundle(path)
    for part in ("embeddings is missing", "another type or other axes", "d_model is not the size"):
        assert part in str(caught.value)
