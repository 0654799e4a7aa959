"""Texts, rows of ids, prefixes and vocabulary maps of every type."""

from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.bundles import translator_of, warm_up
from tests.fuzz.mutate import allowed, any_type, mutate_bytes, text
from tests.support.paths import VERSION_1
from tfexport.runtime import Translator


def prepare(bundle: Path) -> None:
    """Open the bundle."""
    warm_up(bundle)


def run(rng: Random, scratch: Path, bundle: Path) -> None:
    """Give drawn values to everything that takes text or ids."""
    translator = translator_of(rng.choice([bundle, VERSION_1]))
    kind = rng.randrange(9)
    options: dict[str, Any] = {"max_length": 3}
    if rng.random() < 0.3:
        options["truncate"] = True
    if rng.random() < 0.3:
        options["target_prefix"] = _some(rng, rng.random() < 0.5)
    with allowed():
        if kind == 0:
            translator.translate(_some(rng, as_ids=False), **options)
        elif kind == 1:
            translator.generate(_some(rng, as_ids=True), **options)
        elif kind == 2:
            translator.score(_some(rng, rng.random() < 0.5), _some(rng, rng.random() < 0.5))
        elif kind == 3:
            options.pop("target_prefix", None)
            prefix = _one(rng, rng.random() < 0.5)
            list(translator.stream(_one(rng, as_ids=False), target_prefix=prefix, **options))
        elif kind == 4:
            prefixes = options.pop("target_prefix", None)
            if prefixes is None or isinstance(prefixes, list):
                texts = [_one(rng, as_ids=False) for _ in range(3)]
                list(translator.translate_iterable(texts, target_prefix=prefixes, **options))
        elif kind == 5:
            translator.encode(_one(rng, as_ids=False))
        elif kind == 6:
            translator.decode(_one(rng, as_ids=True))
        elif kind == 7:
            Translator(VERSION_1, threads=1, vocabulary_map=_map(rng, scratch)).generate(
                [[4, 5, 2]]
            )
        else:
            _lines(rng, scratch, translator)


def _lines(rng: Random, scratch: Path, translator: Translator) -> None:
    content = mutate_bytes(rng, "w4 w5\n\nw6 ä\r\nw7\n".encode())
    (scratch / "in.txt").write_bytes(content)
    translator.translate_file(scratch / "in.txt", scratch / "out.txt", max_length=2)


def _some(rng: Random, as_ids: bool) -> Any:
    if rng.random() < 0.1:
        return any_type(rng)
    return [_one(rng, as_ids) for _ in range(rng.choice([0, 1, 2, 3]))]


def _one(rng: Random, as_ids: bool) -> Any:
    if rng.random() < 0.15:
        return any_type(rng)
    if not as_ids:
        return " ".join(text(rng) for _ in range(rng.randrange(4)))
    row: list[Any] = [rng.randrange(17) for _ in range(rng.choice([0, 1, 5, 63, 64, 65]))]
    if row and rng.random() < 0.3:
        row[rng.randrange(len(row))] = any_type(rng)
    return row


def _map(rng: Random, scratch: Path) -> Any:
    kind = rng.randrange(4)
    if kind == 0:
        return any_type(rng)
    if kind == 1:
        path = scratch / "map.txt"
        path.write_bytes(mutate_bytes(rng, b"w4\tw5 w6\n\tw7\nw5\t\n"))
        return path
    pairs: dict[Any, Any] = {}
    for _ in range(rng.randrange(4)):
        key: Any = rng.choice([rng.randint(-2, 18), text(rng), None, 10**30])
        pairs[key] = any_type(rng) if rng.random() < 0.3 else [rng.randrange(20)]
    return pairs
