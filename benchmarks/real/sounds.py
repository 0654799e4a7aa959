"""Thirty sounds of English speech: of several voices and speeds, with noise and silence.

They last from 1 s to 3 minutes. The same ones are made every time, but those of the voices ``+f2``
and ``+f3``, which eSpeak NG makes anew in each process: compare systems on the sounds of one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.real.speech import RATE, speaker
from tfexport.module_rows import Array

_TEXTS = Path(__file__).with_name("texts") / "whisper.txt"
_VOICES = ("en-us", "en", "en-us+f3", "en+m3", "en-us+f2", "en-gb-scotland")
_SPEEDS = (120, 150, 175, 200, 240)
_SECONDS = (
    1.0, 1.5, 2, 3, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 22, 25, 28, 29.9, 30.0, 31, 35,
    40, 50, 61, 75, 100, 180,
)  # fmt: skip


@dataclass(frozen=True)
class Sound:
    """A sound, and how it was made.

    Attributes:
        samples: (N,), at ``RATE``.
        how: in a few words.
        whole: the sentences that are said to their end.
        cut: the sentence after them, whose end is cut off; empty if there is none.
    """

    samples: Array
    how: str
    whole: tuple[str, ...]
    cut: str

    @property
    def seconds(self) -> float:
        """Its length."""
        return len(self.samples) / RATE


def texts_of_sounds() -> list[str]:
    """The sentences that are said."""
    return _TEXTS.read_text(encoding="utf-8").splitlines()


def make_sounds(count: int = len(_SECONDS)) -> Iterator[Sound]:
    """The first sounds by length."""
    return make_sounds_of(_SECONDS[:count])


def make_sounds_of(lengths: Sequence[float]) -> Iterator[Sound]:
    """Sounds of these seconds; every third one has noise, every fourth one silence."""
    texts = texts_of_sounds()
    draw, place = np.random.default_rng(0), 0
    for number, seconds in enumerate(lengths):
        voice, speed = _VOICES[number % len(_VOICES)], _SPEEDS[number % len(_SPEEDS)]
        parts = [np.zeros(RATE // 5, np.float32)]
        if number % 4 == 1:
            parts.append(np.zeros(int(RATE * min(seconds / 3, 12)), np.float32))
        said, whole = list[str](), 0
        while sum(map(len, parts)) < seconds * RATE:
            said.append(texts[place % len(texts)])
            parts.append(speaker().say(said[-1], voice, speed))
            whole += sum(map(len, parts)) <= seconds * RATE
            parts.append(np.zeros(RATE // 4, np.float32))
            place += 1
        samples = np.concatenate(parts)[: int(seconds * RATE)]
        loudness = (0.0, 0.003, 0.02)[number // 3 % 3] if number % 3 == 2 else 0.0
        if loudness:
            samples = samples + draw.normal(0, loudness, len(samples)).astype(np.float32)
        how = f"{seconds:g} s, {voice}, {speed} words a minute"
        how += f", noise {loudness}" if loudness else ""
        cut = "".join(said[whole:])
        yield Sound(samples.astype(np.float32), how, tuple(said[:whole]), cut)
