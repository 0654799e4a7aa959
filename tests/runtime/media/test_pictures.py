"""Pictures: what is read, what is refused, and what the steps make of them."""

import io
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tfexport.errors import InputError
from tfexport.preprocessing import check_preprocessing
from tfexport.runtime.media.limits import MediaLimits
from tfexport.runtime.media.picture_files import read_picture
from tfexport.runtime.media.pictures import Picture

pytestmark = pytest.mark.no_model

Image = pytest.importorskip("PIL.Image", reason="the extra vision installs it")
Array = NDArray[Any]
DRAW = np.random.default_rng(0)
PIXELS = DRAW.integers(0, 256, (7, 5, 3), dtype=np.uint8)


def read(item: Any, *steps: Mapping[str, Any], most: int = 10_000) -> Array:
    """The pixels of a picture, (H, W, C), after steps."""
    part = {"kind": "picture", "input": "pixel_values", "steps": [*steps]}
    assert not [*check_preprocessing("preprocessing", part)]
    made = Picture.of(part, MediaLimits(pixels=most)).inputs(item)
    return made["pixel_values"].transpose(1, 2, 0)


def as_file(array: Array, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, kind, **options)
    return file.getvalue()


def test_path_bytes_image_and_array_are_the_same_picture(tmp_path: Path) -> None:
    path = tmp_path / "picture.jpg"  # the content says what it is, not the name
    path.write_bytes(as_file(PIXELS))
    items = [path, str(path), path.read_bytes(), bytearray(path.read_bytes()), PIXELS,
             Image.open(path), PIXELS / np.float32(255), PIXELS / 255]  # fmt: skip
    for item in items:
        np.testing.assert_array_equal(read(item), PIXELS)
    gray = PIXELS[..., 0]
    for item in (gray, as_file(gray), gray / 255):
        np.testing.assert_array_equal(read(item), np.repeat(gray[..., None], 3, 2))
    assert read(PIXELS[:1, :1]).shape == (1, 1, 3)


def test_first_frame_upright_without_alpha() -> None:
    alpha = np.concatenate([PIXELS, DRAW.integers(0, 256, (7, 5, 1), dtype=np.uint8)], axis=2)
    np.testing.assert_array_equal(read(as_file(alpha)), PIXELS)
    frames = [Image.fromarray(np.full((4, 6, 3), level, np.uint8)) for level in (0, 255)]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    assert not read(file.getvalue()).any()
    turned = Image.Exif()
    turned[0x0112] = 6  # what is above was on the left
    np.testing.assert_array_equal(read(as_file(PIXELS, exif=turned)), np.rot90(PIXELS, 3))


