"""Features of sound beside those of transformers' feature extractors."""

import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tfexport.errors import InputError
from tfexport.runtime.media.limits import MediaLimits
from tfexport.runtime.media.preprocessor import Preprocessor, open_preprocessor
from tfexport.runtime.media.sound_features import LogMel

transformers = pytest.importorskip("transformers", reason="make optional installs it")
pytestmark = [pytest.mark.peers, pytest.mark.no_model]

# Of its float32 Fourier transform, in values of the order of 1; ours is computed in float64.
NEAR = 2e-4


def sounds(rate: int, longest: int) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Odd lengths of every kind of sound."""
    draw = np.random.default_rng(rate)
    for length in (1, 2, 401, rate // 3 + 1, longest - 1, longest):
        time = np.arange(length) / rate
        noise = draw.standard_normal(length)
        yield f"noise {length}", (0.1 * noise).astype(np.float32)
        yield f"sine {length}", (0.5 * np.sin(2 * np.pi * 441.3 * time)).astype(np.float32)
        yield f"silence {length}", np.zeros(length, np.float32)
        loud = 3 * np.sin(2 * np.pi * 200 * time) + 0.1 * noise
        yield f"clipped {length}", np.clip(loud, -1, 1).astype(np.float32)


def opened(**part: Any) -> Preprocessor:
    found = open_preprocessor(part, MediaLimits())
    assert found is not None
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {"chunk_length": 2},
        {"feature_size": 128, "chunk_length": 3, "padding_value": 0.25},
        {"sampling_rate": 22050, "hop_length": 211, "n_fft": 513, "chunk_length": 1},
    ],
    ids=["usual", "128 filters", "odd"],
)
@pytest.mark.parametrize("normalize", [False, True])
def test_log_mel_is_that_of_whisper(settings: dict[str, Any], normalize: bool) -> None:
    judge = transformers.WhisperFeatureExtractor(**settings)
    ours = opened(
        kind="log_mel", input="input_features", sampling_rate=judge.sampling_rate,
        feature_size=judge.feature_size, n_fft=judge.n_fft, hop_length=judge.hop_length,
        num_samples=judge.n_samples, padding_value=judge.padding_value, do_normalize=normalize,
    )  # fmt: skip
    for name, sound in sounds(judge.sampling_rate, judge.n_samples):
        wanted = judge(
            sound, sampling_rate=judge.sampling_rate, do_normalize=normalize, return_tensors="np"
        ).input_features[0]
        found = ours.inputs((sound, judge.sampling_rate))["input_features"]
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, wanted, atol=NEAR, rtol=0, err_msg=name)
    padded = np.full(judge.n_samples, judge.padding_value, np.float32)
    padded[: len(sound)] = sound
    exact = judge._np_extract_fbank_features([padded], "cpu")[0]
    if not normalize:  # in float64 both: the formulas are the same
        np.testing.assert_allclose(found, exact, atol=1e-6, rtol=0)


@pytest.mark.parametrize("normalize", [False, True])
def test_waveform_is_that_of_wav2vec2(normalize: bool) -> None:
    judge = transformers.Wav2Vec2FeatureExtractor(do_normalize=normalize)
    ours = opened(
        kind="waveform", input="input_values", sampling_rate=16000, do_normalize=normalize
    )
    for name, sound in sounds(16000, 30001):
        wanted = judge(sound, sampling_rate=16000, return_tensors="np").input_values[0]
        found = ours.inputs((sound, 16000))["input_values"]
        np.testing.assert_array_equal(found, wanted, err_msg=name)


@pytest.mark.parametrize(
    ("bins", "means", "variances"), [(80, True, True), (40, True, False), (23, False, False)]
)
def test_filter_banks_are_those_of_speech_to_text(bins: int, means: bool, variances: bool) -> None:
    judge = transformers.Speech2TextFeatureExtractor(
        num_mel_bins=bins, feature_size=bins, normalize_means=means, normalize_vars=variances
    )
    ours = opened(
        kind="filter_banks", input="input_features", sampling_rate=16000, num_mel_bins=bins,
        normalize_means=means, normalize_vars=variances,
    )  # fmt: skip
    compared = 0
    for name, sound in sounds(16000, 30001):
        if len(sound) < 400:
            with pytest.raises(InputError, match=r"shorter than the 0.025 s of one frame"):
                ours.inputs((sound, 16000))
            continue
        with np.errstate(all="ignore"):
            wanted = judge(sound, sampling_rate=16000, return_tensors="np").input_features[0]
        if not np.isfinite(wanted).all():  # it divides by a deviation of 0
            with pytest.raises(InputError, match="does not vary"):
                ours.inputs((sound, 16000))
            continue
        found = ours.inputs((sound, 16000))["input_features"]
        # What is the same in nearly every frame has its rounding divided by a small deviation.
        plain = judge._extract_fbank_features(sound)
        allowed = np.full(plain.shape[1], 2e-5)
        if variances:
            allowed /= np.minimum(plain.std(axis=0), 1)
        assert (np.abs(found - wanted) <= allowed).all(), name
        compared += 1
    assert compared >= 9


def test_a_spectrogram_needs_no_copy_of_the_samples() -> None:
    long = np.zeros(60 * 16_000, np.float32)
    ours = LogMel("input_features", 16_000, 8, 64, 160, 480_000, 0.0, do_normalize=False)
    tracemalloc.start()
    try:
        found = ours.features(long)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < found.nbytes + long.nbytes / 2
