"""Pictures to inputs of a model, by Pillow and numpy: the steps that a manifest lists.

Steps before ``rescale`` work on an image of 8 bits, as the processors of transformers that use
Pillow do, so that the same pixels come out; the rest are the same operations of numpy in the same
order. A processor of transformers that uses torchvision rounds resized pixels otherwise.

Axes: H height, W width, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tfexport.errors import InputError
from tfexport.graph_io import ATTENTION_MASK
from tfexport.preprocessing import PATCHES, RESAMPLE
from tfexport.runtime.media.limits import MediaLimits
from tfexport.runtime.media.picture_files import check_pixels, read_picture

if TYPE_CHECKING:
    from PIL.Image import Image

Step = Mapping[str, Any]


@dataclass(frozen=True)
class Picture:
    """Makes inputs of a model of pictures.

    Attributes:
        name: of the input.
        steps: in their order, as the manifest holds them.
        pixels: that a picture may have, before and between the steps.
    """

    name: str
    steps: Sequence[Step]
    pixels: int

    @classmethod
    def of(cls, part: Mapping[str, Any], limits: MediaLimits) -> Picture:
        """Make it of the part of a manifest, which was checked."""
        return cls(part["input"], part["steps"], limits.pixels)

    def inputs(self, item: Any) -> Mapping[str, NDArray[Any]]:
        """The inputs of one row, without the batch axis.

        Args:
            item: see ``read_picture``.

        Raises:
            InputError: it is no picture, is damaged, or is too large.
            OSError: the file cannot be opened.
        """
        image = read_picture(item, self.pixels)
        steps = [*self.steps]
        while steps and steps[0]["step"] in _ON_IMAGES:
            step = steps.pop(0)
            image = _ON_IMAGES[step["step"]](image, step, self.pixels)
        if steps and steps[0]["step"] == PATCHES:
            patches, mask = _patches(image, steps[0])
            return {self.name: patches, ATTENTION_MASK: mask}
        values: NDArray[Any] = np.asarray(image)  # (H, W, C)
        for step in steps:
            values = _ON_VALUES[step["step"]](values, step)
        channels_first = values.astype(np.float32, copy=False).transpose(2, 0, 1)
        return {self.name: np.ascontiguousarray(channels_first)}


def _crop_margin(image: Image, step: Step, most: int) -> Image:
    """Cut off what is lighter, all around; a picture of one colour is left as it is."""
    gray = image.convert("L")
    counts = np.array(gray.histogram())
    least, largest = np.flatnonzero(counts)[[0, -1]]
    if least == largest:
        return image
    levels = (np.arange(256) - least) / (largest - least) * 255 < step["threshold"]
    dark = levels[np.asarray(gray)]
    (rows,), (columns,) = np.nonzero(dark.any(axis=1)), np.nonzero(dark.any(axis=0))
    return image.crop((columns[0], rows[0], columns[-1] + 1, rows[-1] + 1))


def _align_long_axis(image: Image, step: Step, most: int) -> Image:
    """Turn by a quarter, clockwise, if the longer side is not that of the size."""
    from PIL import Image as pillow  # noqa: N813 - optional

    (width, height), wanted = image.size, step["width"] - step["height"]
    turned = (wanted < 0 and width > height) or (wanted > 0 and width < height)
    return image.transpose(pillow.Transpose.ROTATE_270) if turned else image


def _resize(image: Image, step: Step, most: int) -> Image:
    width, height = image.size
    if "shortest_edge" in step:
        sized = _by_edges(height, width, step["shortest_edge"], step.get("longest_edge"))
    else:
        sized = step["height"], step["width"]
    return _resized(image, sized, step, most)


def _by_edges(height: int, width: int, shortest: int, longest: int | None) -> tuple[int, int]:
    """The size of a picture of the same form whose shorter side is ``shortest``."""
    if longest is None:
        length = int(shortest * max(height, width) / min(height, width))
        return (length, shortest) if width <= height else (shortest, length)
    exact: float = shortest
    if max(height, width) / min(height, width) * shortest > longest:
        exact = longest * min(height, width) / max(height, width)
        shortest = round(exact)
    if min(height, width) == shortest:
        return height, width
    if width < height:
        return int(exact * height / width), shortest
    return shortest, int(exact * width / height)


def _resized(image: Image, sized: tuple[int, int], step: Step, most: int) -> Image:
    height, width = sized
    check_pixels(height, width, most, "resized as the model takes it, it has")
    method, gap = RESAMPLE.index(step["resample"]), step.get("reducing_gap")
    return image.resize((width, height), resample=method, reducing_gap=gap)


def _thumbnail(image: Image, step: Step, most: int) -> Image:
    """Resize so that no side is longer than that of the size."""
    width, height = image.size
    to_height, to_width = min(height, step["height"]), min(width, step["width"])
    if (to_height, to_width) == (height, width):
        return image
    if height > width:
        to_width = int(width * to_height / height)
    elif width > height:
        to_height = int(height * to_width / width)
    return _resized(image, (to_height, to_width), step, most)


def _pad(image: Image, step: Step, most: int) -> Image:
    """Put it in the middle of a black picture."""
    width, height = image.size
    if width > step["width"] or height > step["height"]:
        raise InputError(
            f"resized to {height} × {width} pixels it is larger than the {step['height']} × "
            f"{step['width']} of the model"
        )
    left, top = (step["width"] - width) // 2, (step["height"] - height) // 2
    return image.crop((-left, -top, step["width"] - left, step["height"] - top))


def _center_crop(image: Image, step: Step, most: int) -> Image:
    """Its middle; what is missing is black."""
    width, height = image.size
    left, top = (width - step["width"]) // 2, (height - step["height"]) // 2
    return image.crop((left, top, left + step["width"], top + step["height"]))


_ON_IMAGES: Mapping[str, Callable[[Image, Step, int], Image]] = {
    "crop_margin": _crop_margin,
    "align_long_axis": _align_long_axis,
    "resize": _resize,
    "thumbnail": _thumbnail,
    "pad": _pad,
    "center_crop": _center_crop,
}


def _rescale(values: NDArray[Any], step: Step) -> NDArray[Any]:
    found: NDArray[np.float64] = values.astype(np.float64) * step["factor"]
    return found.astype(np.float32)


def _normalize(values: NDArray[Any], step: Step) -> NDArray[Any]:
    mean, std = np.array(step["mean"], np.float32), np.array(step["std"], np.float32)
    found: NDArray[np.float32] = (values.astype(np.float32) - mean) / std
    return found


_ON_VALUES: Mapping[str, Callable[[NDArray[Any], Step], NDArray[Any]]] = {
    "rescale": _rescale,
    "normalize": _normalize,
}


def _patches(image: Image, step: Step) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Patches of a picture, each behind the numbers of its row and column, which begin with 1.

    The picture is made as large as it can be with ``most`` patches, by Pillow's resampling of
    floats, whose weights are those of torch's with ``antialias``.

    Returns:
        (``most``, 2 + height * width * C) patches, zeros behind the last; and their mask.

    Raises:
        InputError: it would become one pixel wide.
    """
    high, wide, most = step["height"], step["width"], step["most"]
    width, height = image.size
    scale = (most * (high / height) * (wide / width)) ** 0.5
    rows = max(min(int(scale * height / high), most), 1)
    columns = max(min(int(scale * width / wide), most), 1)
    sized, (mean, std) = (columns * wide, rows * high), _statistics(image, step["normalize"])
    if sized[0] == 1 and sized[1] != height and min(height, sized[1]) > 1:
        # torch.nn.functional.interpolate with antialias (seen in 2.13) repeats the first row then.
        raise InputError(
            f"its {height} × {width} pixels become {sized[1]} × 1 by the model's patches, and "
            "transformers resizes pictures to a width of one pixel wrongly; widen it"
        )
    channels = [_channel(image.getchannel(each), sized, mean) for each in range(3)]
    values = np.stack(channels, axis=-1) / np.float32(std)  # (H, W, C)
    cut = values.reshape(rows, high, columns, wide, len(channels)).transpose(0, 2, 1, 3, 4)
    found = np.zeros((most, 2 + high * wide * len(channels)), np.float32)
    found[: rows * columns, 2:] = cut.reshape(rows * columns, -1)
    found[: rows * columns, 0] = np.repeat(np.arange(rows), columns) + 1
    found[: rows * columns, 1] = np.tile(np.arange(columns), rows) + 1
    return found, (np.arange(most) < rows * columns).astype(np.int64)


def _statistics(image: Image, normalize: bool) -> tuple[float, float]:
    """The mean of all values and their standard deviation, which is not too small."""
    if not normalize:
        return 0.0, 1.0
    counts = np.array(image.histogram(), np.float64).reshape(-1, 256).sum(axis=0)
    levels, size = np.arange(256), counts.sum()
    mean = float(counts @ levels / size)
    std = math.sqrt(counts @ (levels - mean) ** 2 / size)
    return mean, max(std, 1.0 / math.sqrt(size))


def _channel(channel: Image, sized: tuple[int, int], mean: float) -> NDArray[np.float32]:
    from PIL import Image as pillow  # noqa: N813 - optional

    floats = np.array(channel, np.float32)
    floats -= np.float32(mean)  # before it is resized, as the rest may be far smaller
    return np.asarray(pillow.fromarray(floats).resize(sized, pillow.Resampling.BILINEAR))
