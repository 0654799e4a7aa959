"""Folders of models of pictures: from files to the tokens that transformers generates."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.export.transformers_folders.families import make_model
from tests.export.transformers_folders.test_folders import exported, generate, tokens_of
from tests.support.combinations import few_of
from tfexport.errors import InputError

transformers = pytest.importorskip("transformers", reason="make optional installs it")
Image = pytest.importorskip("PIL.Image", reason="the extra vision installs it")
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

TOKENS = 9
ODD = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.2, 0.6], "rescale_factor": 1 / 254}
# Of the tiny models' own sizes.
SETTINGS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "trocr": ("ViT", {"size": {"height": 12, "width": 12}, "resample": 3, **ODD}),
    "gpt2": ("DeiT", {"size": {"height": 15, "width": 13}, "crop_size": 12, "resample": 1}),
    "donut": ("Donut", {"size": [24, 16], "do_align_long_axis": True, **ODD}),
    "nougat": ("Nougat", {"size": {"height": 16, "width": 24}}),
    "pix2struct": (
        "Pix2Struct", {"patch_size": {"height": 2, "width": 1}, "max_patches": 9},
    ),
}  # fmt: skip
# Seeds with which the tokens depend on the picture; patches of 2 x 1 pixels of 3 channels.
MODELS: Mapping[str, Any] = {
    "trocr": {"seed": 2}, "gpt2": {}, "donut": {"seed": 1}, "nougat": {},
    "pix2struct": {"patch": 6},
}  # fmt: skip


def folder_of(folder: Path, family: str, **settings: Any) -> tuple[Any, Any]:
    """A model, and the image processor of its folder."""
    model = make_model("donut" if family == "nougat" else family, **MODELS[family])
    kind, values = SETTINGS[family]
    model.save_pretrained(folder)
    values = {"image_processor_type": f"{kind}ImageProcessor", **values, **settings}
    (folder / "preprocessor_config.json").write_text(json.dumps(values))
    return model, transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")


def pictures(folder: Path) -> list[Path]:
    draw, found = np.random.default_rng(1), []
    for number, size in enumerate([(40, 70), (333, 217), (5, 9), (64, 64)]):
        noise = draw.integers(0, 256, (*size, 3), dtype=np.uint8)
        found.append(folder / f"picture-{number}.png")
        Image.fromarray(noise // (number + 1)).save(found[-1])
    return found


@pytest.mark.parametrize("family", few_of([*SETTINGS]))
def test_tokens_of_pictures_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    model, processor = folder_of(tmp_path / "model", family)
    made, translator = exported(tmp_path / "model", model)
    assert made.manifest is not None
    assert made.manifest.preprocessing is not None, made.notes
    assert any("pictures became the same" in note for note in made.notes)
    files = pictures(tmp_path)
    rows = [
        {name: array[0] for name, array in processor(str(file), return_tensors="np").items()}
        for file in files
    ]
    items: list[Any] = [files[0], files[1].read_bytes(), np.asarray(Image.open(files[2])), files[3]]
    for beams in (1, 3):
        wanted = [generate(model, row, num_beams=beams, max_length=TOKENS + 1) for row in rows]
        found = tokens_of(
            translator, [{"image": item} for item in items], beam_size=beams, max_length=TOKENS
        )
        assert found == wanted
        assert beams > 1 or len({*map(tuple, wanted)}) > 1
    with pytest.raises(InputError, match="row 1: no picture"):
        translator.generate_from([{"image": files[0]}, {"image": b"text"}])


@pytest.mark.exhaustive
def test_a_processor_that_is_not_known_is_named(tmp_path: Path) -> None:
    model, _ = folder_of(tmp_path / "model", "trocr", do_pad=True, pad_size=14)
    made, translator = exported(tmp_path / "model", model)
    assert made.manifest is not None
    assert made.manifest.preprocessing is None
    assert any("takes arrays of pixel_values, not pictures: do_pad" in note for note in made.notes)
    with pytest.raises(InputError, match="'image'"):
        translator.generate_from([{"image": pictures(tmp_path)[0]}])
