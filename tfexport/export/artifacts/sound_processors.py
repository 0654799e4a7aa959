"""The feature extractors of sound of transformers as data for a manifest."""

from typing import Any

from tfexport.errors import ConfigError

# Class of transformers to what is made of it.
KNOWN = ("WhisperFeatureExtractor", "Wav2Vec2FeatureExtractor", "Speech2TextFeatureExtractor")
_RATE_OF_KALDI = 16_000


def sound_part(extractor: Any, name: str) -> dict[str, Any]:
    """The preprocessing that a feature extractor computes.

    Args:
        extractor: of transformers.
        name: of the input of the model.

    Raises:
        ConfigError: it is not known, or has a setting that is not supported; all are listed.
    """
    kind = type(extractor).__name__
    if kind not in KNOWN:
        raise ConfigError(f"{kind} of transformers is not known; known are {', '.join(KNOWN)}")
    problems = []
    if getattr(extractor, "dither", 0.0):
        problems.append(f"dither is {extractor.dither}: it adds noise, which differs at every run")
    if extractor.padding_side != "right":
        problems.append(f"padding_side is {extractor.padding_side!r}, not 'right'")
    if extractor.model_input_names[0] != name:
        problems.append(f"it makes {extractor.model_input_names[0]}, and the model takes {name}")
    makers = dict(zip(KNOWN, (_log_mel, _waveform, _filter_banks), strict=True))
    part, others = makers[kind](extractor)
    if problems := [*problems, *others]:
        raise ConfigError(f"{kind}: {'; '.join(problems)}")
    return {"kind": part.pop("kind"), "input": name, **part}


def _log_mel(extractor: Any) -> tuple[dict[str, Any], list[str]]:
    # Its own call normalises only where the caller says so: the file has no say in it.
    return {
        "kind": "log_mel", "sampling_rate": extractor.sampling_rate,
        "feature_size": extractor.feature_size, "n_fft": extractor.n_fft,
        "hop_length": extractor.hop_length, "num_samples": extractor.n_samples,
        "padding_value": float(extractor.padding_value), "do_normalize": False,
    }, []  # fmt: skip


def _waveform(extractor: Any) -> tuple[dict[str, Any], list[str]]:
    size = extractor.feature_size
    problems = [] if size == 1 else [f"feature_size is {size}, not 1"]
    return {
        "kind": "waveform", "sampling_rate": extractor.sampling_rate,
        "do_normalize": bool(extractor.do_normalize),
    }, problems  # fmt: skip


def _filter_banks(extractor: Any) -> tuple[dict[str, Any], list[str]]:
    rate, normalize = extractor.sampling_rate, bool(extractor.do_ceptral_normalize)
    problems = []
    if rate != _RATE_OF_KALDI:
        problems.append(
            f"sampling_rate is {rate}, not {_RATE_OF_KALDI}: transformers makes frames of other "
            "lengths with torchaudio than without"
        )
    return {
        "kind": "filter_banks", "sampling_rate": rate, "num_mel_bins": extractor.num_mel_bins,
        "normalize_means": normalize and bool(extractor.normalize_means),
        "normalize_vars": normalize and bool(extractor.normalize_vars),
    }, problems  # fmt: skip
