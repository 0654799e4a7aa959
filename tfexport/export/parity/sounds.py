"""Comparison of a manifest's preprocessing of sound with the feature extractor of transformers."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfexport.errors import InputError, MissingDependencyError, ParityError
from tfexport.export.quiet import quiet
from tfexport.export.report import LEAST_ALLOWED, allow
from tfexport.graph_io import TensorSpec
from tfexport.module_rows import read_row
from tfexport.runtime.media.limits import MediaLimits
from tfexport.runtime.media.preprocessor import Preprocessor, open_preprocessor
from tfexport.runtime.media.sound_features import LogMel
from tfexport.runtime.media.sound_files import Samples, read_sound

_LONGEST = 31.0  # seconds
_RATES = (7_350, 8_000, 22_050, 44_100, 48_000)


@dataclass(frozen=True)
class SoundComparison:
    """The result of a comparison.

    Attributes:
        count: of sounds.
        largest: difference, relative to max(1, |original|).
        allowed: for it.
        files: of other rates that were read and resampled; 0 where soundfile is not installed.
    """

    count: int
    largest: float
    allowed: float
    files: int


def compare_sounds(
    part: Mapping[str, Any], extractor: Any, inputs: Sequence[TensorSpec]
) -> SoundComparison:
    """Compare features of drawn sounds, of odd lengths and rates, with those of the original.

    The allowed difference is five times that which the original makes of a sound whose samples are
    one unit in the last place larger, and at least 1e-4.

    Args:
        part: the preprocessing for the manifest.
        extractor: the feature extractor of transformers.
        inputs: of the model.

    Raises:
        ParityError: they differ, or do not fit the model.
    """
    ours = open_preprocessor(part, MediaLimits(seconds=_LONGEST + 1))
    assert ours is not None
    found = _Compared(ours, extractor, inputs, part)
    for name, sound in _drawn(found.rate):
        found.compare(name, sound)
    try:
        files = _compare_files(found.rate)
    except MissingDependencyError:
        files = 0
    return SoundComparison(found.count, found.largest, found.allowed, files)


class _Compared:
    """The largest difference of the sounds so far."""

    def __init__(
        self,
        ours: Preprocessor,
        extractor: Any,
        inputs: Sequence[TensorSpec],
        part: Mapping[str, Any],
    ) -> None:
        self.rate: int = part["sampling_rate"]
        self.largest = self.allowed = 0.0
        self.count = 0
        self._ours, self._extractor, self._inputs, self._key = (
            ours,
            extractor,
            inputs,
            part["input"],
        )

    def compare(self, name: str, sound: Samples) -> None:
        """Compare one sound.

        Raises:
            ParityError: it differs.
        """
        whole = isinstance(self._ours, LogMel) and len(sound) > self._ours.num_samples
        # Beyond a window: all of the sound at once, as it is then cut into windows.
        options = {"truncation": False, "padding": "longest"} if whole else {}
        wanted = self._original(name, sound, options)
        try:
            if whole:
                assert isinstance(self._ours, LogMel)
                made: NDArray[Any] = self._ours.features(sound)
            else:
                row = self._ours.inputs((sound, self.rate))
                made = row[self._key]
                if problems := read_row(self._inputs, row)[1]:
                    raise ParityError(f"{name} does not fit the model: {problems[0]}")
        except InputError as error:
            if wanted is not None and np.isfinite(wanted).all():
                text = f"{name} is refused ({error}), and transformers takes it"
                raise ParityError(text) from None
            return
        if wanted is None or not np.isfinite(wanted).all():
            raise ParityError(f"{name}: transformers fails, or gives NaN, and the bundle does not")
        if made.shape != wanted.shape:
            raise ParityError(f"{name}: has shape {made.shape}, and {wanted.shape} in transformers")
        moved = self._original(name, np.nextafter(sound, np.float32(np.inf)), options)
        noise = 0.0 if moved is None or not np.isfinite(moved).all() else _apart(moved, wanted)
        allowed = allow(noise)
        difference = _apart(made, wanted)
        if not difference <= allowed:
            raise ParityError(
                f"{name}: differs from transformers by {difference:.1e}, and {allowed:.1e} is "
                "allowed"
            )
        self.count += 1
        self.largest = max(self.largest, difference)
        self.allowed = max(self.allowed, allowed)

    def _original(
        self, name: str, sound: Samples, options: Mapping[str, Any]
    ) -> NDArray[np.float64] | None:
        """The features that transformers computes for a sound; None if it fails."""
        try:
            with quiet(), np.errstate(all="ignore"):
                found = self._extractor(
                    sound, sampling_rate=self.rate, return_tensors="np", **options
                )
        except Exception:
            return None
        if self._key not in found:
            raise ParityError(f"{name}: transformers gives no {self._key}")
        return np.asarray(found[self._key][0], np.float64)


def _apart(ours: NDArray[Any], theirs: NDArray[np.float64]) -> float:
    """The largest difference, relative to max(1, |theirs|)."""
    return float((np.abs(ours - theirs) / np.maximum(1, np.abs(theirs))).max())


def _drawn(rate: int) -> Iterator[tuple[str, Samples]]:
    """Sounds of odd lengths, from one sample to 31 s."""
    draw = np.random.default_rng(5)
    lengths = (1, 401, rate // 3 + 1, 2 * rate + 7, int(_LONGEST * rate))
    for length in lengths:
        time, noise = np.arange(length) / rate, draw.standard_normal(length)
        tone = np.sin(2 * np.pi * 441.3 * time)
        kinds = {
            "noise": 0.1 * noise, "a tone": 0.5 * tone + 1e-2 * noise, "silence": 0 * noise,
            "a clipped sound": np.clip(3 * tone + 0.1 * noise, -1, 1),
        }  # fmt: skip
        for name, sound in kinds.items():
            if length < 3 * rate or name == "a clipped sound":  # one long sound is enough
                yield f"{name} of {length} samples", sound.astype(np.float32)


def _compare_files(rate: int) -> int:
    """Compare reading of files of other rates, mono and stereo, with ``load_audio``.

    Returns:
        The number of files; 0 if this transformers has no such function.

    Raises:
        MissingDependencyError: soundfile or soxr is not installed.
        ParityError: they differ.
    """
    read_sound((np.zeros(9, np.float32), 2 * rate), rate, 1.0)  # raises if soxr is missing
    try:
        import soundfile
        from transformers.audio_utils import load_audio  # noqa: PLC0415 - slow to import
    except ImportError:
        return 0
    draw, count = np.random.default_rng(6), 0
    with tempfile.TemporaryDirectory() as folder:
        for channels, own in enumerate(_RATES, 1):
            path = Path(folder) / f"{own}.wav"
            soundfile.write(path, 0.1 * draw.standard_normal((own // 2 + 3, channels)), own)
            try:
                wanted = load_audio(str(path), sampling_rate=rate, backend="soundfile")
            except (TypeError, ImportError):  # of another version
                return 0
            found = read_sound(path, rate, 1.0)
            if found.shape != wanted.shape or _apart(found, wanted) > LEAST_ALLOWED:
                raise ParityError(f"a file of {own} samples of a second is read otherwise")
            count += 1
    return count
