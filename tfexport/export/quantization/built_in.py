"""Sounds and pictures by which quantised weights are measured where no samples are given."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfexport.runtime.media.picture_files import missing_pillow

SOUNDS = Path(__file__).with_name("sounds.npz")  # made by benchmarks/real/built_in_sounds.py
MU = 255  # of the mu law
_RATE = 16_000  # samples of a second
_SILENCE = _RATE // 2  # around each sound
_PAUSE = _RATE  # between two sentences of one sound
_NOISE = 0.01
_PICTURES = 8
_HEIGHT, _LINE = 64, "Invoice no. {0}: {1} parcels, {2} kg, paid on {3} May"


def built_in_sounds() -> Iterator[tuple[tuple[NDArray[np.float32], int], str]]:
    """English sentences, each as samples (N,) with their rate, and the text that is said.

    Every third sound has noise, and every fourth one a second sentence after a pause.
    """
    draw = np.random.default_rng(0)
    with np.load(SOUNDS) as file:
        said = [(text, _expanded(file[text])) for text in file.files]
    quiet = np.zeros(_SILENCE, np.float32)
    for number, (text, samples) in enumerate(said):
        parts, texts = [quiet, samples], [text]
        if number % 4 == 1:
            parts += [np.zeros(_PAUSE, np.float32), said[number - 1][1]]
            texts.append(said[number - 1][0])
        sound = np.concatenate([*parts, quiet])
        if number % 3 == 2:
            sound += draw.normal(0, _NOISE, len(sound)).astype(np.float32)
        yield (sound, _RATE), " ".join(texts)


def _expanded(levels: NDArray[np.uint8]) -> NDArray[np.float32]:
    compressed = levels.astype(np.float32) / 127.5 - 1
    samples: NDArray[np.float32] = (
        np.sign(compressed)
        * np.expm1(np.abs(compressed) * np.float32(np.log1p(MU)))
        / np.float32(MU)
    )
    return samples


def built_in_pictures() -> Iterator[tuple[Any, None]]:
    """Pictures of a printed line on a background that is not even; what they say is not compared.

    Raises:
        MissingDependencyError: Pillow is not installed.
    """
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        raise missing_pillow() from None
    draw = np.random.default_rng(0)
    for number in range(_PICTURES):
        text = _LINE.format(*draw.integers(10, 9_999, 2), *draw.integers(2, 29, 2))
        size = 20 + 2 * number
        font = ImageFont.load_default(size)
        width = int(font.getlength(text)) + 40
        shades = np.linspace(255, 255 - 12 * number, width, dtype=np.float32)
        pixels = shades + draw.normal(0, 1 + number, (_HEIGHT, width)).astype(np.float32)
        picture = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).convert("RGB")
        ImageDraw.Draw(picture).text((20, (_HEIGHT - size) / 2), text, (20, 20, 40), font)
        yield picture, None