def header(width: int, height: int) -> bytes:
    """A PNG that says its size, and has almost no content."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(
            ">I", zlib.crc32(name + data)
        )  # fmt: skip

    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(b"\0" * 100))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + pixels + chunk(b"IEND", b"")


WIDE = (np.arange(12, dtype=np.uint16) * 5000).reshape(3, 4)
REFUSED: Mapping[str, tuple[Any, str]] = {
    "of another form": (np.zeros((3, 7, 5), np.uint8), r"shape \(3, 7, 5\)"),
    "with alpha": (np.zeros((3, 7, 4), np.uint8), r"shape \(3, 7, 4\)"),
    "of another type": (PIXELS.astype(np.int64), "of int64"),
    "not from 0 to 1": (PIXELS.astype(np.float32), "floats are from 0 to 1"),
    "NaN": (np.full((2, 2), np.nan, np.float32), "floats are from 0 to 1"),
    "empty": (np.zeros((0, 4, 3), np.uint8), "nothing to see"),
    "no picture": (3, "not a path, bytes, or an array"),
    "an empty file": (b"", "the file is empty"),
    "a text": (b"Guten Morgen!", "no picture: its content is none of PNG, JPEG"),
    "a program of PostScript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "none of"),
    "cut off": (as_file(DRAW.integers(0, 256, (60, 60, 3), dtype=np.uint8))[:4000], "damaged PNG"),
    "cut off in its header": (as_file(PIXELS)[:20], "PNG"),
    "a JPEG cut off": (
        as_file(DRAW.integers(0, 256, (60, 60, 3), dtype=np.uint8), "JPEG")[:900], "damaged JPEG",
    ),
    "of 16 bits": (as_file(WIDE), "more than 8 bits"),
    "of 20,000 by 20,000": (header(20_000, 20_000), "20000 × 20000 pixels, which is more than"),
    "a bomb": (header(2**31 - 1, 2**31 - 1), "more than 10,000"),
    "without its pixels": (header(90, 90), "damaged PNG"),
    "too large an array": (np.zeros((101, 100), np.uint8), "101 × 100 pixels"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_picture_is_refused(case: str) -> None:
    item, text = REFUSED[case]
    with pytest.raises(InputError, match=text):
        read(item)


def test_a_small_picture_that_becomes_large_is_refused() -> None:
    step = {"step": "resize", "shortest_edge": 1920, "resample": "bilinear"}
    with pytest.raises(InputError, match="1920 × 960000 pixels, which is more than"):
        read(np.zeros((1, 500, 3), np.uint8), step, most=100_000_000)


def test_steps_are_their_formulas() -> None:
    numbers = {"mean": [0.5, 0.25, 0.125], "std": [0.5, 2, 4]}
    size = {"height": 9, "width": 11}
    found = read(PIXELS, {"step": "pad", **size}, {"step": "rescale", "factor": 0.5},
                 {"step": "normalize", **numbers})  # fmt: skip
    padded = np.zeros((9, 11, 3))
    padded[1:8, 3:8] = PIXELS
    wanted = (padded * 0.5 - numbers["mean"]) / numbers["std"]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    cropped = read(PIXELS, {"step": "center_crop", "height": 3, "width": 8})
    np.testing.assert_array_equal(cropped[:, 2:7], PIXELS[2:5])
    assert not cropped[:, :2].any()
    assert not cropped[:, 7:].any()
    turned = read(PIXELS, {"step": "align_long_axis", "height": 2, "width": 3})
    np.testing.assert_array_equal(turned, np.rot90(PIXELS, 3))
    page = np.full((20, 30, 3), 250, np.uint8)
    page[4:9, 7:13] = 10
    margin = {"step": "crop_margin", "threshold": 200}
    np.testing.assert_array_equal(read(page, margin), page[4:9, 7:13])
    np.testing.assert_array_equal(read(page[:4], margin), page[:4])


def test_patches_are_numbered_by_row_and_column() -> None:
    step = {"step": "patches", "height": 2, "width": 3, "most": 7, "normalize": True}
    part = {"kind": "picture", "input": "flattened_patches", "steps": [step]}
    pixels = DRAW.integers(0, 256, (4, 9, 3), dtype=np.uint8)  # 2 x 3 patches, not resized
    made = Picture.of(part, MediaLimits()).inputs(pixels)
    wanted = (pixels - pixels.mean()) / pixels.std()
    for row in range(2):
        for column in range(3):
            patch = made["flattened_patches"][3 * row + column]
            assert patch[:2].tolist() == [row + 1, column + 1]
            cut = wanted[2 * row : 2 * row + 2, 3 * column : 3 * column + 3]
            np.testing.assert_allclose(patch[2:], cut.ravel(), atol=1e-5)
    assert not made["flattened_patches"][6].any()
    assert made["attention_mask"].tolist() == [1, 1, 1, 1, 1, 1, 0]


@pytest.mark.parametrize("size", [(900, 1), (9, 1), (1, 1), (1, 900), (40, 2), (6, 1), (6, 2)])
def test_patches_of_narrow_pictures_are_torchs_or_refused(size: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch")
    step = {"step": "patches", "height": 2, "width": 1, "most": 9, "normalize": False}
    part = {"kind": "picture", "input": "flattened_patches", "steps": [step]}
    pixels = DRAW.integers(0, 256, (*size, 3), dtype=np.uint8)
    scale = (9 * 2 / size[0] / size[1]) ** 0.5
    rows, columns = (max(min(int(scale * n), 9), 1) for n in (size[0] / 2, size[1]))

    def resized(array: Array, height: int, width: int) -> Array:
        values = torch.tensor(array.transpose(2, 0, 1)[None], dtype=torch.float32)
        how = {"mode": "bilinear", "antialias": True}
        found = torch.nn.functional.interpolate(values, (height, width), **how)
        return np.asarray(found[0]).transpose(1, 2, 0)

    picture = Picture.of(part, MediaLimits())
    if columns == 1 and size[0] > 1 and 2 * rows != size[0]:
        with pytest.raises(InputError, match=f"become {2 * rows} × 1 by the model's patches"):
            picture.inputs(pixels)
        wide = np.repeat(pixels, 2, 1)  # the same picture, twice as wide
        difference = resized(pixels, 2 * rows, 1) - resized(wide, 2 * rows, 2)[:, :1]
        assert np.abs(difference).max() > 9  # a defect of torch
        return
    made = picture.inputs(pixels)["flattened_patches"]
    cut = resized(pixels, 2 * rows, columns).reshape(rows, 2, columns, 3)
    wanted = cut.transpose(0, 2, 1, 3).reshape(rows * columns, 6)
    np.testing.assert_allclose(made[: rows * columns, 2:], wanted, atol=1e-3)


RESIZE = {"step": "resize", "height": 4, "width": 4, "resample": "bilinear"}
SIZE = {"height": 1 << 14, "width": 1 << 14}
HOSTILE: Mapping[str, tuple[Any, str]] = {
    "no list": ({}, "is not a list"),
    "too many": ([RESIZE] * 17, "at most 16 steps"),
    "no step": (["resize"], "is not one of"),
    "unknown": ([{"step": "blur"}], "is not one of crop_margin"),
    "unhashable": ([{"step": ["resize"]}], "is not one of crop_margin"),
    "another key": ([{**RESIZE, "gap": 1}], "gap: unknown key"),
    "a huge side": ([{**RESIZE, "width": 10**9}], "width"),
    "a huge size": ([{**RESIZE, **SIZE}], "pixels, more than"),
    "huge patches": ([{"step": "patches", **SIZE, "most": 1 << 16, "normalize": True}], "pixels"),
    "unknown method": ([{**RESIZE, "resample": "best"}], "best"),
    "a size of two kinds": ([{**RESIZE, "shortest_edge": 3}], "unknown key"),
    "division by zero": ([{"step": "normalize", "mean": [0] * 3, "std": [1, 0, 1]}], "std"),
    "one channel": ([{"step": "normalize", "mean": [0], "std": [1]}], "has 1 numbers, not 3"),
    "NaN": ([{"step": "rescale", "factor": float("nan")}], "factor"),
    "numbers first": ([{"step": "rescale", "factor": 1}, RESIZE], "order of steps"),
    "numbers twice": ([{"step": "rescale", "factor": 1}] * 2, "order of steps"),
    "patches of numbers": (
        [{"step": "rescale", "factor": 1},
         {"step": "patches", "height": 2, "width": 2, "most": 2, "normalize": False}],
        "order of steps",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_steps_that_no_exporter_writes_are_refused(case: str) -> None:
    steps, text = HOSTILE[case]
    part = {"kind": "picture", "input": "pixel_values", "steps": steps}
    problems = [*check_preprocessing("preprocessing", part)]
    assert problems
    assert all(problem.startswith("preprocessing.steps") for problem in problems)
    assert text in "\n".join(problems)


def test_a_reader_that_raises_another_error_refuses_the_picture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some readers of Pillow do so for damaged files; one such file ended a corpus."""
    from PIL import Image

    Image.init()
    accept = Image.OPEN["PNG"][1]

    def opened(*_: object) -> None:
        raise RuntimeError("of a library")

    monkeypatch.setitem(Image.OPEN, "PNG", (opened, accept))
    with pytest.raises(InputError, match="damaged PNG file: of a library"):
        read_picture(as_file(np.zeros((4, 4, 3), np.uint8)), 100)
