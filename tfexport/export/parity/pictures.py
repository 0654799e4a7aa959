"""Comparison of a manifest's picture steps with the image processor of transformers."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfexport.errors import InputError, ParityError
from tfexport.export.quiet import quiet
from tfexport.export.report import LEAST_ALLOWED
from tfexport.graph_io import TensorSpec
from tfexport.module_rows import read_row
from tfexport.runtime.media.limits import MediaLimits
from tfexport.runtime.media.pictures import Picture

_FILE = "picture"
_MOST_PIXELS = 1 << 25  # of a picture while it is resized; transformers needs 40 bytes for each
_LEAST_COMPARED = 5


def compare_pictures(
    part: Mapping[str, Any], processor: Any, inputs: Sequence[TensorSpec]
) -> tuple[int, float]:
    """Compare the inputs that steps make of drawn pictures with those of the original.

    The pictures are files of odd sizes and all usual modes, and one array. One that steps refuse,
    such as 1 × 500 for a model whose shorter side is 1920, is left out.

    Args:
        part: the preprocessing for the manifest.
        processor: the image processor.
        inputs: of the model.

    Returns:
        The number of pictures, and the largest difference, relative to max(1, |original|).

    Raises:
        ParityError: they differ, or do not fit the model.
    """
    steps, count, largest = Picture.of(part, MediaLimits(pixels=_MOST_PIXELS)), 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        for name, item in _drawn(Path(folder)):
            try:
                made = steps.inputs(item)
            except InputError:
                continue
            _, problems = read_row(inputs, made)
            if problems:
                raise ParityError(f"a picture of {name} does not fit the model: {problems[0]}")
            largest = max(largest, _difference(name, made, _original(processor, item, name)))
            count += 1
    if count < _LEAST_COMPARED:
        raise ParityError(f"only {count} pictures could be compared")
    return count, largest


def _original(processor: Any, item: Any, name: str) -> Mapping[str, Any]:
    try:
        with quiet():
            found: Mapping[str, Any] = processor(
                item if isinstance(item, np.ndarray) else str(item), return_tensors="np"
            )
    except Exception as error:
        text = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise ParityError(f"a picture of {name}: transformers fails: {text}") from error
    return found


def _difference(name: str, made: Mapping[str, Any], wanted: Mapping[str, Any]) -> float:
    largest = 0.0
    for key, ours in made.items():
        if key not in wanted:
            raise ParityError(f"a picture of {name}: transformers gives no {key}")
        theirs = np.asarray(wanted[key][0], np.float64)
        if theirs.shape != ours.shape:
            raise ParityError(
                f"a picture of {name}: {key} has shape {ours.shape}, and {theirs.shape} in "
                "transformers"
            )
        found = float((np.abs(ours - theirs) / np.maximum(1, np.abs(theirs))).max())
        if not found <= LEAST_ALLOWED:  # NaN is not
            raise ParityError(
                f"a picture of {name}: {key} differs from transformers' by {found:.1e}, and "
                f"{LEAST_ALLOWED:.0e} is allowed"
            )
        largest = max(largest, found)
    return largest


def _drawn(folder: Path) -> Iterator[tuple[str, Any]]:
    """Names of pictures, and their files or arrays."""
    from PIL import Image

    draw = np.random.default_rng(7)

    def pixels(height: int, width: int, channels: int = 3) -> NDArray[np.uint8]:
        """Noise on the upper half, a slope on the lower: edges, and smooth parts."""
        found = draw.integers(0, 256, (height, width, channels), dtype=np.uint8)
        slope = np.linspace(20, 250, width).astype(np.uint8)
        found[height // 2 :, :, :3] = slope[:, None] if height > 1 else found[height // 2 :, :, :3]
        return found

    def saved(image: Any, kind: str, **options: Any) -> Path:
        path = folder / f"{_FILE}.{kind}"
        image.save(path, **options)
        return path

    turned = Image.Exif()
    turned[0x0112] = 6  # by a quarter
    gray, page = pixels(40, 71, 1)[..., 0], np.full((300, 211, 3), 255, np.uint8)
    page[40:200, 30:170] = pixels(160, 140) // 2
    for height, width in ((1, 1), (1, 500), (333, 217), (64, 64)):
        image = Image.fromarray(pixels(height, width))
        yield f"{height} × {width}", saved(image, "png")
    yield "gray values", saved(Image.fromarray(gray), "png")
    yield "a palette", saved(Image.fromarray(pixels(50, 31)).quantize(17), "gif")
    yield "RGBA", saved(Image.fromarray(pixels(50, 31, 4)), "png")
    yield "JPEG turned by EXIF", saved(Image.fromarray(pixels(64, 90)), "jpg", exif=turned)
    yield "CMYK", saved(Image.fromarray(pixels(48, 70)).convert("CMYK"), "jpg")
    yield "one bit", saved(Image.fromarray(gray).convert("1"), "png")
    yield "a white margin", saved(Image.fromarray(page), "png")
    yield "an array", pixels(83, 59)
