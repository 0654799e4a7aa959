"""Reading pictures: files, bytes and arrays to RGB images of Pillow.

A file is read as transformers reads the path of a picture: its first frame, turned as its EXIF data
say, converted to RGB by Pillow, which drops an alpha channel.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tfexport.errors import InputError, MissingDependencyError, missing_dependency, shown
from tfexport.file_access import open_file

if TYPE_CHECKING:
    from PIL.Image import Image

# Pillow has readers that start other programs, such as that of EPS; those of formats in use do not.
FORMATS = ("PNG", "JPEG", "WEBP", "TIFF", "GIF", "BMP", "PPM", "AVIF", "JPEG2000")
# Numbers of which Pillow keeps the lowest 8 bits or the largest 255, so nothing can be seen.
_WIDE = ("I", "F")


def missing_pillow() -> MissingDependencyError:
    """The error if Pillow is not installed."""
    return missing_dependency("pictures are read with Pillow, which is not installed", "vision")


def read_picture(item: Any, most: int) -> Image:
    """Read a picture.

    Args:
        item: a path; the bytes of a file; an image of Pillow; or an array (H, W) or (H, W, 3) of
            uint8, or of floats from 0 to 1.
        most: pixels beyond which it is refused before it is decoded.

    Returns:
        An image in mode RGB, of at least one pixel.

    Raises:
        InputError: it is no picture, is damaged, or is too large.
        OSError: the file cannot be opened.
        MissingDependencyError: Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError:
        raise missing_pillow() from None
    if isinstance(item, str | os.PathLike):
        with open_file(os.fspath(item)) as file:
            return _decoded(file, most)
    if isinstance(item, bytes | bytearray | memoryview):
        return _decoded(io.BytesIO(item), most)
    if isinstance(item, Image.Image):
        return _loaded(item, most, item.copy)
    if hasattr(item, "__array__"):
        return Image.fromarray(_pixels(np.asarray(item), most))
    raise InputError(f"{shown(item)} is not a path, bytes, or an array of a picture")


def _decoded(file: BinaryIO, most: int) -> Image:
    """The picture of an open file."""
    found = _identified(file)

    def load() -> Image:
        found.load()
        return found

    return _loaded(found, most, load)


def _loaded(found: Image, most: int, load: Callable[[], Image]) -> Image:
    """The pixels of an image of which the header was read."""
    _check_size(found, most)
    try:
        image = load()
        _check_size(image, most)  # some formats know it only then
        return _upright(image)
    except InputError:
        raise
    except Exception as error:  # of all kinds, by the damage
        raise _damaged(found.format, error) from None


def _damaged(name: str | None, error: Exception) -> InputError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return InputError(f"a damaged {name} file: {reason[:200].rstrip('.')}")


def _identified(file: BinaryIO) -> Image:
    """The picture that a file begins, by the formats that are read.

    ``PIL.Image.open`` does the same, but warns or raises by a limit of its own for the process.
    """
    from PIL import Image

    Image.init()
    head = file.read(16)
    for name in FORMATS:
        if name not in Image.OPEN:  # Pillow was built without its library
            continue
        opened, accept = Image.OPEN[name]
        try:
            accepted = accept is None or accept(head)
            if not accepted or isinstance(accepted, str):  # why it cannot
                continue
            file.seek(0)
            return opened(file, "")
        except (SyntaxError, IndexError, TypeError, KeyError, struct.error, EOFError):
            continue
        except Exception as error:  # of all kinds, by the damage
            raise _damaged(name, error) from None
    if not head:
        raise InputError("the file is empty, and a picture is expected")
    raise InputError(f"no picture: its content is none of {', '.join(FORMATS)}, or is damaged")


def _check_size(image: Image, most: int) -> None:
    width, height = image.size
    check_pixels(height, width, most, "it has")


def check_pixels(height: int, width: int, most: int, subject: str) -> None:
    """Refuse a picture of too many pixels, or of none.

    Args:
        height: in pixels.
        width: in pixels.
        most: height times width may be this.
        subject: of the message, with its verb.

    Raises:
        InputError: it is too large, or empty.
    """
    if height < 1 or width < 1:
        raise InputError(f"{subject} {height} × {width} pixels: there is nothing to see")
    if height * width > most:
        raise InputError(
            f"{subject} {height} × {width} pixels, which is more than {most:,}; make it smaller, "
            "or raise the limit (MediaLimits(pixels=…), or max_pixels of a server)"
        )


def _upright(image: Image) -> Image:
    """A loaded image as EXIF says that it is held, in RGB."""
    from PIL import ImageOps

    if image.mode.split(";")[0] in _WIDE:
        raise InputError(
            f"has gray values of more than 8 bits (Pillow's mode {image.mode}), which Pillow and "
            "transformers cut off at 255; save it with 8 bits"
        )
    ImageOps.exif_transpose(image, in_place=True)
    return image if image.mode == "RGB" else image.convert("RGB")


def _pixels(array: NDArray[Any], most: int) -> NDArray[np.uint8]:
    """An array as (H, W, 3) of uint8; gray values are repeated.

    Raises:
        InputError: it has another form, another type, or values out of bounds.
    """
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] != 3):
        raise InputError(f"an array of shape {array.shape} is not (height, width) or (…, …, 3)")
    check_pixels(array.shape[0], array.shape[1], most, "it has")
    if array.dtype.kind == "f":
        if not (array.min() >= 0 and array.max() <= 1):  # NaN is refused too
            raise InputError(
                f"an array of {array.dtype} from {array.min():g} to {array.max():g} is no picture: "
                "floats are from 0 to 1; pass numbers from 0 to 255 as uint8"
            )
        array = np.rint(array * array.dtype.type(255)).astype(np.uint8)
    elif array.dtype != np.uint8:
        raise InputError(f"an array of {array.dtype} is no picture: pass uint8, or floats to 1")
    if array.ndim == 2:
        array = np.repeat(array[..., None], 3, axis=2)
    return np.ascontiguousarray(array)
