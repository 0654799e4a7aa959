"""Makes the sounds by which ``tfexport quantize`` measures speech where no samples are given.

Run as ``python -m benchmarks.real.built_in_sounds``; it writes ``sounds.npz`` anew. Each sound is a
sentence said by eSpeak NG, in 8 bits of the mu law (ITU-T G.711's, unrounded), without the silence
around it.
"""

from pathlib import Path

import numpy as np

from benchmarks.real.sounds import texts_of_sounds
from benchmarks.real.speech import RATE, speaker
from tfexport.export.quantization.built_in import MU, SOUNDS

_COUNT = 16
_VOICES = ("en-us", "en", "en-gb-scotland")  # the same sounds in every process
_SPEEDS = (160, 180, 200)  # words a minute
_QUIET = 0.004  # below it there is silence
_AROUND = RATE // 20  # samples of silence that stay


def write_sounds(path: Path = SOUNDS) -> None:
    """Write the sounds, each named by its text."""
    sounds = {}
    for number, text in enumerate(texts_of_sounds()[:_COUNT]):
        voice, speed = _VOICES[number % 3], _SPEEDS[number // 3 % 3]
        samples = np.clip(speaker().say(text, voice, speed), -1, 1)
        loud = np.flatnonzero(np.abs(samples) > _QUIET)
        samples = samples[max(0, loud[0] - _AROUND) : loud[-1] + _AROUND]
        compressed = np.sign(samples) * np.log1p(MU * np.abs(samples)) / np.log1p(MU)
        sounds[text] = np.round((compressed + 1) * 127.5).astype(np.uint8)
    np.savez_compressed(path, **sounds)


if __name__ == "__main__":
    write_sounds()
