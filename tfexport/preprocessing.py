"""The preprocessing of a bundle as its manifest holds it: how a file becomes inputs of the model.

It is data: a kind, and all numbers of that kind. Readers are in ``tfexport.runtime.media``.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tfexport.errors import shown
from tfexport.json_checks import Check, integer, list_of, of_type, one_of, record

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


# Methods of resizing a picture, as Pillow counts them.
RESAMPLE = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
_SIDE = integer(1, 16_384)
_SIZE: dict[str, Check] = {"step": _TEXT, "height": _SIDE, "width": _SIDE}
_METHOD: dict[str, Check] = {"resample": one_of(*RESAMPLE)}
_CHANNELS = 3
_MOST_STEPS = 16


def _of_channels(least: float) -> Check:
    """A number from ``least`` to a million for each channel."""

    def check(name: str, value: Any) -> Iterator[str]:
        yield from list_of(number(least, 1e6))(name, value)
        if isinstance(value, list) and len(value) != _CHANNELS:
            yield f"{name}: has {len(value)} numbers, not {_CHANNELS}"

    return check


def _resize(name: str, value: Any) -> Iterator[str]:
    edges = isinstance(value, dict) and "shortest_edge" in value
    yield from (_BY_EDGES if edges else _BY_SIZE)(name, value)


_BY_SIZE = record({**_SIZE, **_METHOD})
_BY_EDGES = record({"step": _TEXT, "shortest_edge": _SIDE, **_METHOD}, {"longest_edge": _SIDE})
# Steps on an image of 8 bits come first; then those on its numbers, or patches as the only one.
ON_IMAGES: dict[str, Check] = {
    "crop_margin": record({"step": _TEXT, "threshold": integer(1, 256)}),
    "align_long_axis": record(_SIZE),
    "resize": _resize,
    "thumbnail": record({**_SIZE, **_METHOD}, {"reducing_gap": number(1, 100)}),
    "pad": record(_SIZE),
    "center_crop": record(_SIZE),
}
ON_VALUES: dict[str, Check] = {
    "rescale": record({"step": _TEXT, "factor": number(1e-6, 1e6)}),
    "normalize": record({"step": _TEXT, "mean": _of_channels(-1e6), "std": _of_channels(1e-6)}),
}
PATCHES = "patches"
_STEPS: dict[str, Check] = {
    **ON_IMAGES, **ON_VALUES,
    PATCHES: record({**_SIZE, "most": integer(1, 1 << 16), "normalize": _FLAG}),
}  # fmt: skip


def _steps(name: str, value: Any) -> Iterator[str]:
    """Problems of the steps of a picture."""
    if not isinstance(value, list) or len(value) > _MOST_STEPS:
        yield f"{name}: {shown(value)} is not a list of at most {_MOST_STEPS} steps"
        return
    kinds, problems = [], list[str]()
    for i, step in enumerate(value):
        kind = step.get("step") if isinstance(step, dict) else None
        if isinstance(kind, str) and kind in _STEPS:
            kinds.append(kind)
            problems += _STEPS[kind](f"{name}[{i}]", step)
        else:
            problems.append(f"{name}[{i}]: {shown(step)} is not one of {', '.join(_STEPS)}")
    yield from problems or _contradictions(name, value, kinds)


def _contradictions(name: str, steps: list[Any], kinds: list[str]) -> Iterator[str]:
    """Steps in another order, and sizes that are too large."""
    last = [kind for kind in kinds if kind not in ON_IMAGES]
    ordered = [[kind for kind in ON_VALUES if kind in last], [PATCHES]]
    if last not in ordered or kinds[len(kinds) - len(last) :] != last:
        yield f"{name}: {', '.join(kinds)} is not an order of steps that is supported"
    for i, step in enumerate(steps):
        area = step.get("height", 1) * step.get("width", 1) * step.get("most", 1)
        if area * _CHANNELS > MOST_VALUES:
            yield f"{name}[{i}]: gives {area} pixels, more than {MOST_VALUES // _CHANNELS}"


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
    # Steps that are done one after another, see docs/bundle.md.
    "picture": record({"kind": _TEXT, "input": _TEXT, "steps": _steps}),
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
