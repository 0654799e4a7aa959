"""The preprocessing of a bundle as its manifest holds it: how a file becomes inputs of the model.

It is data: a kind, and all numbers of that kind. Readers are in ``tfexport.runtime.media``.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tfexport.errors import shown
from tfexport.json_checks import Check, integer, of_type, record

AUDIO, IMAGE = "audio", "image"  # keys of a row of ``Translator.generate_from``
# Kind to the key of its rows.
MEDIA = {"log_mel": AUDIO, "waveform": AUDIO, "filter_banks": AUDIO, "picture": IMAGE}

_TEXT, _FLAG = of_type("text", str), of_type("true or false", bool)
_RATE = integer(1_000, 384_000)  # samples of a second
_BINS = integer(1, 512)
MOST_VALUES = 1 << 27  # of one row of features


def number(least: float, most: float) -> Check:
    """A finite number from ``least`` to ``most``."""
    is_number = of_type("a number", int, float)

    def check(name: str, value: Any) -> Iterator[str]:
        problems = [*is_number(name, value)]
        if not problems and not least <= value <= most:
            problems.append(f"{name}: {shown(value)} is not from {least} to {most}")
        yield from problems

    return check


# ``input``: of the model, which gets the result. Every kind has it.
_CHECKS: dict[str, Check] = {
    # Whisper's: a window of ``num_samples`` samples, the rest of which is ``padding_value``.
    "log_mel": record({
        "kind": _TEXT, "input": _TEXT, "sampling_rate": _RATE, "feature_size": _BINS,
        "n_fft": integer(4, 8192), "hop_length": integer(1, 8192),
        "num_samples": integer(1, MOST_VALUES), "padding_value": number(-1e6, 1e6),
        "do_normalize": _FLAG,
    }),
    # The samples themselves.
    "waveform": record({
        "kind": _TEXT, "input": _TEXT, "sampling_rate": _RATE, "do_normalize": _FLAG,
    }),
    # Kaldi's, of frames of 25 ms every 10 ms.
    "filter_banks": record({
        "kind": _TEXT, "input": _TEXT, "sampling_rate": _RATE, "num_mel_bins": _BINS,
        "normalize_means": _FLAG, "normalize_vars": _FLAG,
    }),
}  # fmt: skip


def check_preprocessing(name: str, value: Any) -> Iterator[str]:
    """Every problem of the preprocessing of a manifest."""
    if not isinstance(value, Mapping):
        yield f"{name}: {shown(value)} is not an object"
        return
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in _CHECKS:
        yield f"{name}.kind: {shown(kind)} is not one of {', '.join(_CHECKS)}"
        return
    problems = [*_CHECKS[kind](name, value)]
    yield from problems
    if not problems and kind == "log_mel":
        yield from _too_large(name, value)


def _too_large(name: str, value: Mapping[str, Any]) -> Iterator[str]:
    frames = value["num_samples"] // value["hop_length"]
    if not 0 < frames * value["feature_size"] <= MOST_VALUES:
        size = f"{frames} frames of {value['feature_size']} values"
        yield f"{name}: has {size}; from 1 to {MOST_VALUES} values are supported"
    if value["num_samples"] <= value["n_fft"] // 2:
        yield f"{name}.num_samples: is not more than half of n_fft"
