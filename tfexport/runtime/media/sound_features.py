"""Features of sound, as the feature extractors of transformers compute them, by numpy.

Axes: N samples, F frames, W samples of a frame, M mel filters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfexport.errors import InputError
from tfexport.runtime.media.limits import MediaLimits
from tfexport.runtime.media.sound_files import Samples, read_sound

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
_FRAMES = 512  # computed together, in memory that does not grow with the sound


@dataclass(frozen=True)
class LogMel:
    """The log-mel spectrogram of Whisper: of windows of one length, shorter sounds are padded.

    Source: Radford et al. 2022, section 2.2; WhisperFeatureExtractor.
    """

    input: str
    sampling_rate: int
    feature_size: int
    n_fft: int
    hop_length: int
    num_samples: int
    padding_value: float
    do_normalize: bool

    @classmethod
    def of(cls, part: Mapping[str, Any], limits: MediaLimits) -> LogMel:
        """See ``Preprocessor``; its limit is the length of a window."""
        return cls(**{key: value for key, value in part.items() if key != "kind"})

    @property
    def seconds(self) -> float:
        """Of a window."""
        return self.num_samples / self.sampling_rate

    def read(self, item: Any, most_seconds: float) -> Samples:
        """The samples (N,) of a sound of any length; see ``read_sound``."""
        return read_sound(item, self.sampling_rate, most_seconds)

    def inputs(self, item: Any) -> Mapping[str, NDArray[Any]]:
        """The features (M, F) of a sound that fits into one window; see ``Preprocessor``."""
        samples = self.read(item, self.seconds)
        return {self.input: self.features(self.padded(samples))}

    def padded(self, samples: Samples) -> Samples:
        """Samples (N,) of at most one window as a whole one, normalised if the model wants it."""
        filled = np.full(self.num_samples, self.padding_value, np.float32)
        filled[: len(samples)] = self.normalized(samples)
        return filled

    def normalized(self, samples: Samples) -> Samples:
        """Samples (N,), normalised if the model wants it."""
        return _normalized(samples) if self.do_normalize else samples

    def features(self, samples: Samples) -> Floats:
        """The features (M, F) of samples of any length, F being N / ``hop_length``.

        The range below the loudest value is cut for all of them together.
        """
        half, hop = self.n_fft // 2, self.hop_length
        if len(samples) <= half:  # which is too short to be reflected
            raise InputError(f"has {len(samples)} samples; more than {half} are needed")
        count = len(samples) // hop
        found = np.empty((self.feature_size, count), np.float32)
        for at in range(0, count, _FRAMES):
            end = min(count, at + _FRAMES)
            around = _reflected(samples, at * hop - half, (end - 1) * hop - half + self.n_fft)
            power = _power(_frames(around, self.n_fft, hop, 0, end - at) * self._window)
            found[:, at:end] = np.log10(np.maximum(self._filters @ power.T, 1e-10))
        np.maximum(found, found.max() - np.float32(8), out=found)
        found += np.float32(4)
        found /= np.float32(4)
        return found

    @cached_property
    def _window(self) -> Doubles:
        return np.hanning(self.n_fft + 1)[:-1]  # periodic

    @cached_property
    def _filters(self) -> Doubles:
        """Mel filters (M, n_fft / 2 + 1) of Slaney's scale, of equal areas."""
        centres = _slaney_hertz(np.linspace(0.0, _slaney_mel(8000.0), self.feature_size + 2))
        bins = np.linspace(0.0, self.sampling_rate // 2, self.n_fft // 2 + 1)
        areas = 2.0 / (centres[2:] - centres[:-2])
        return _triangles(bins, centres) * areas[:, None]


@dataclass(frozen=True)
class Waveform:
    """The samples themselves, of Moonshine and of wav2vec 2.0's encoders.

    Source: Wav2Vec2FeatureExtractor.
    """

    input: str
    sampling_rate: int
    do_normalize: bool
    most_seconds: float

    @classmethod
    def of(cls, part: Mapping[str, Any], limits: MediaLimits) -> Waveform:
        """See ``Preprocessor``."""
        return cls(part["input"], part["sampling_rate"], part["do_normalize"], limits.seconds)

    def inputs(self, item: Any) -> Mapping[str, NDArray[Any]]:
        """The samples (N,); see ``Preprocessor``."""
        return {self.input: self.features(read_sound(item, self.sampling_rate, self.most_seconds))}

    def features(self, samples: Samples) -> Floats:
        """The samples (N,) as the model takes them."""
        return _normalized(samples) if self.do_normalize else samples


@dataclass(frozen=True)
class FilterBanks:
    """The filter banks of Kaldi, of frames of 25 ms every 10 ms, normalised over the sound.

    Source: Povey et al. 2011 (Kaldi, ``compute-fbank-feats``); Speech2TextFeatureExtractor.
    """

    input: str
    sampling_rate: int
    num_mel_bins: int
    normalize_means: bool
    normalize_vars: bool
    most_seconds: float

    @classmethod
    def of(cls, part: Mapping[str, Any], limits: MediaLimits) -> FilterBanks:
        """See ``Preprocessor``."""
        values = {key: value for key, value in part.items() if key != "kind"}
        return cls(**values, most_seconds=limits.seconds)

    def inputs(self, item: Any) -> Mapping[str, NDArray[Any]]:
        """The features (F, M); see ``Preprocessor``."""
        return {self.input: self.features(read_sound(item, self.sampling_rate, self.most_seconds))}

    def features(self, samples: Samples) -> Floats:
        """The features (F, M) of samples (N,).

        Raises:
            InputError: there is no whole frame.
        """
        size, hop = self._frame, self._hop
        if len(samples) < size:
            least = size / self.sampling_rate
            raise InputError(f"the sound is shorter than the {least:g} s of one frame")
        count = 1 + (len(samples) - size) // hop
        found = np.empty((count, self.num_mel_bins), np.float32)
        for at in range(0, count, _FRAMES):
            frames = _frames(samples, size, hop, at, min(count, at + _FRAMES)) * 32768.0
            frames -= frames.mean(axis=1, keepdims=True)
            frames[:, 1:] -= 0.97 * frames[:, :-1]
            frames[:, 0] *= 1 - 0.97
            power = _power(frames * self._window, self._length)
            values = np.maximum(power @ self._filters.T, 1.192092955078125e-07)
            found[at : at + len(frames)] = np.log(values)
        return self._normalized(found)

    def _normalized(self, features: Floats) -> Floats:
        if self.normalize_means:
            features = features - features.mean(axis=0)
        if self.normalize_vars:
            deviation = features.std(axis=0)
            if not deviation.all():  # where transformers divides by zero
                raise InputError(
                    "the sound does not vary: its features, which the model wants divided by "
                    "their deviation, are the same in every frame"
                )
            features = np.divide(features, deviation)
        return features

    @property
    def _frame(self) -> int:
        return self.sampling_rate * 25 // 1000

    @property
    def _hop(self) -> int:
        return self.sampling_rate * 10 // 1000

    @property
    def _length(self) -> int:
        """Of the Fourier transform: the next power of two."""
        return 1 << (self._frame - 1).bit_length()

    @cached_property
    def _window(self) -> Doubles:
        return np.hanning(self._frame) ** 0.85  # Povey's

    @cached_property
    def _filters(self) -> Doubles:
        """Triangular filters (M, length / 2 + 1) on Kaldi's mel scale."""
        lowest, highest = _kaldi_mel(np.array([20.0, self.sampling_rate // 2], np.float64))
        centres = np.linspace(lowest, highest, self.num_mel_bins + 2)
        bins = np.arange(self._length // 2 + 1, dtype=np.float64)
        bins *= self.sampling_rate / self._length
        return _triangles(_kaldi_mel(bins), centres)


def _normalized(samples: Samples) -> Floats:
    """Samples of mean 0 and variance 1."""
    found: Floats = (samples - samples.mean()) / np.sqrt(samples.var() + np.float32(1e-7))
    return found


def _reflected(samples: Samples, first: int, end: int) -> Samples:
    """Samples from ``first`` to ``end``, reflected where these lie beyond a sound's ends."""
    before, behind = max(0, -first), max(0, end - len(samples))
    inner = samples[max(0, first) : max(end, before + 1)]  # one more than is reflected
    return np.pad(inner, (before, behind), mode="reflect")[: end - first]


def _frames(samples: Samples, size: int, hop: int, first: int, end: int) -> Doubles:
    """Frames (F, W) from ``first`` to ``end``, as a copy."""
    windows = np.lib.stride_tricks.sliding_window_view(samples, size)
    return windows[first * hop : (end - 1) * hop + 1 : hop].astype(np.float64)


def _power(frames: Doubles, length: int | None = None) -> Doubles:
    """The power spectrum of frames."""
    spectrum = np.fft.rfft(frames, length)
    return spectrum.real**2 + spectrum.imag**2


def _triangles(bins: Doubles, centres: Doubles) -> Doubles:
    """Triangular filters (M, bins), of which each reaches from a centre to the next but one."""
    steps = np.diff(centres)
    slopes = centres[:, None] - bins
    return np.maximum(
        0.0, np.minimum(-slopes[:-2] / steps[:-1, None], slopes[2:] / steps[1:, None])
    )


_LINEAR = 1000.0  # hertz, below which Slaney's scale is linear
_STEP = 27.0 / np.log(6.4)


def _slaney_mel(hertz: float) -> float:
    if hertz < _LINEAR:
        return 3.0 * hertz / 200.0
    return float(15.0 + np.log(hertz / _LINEAR) * _STEP)


def _slaney_hertz(mels: Doubles) -> Doubles:
    above = _LINEAR * np.exp((mels - 15.0) / _STEP)
    return np.where(mels < 15.0, 200.0 * mels / 3.0, above)


def _kaldi_mel(hertz: Doubles) -> Doubles:
    return 1127.0 * np.log(1.0 + hertz / 700.0)
