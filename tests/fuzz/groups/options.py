"""Every field of ``DecodingOptions`` with values of every type, on every way of decoding."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.bundles import translator_of, warm_up
from tests.fuzz.mutate import allowed, any_type
from tfexport.runtime.options import DecodingOptions

NAMES = tuple(field.name for field in fields(DecodingOptions))
_BOOLS = {f.name for f in fields(DecodingOptions) if isinstance(f.default, bool)}
_REALS = {f.name for f in fields(DecodingOptions) if isinstance(f.default, float)}
# Values that are allowed at least on their own; other options take small integers.
_GOOD: Mapping[str, Callable[[Random], Any]] = {
    "suppress_tokens": lambda rng: [rng.randrange(19) for _ in range(rng.randrange(19))],
    "suppress_sequences": lambda rng: [[rng.randrange(19)] * rng.randint(1, 3), "w5 w6"],
    "end_tokens": lambda rng: rng.choice([["w5"], [rng.randrange(19)], [2, 5], list(range(19))]),
    "callback": lambda rng: rng.choice([lambda step: None, lambda step: step.position > 1]),
    "batch_type": lambda rng: rng.choice(["rows", "tokens"]),
    "max_length": lambda rng: rng.choice([0, 1, 2, 5, 64, 100]),
    "top_p": lambda rng: rng.random(),
    "min_alternative_probability": lambda rng: rng.random(),
}
ROWS: tuple[list[int], ...] = ([4, 5, 2], [12, 8, 4, 16], [], [3, 2])


def prepare(bundle: Path) -> None:
    """Open the bundle."""
    warm_up(bundle)


def draw_options(rng: Random) -> dict[str, Any]:
    """A few options, more or less right; searches that are long are made short."""
    given: dict[str, Any] = {"max_length": rng.randrange(8)}
    given |= rng.choice([{}, {}, {"sampling": True}, {"beam_size": rng.randint(2, 5)}])
    share = rng.choice([0.1, 0.3, 0.6])
    for name in rng.sample(NAMES, rng.choice([0, 1, 2, 3, 5])):
        given[name] = any_type(rng) if rng.random() < share else _good(rng, name)
    if rng.random() < 0.02:
        given[rng.choice(["beams", "\ud800", "", "beam_size "])] = 1
    return given


def _good(rng: Random, name: str) -> Any:
    if name in _GOOD:
        return _GOOD[name](rng)
    if name in _BOOLS:
        return rng.random() < 0.7
    if name in _REALS:
        return rng.choice([rng.random() * 2, rng.choice([0.0, 0.5, 1.0, 1.5, 2.0, -1.0])])
    return rng.randrange(6)


def run(rng: Random, scratch: Path, bundle: Path) -> None:
    """Decode in one of the ways."""
    translator = translator_of(bundle)
    rows = rng.sample(ROWS, rng.randint(1, len(ROWS)))
    options = draw_options(rng)
    texts = [" ".join(f"w{i}" for i in row if i > 3) for row in rows]
    kind = rng.randrange(5)
    with allowed():
        if kind == 0:
            translator.translate(texts, **options)
        elif kind == 1:
            translator.generate(rows, **options)
        elif kind == 2:
            known = ("length_penalty", "coverage_penalty", "return_attention", "attention_layer",
                     "attention_head", "return_token_scores", "return_end_token", "batch_size",
                     "batch_type", "max_input_length", "truncate")  # fmt: skip
            options = {k: v for k, v in options.items() if k in known or rng.random() < 0.02}
            translator.score(rows, [[5, 6] for _ in rows], **options)
        elif kind == 3:
            list(translator.stream(texts[0], **options))
        else:
            prefixes = [[rng.randrange(3, 19)] * rng.randrange(3) for _ in rows]
            translator.generate(rows, target_prefix=prefixes, **options)
