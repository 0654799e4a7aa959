"""Image processors of transformers, written as steps, beside the originals."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.combinations import few_of
from tfexport.errors import ConfigError, ParityError
from tfexport.export.artifacts.picture_processors import picture_steps
from tfexport.export.parity.pictures import compare_pictures
from tfexport.graph_io import BATCH, TensorSpec
from tfexport.preprocessing import check_preprocessing

transformers = pytest.importorskip("transformers", reason="make optional installs it")
pytest.importorskip("PIL", reason="the extra vision installs it")
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

ODD = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.2, 0.6]}
AREA, TALL, SQUARE = (
    {"height": 24, "width": 37}, {"height": 41, "width": 24}, {"height": 30, "width": 30},
)  # fmt: skip
PATCHES = {"patch_size": {"height": 4, "width": 6}, "max_patches": 31}
CASES: Mapping[str, tuple[str, Mapping[str, Any], tuple[int, ...] | None]] = {
    **{f"ViT, method {number}": ("ViT", {"size": AREA, "resample": number, **ODD}, (24, 37))
       for number in range(6)},
    "ViT without mean": ("ViT", {"size": AREA, "do_normalize": False}, (24, 37)),
    "ViT of levels": ("ViT", {"size": AREA, "do_rescale": False, **ODD}, (24, 37)),
    "ViT by its shorter side": ("ViT", {"size": {"shortest_edge": 23}, **ODD}, None),
    "ViT by both sides": ("ViT", {"size": {"shortest_edge": 23, "longest_edge": 31}}, None),
    "DeiT": ("DeiT", {"size": AREA, "crop_size": {"height": 21, "width": 44}, **ODD}, (21, 44)),
    "BEiT": ("Beit", {"size": SQUARE, "rescale_factor": 1 / 127}, (30, 30)),
    "CLIP": ("CLIP", {"size": {"shortest_edge": 30}, "crop_size": 28}, (28, 28)),
    **{f"Donut {area}": ("Donut", {"size": area, **ODD}, (*area.values(),))
       for area in (AREA, TALL, SQUARE)},
    "Donut turned": ("Donut", {"size": TALL, "do_align_long_axis": True, "resample": 0}, (41, 24)),
    "Donut as it is": ("Donut", {"size": TALL, "do_resize": False, "do_pad": True}, (41, 24)),
    "Donut, width first": ("Donut", {"size": [24, 41]}, (41, 24)),
    "Nougat": ("Nougat", {"size": TALL, **ODD}, (41, 24)),
    "Nougat turned": ("Nougat", {"size": AREA, "do_align_long_axis": True}, (24, 37)),
    "Pix2Struct": ("Pix2Struct", PATCHES, (31, 74)),
    "Pix2Struct of levels": ("Pix2Struct", {**PATCHES, "do_normalize": False}, (31, 74)),
}  # fmt: skip


def read(folder: Path, kind: str, settings: Mapping[str, Any]) -> Any:
    """The processor of a folder with these settings."""
    values = {**settings, "image_processor_type": f"{kind}ImageProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(values))
    return transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")


def inputs_of(kind: str, shape: tuple[int, ...] | None) -> list[TensorSpec]:
    if kind == "Pix2Struct":
        assert shape is not None
        axes = (BATCH, "patches")
        return [
            TensorSpec("flattened_patches", "float32", (*axes, shape[1])),
            TensorSpec("attention_mask", "int64", axes),
        ]
    return [TensorSpec("pixel_values", "float32", (BATCH, 3, *(shape or ("height", "width"))))]


@pytest.mark.parametrize("case", few_of([*CASES], "Donut turned", "Pix2Struct", "DeiT", "Nougat"))
def test_inputs_are_those_of_the_original(tmp_path: Path, case: str) -> None:
    kind, settings, shape = CASES[case]
    processor, inputs = read(tmp_path, kind, settings), inputs_of(kind, shape)
    part = {"kind": "picture", "input": inputs[0].name, "steps": picture_steps(processor)}
    assert not [*check_preprocessing("preprocessing", json.loads(json.dumps(part)))]
    count, difference = compare_pictures(part, processor, inputs)
    # 1 × 500 becomes 24 × 0 in some, and what is not resized may be too large.
    assert count >= (11 if settings.get("do_resize", True) else 5)
    # Only patches are resized as floats, in which torch's weights are rounded.
    assert difference <= (5e-5 if kind == "Pix2Struct" else 0)
    for name in ("image_mean", "resample", "max_patches", "do_align_long_axis"):
        if name in settings:  # then another setting is seen
            changed = {"image_mean": [0.5, 0.4, 0.31], "resample": 5, "max_patches": 30,
                       "do_align_long_axis": False}  # fmt: skip
            if settings[name] == changed[name]:
                continue
            other = read(tmp_path, kind, {**settings, name: changed[name]})
            with pytest.raises(ParityError, match=r"differs from|has shape"):
                compare_pictures(part, other, inputs)


REFUSED: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "another kind": ("ConvNext", {}, "ConvNextImageProcessor is not supported"),
    "padding": ("ViT", {"do_pad": True, "pad_size": AREA}, "do_pad"),
    "a question": ("Pix2Struct", {"is_vqa": True}, "is_vqa"),
    "a size of another kind": ("ViT", {"size": {"max_height": 3, "max_width": 4}}, "size"),
    "no area": ("Donut", {"size": {"shortest_edge": 40}}, "no height and width"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_known_is_refused_by_name(tmp_path: Path, case: str) -> None:
    kind, settings, text = REFUSED[case]
    with pytest.raises(ConfigError, match=text):
        picture_steps(read(tmp_path, kind, settings))


def test_a_processor_of_another_model_is_refused(tmp_path: Path) -> None:
    processor = read(tmp_path, "ViT", {"size": AREA})
    part = {"kind": "picture", "input": "pixel_values", "steps": picture_steps(processor)}
    with pytest.raises(ParityError, match="does not fit the model"):
        compare_pictures(part, processor, inputs_of("ViT", (24, 24)))
