"""Any number of texts, and a text piece by piece."""

from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_rows import tokens
from tfexport.errors import ConfigError, InputError
from tfexport.runtime import Translator
from tfexport.runtime.model.interface import Model


@pytest.fixture(scope="module")
def translator(tiny_bundle: Path) -> Translator:
    return Translator(tiny_bundle, threads=1)


@pytest.mark.parametrize("options", [{}, {"sampling": True, "seed": 4}], ids=str)
def test_a_stream_is_the_translation_in_pieces(
    translator: Translator, options: dict[str, Any]
) -> None:
    for text in ("w5 w6 w7", "w12", "w4 w4 w9 w10 w11"):
        pieces = list(translator.stream(text, max_length=12, **options))
        assert "".join(pieces) == translator.translate([text], max_length=12, **options)[0].text
        assert all(pieces)
    assert list(translator.stream("  ")) == []
    assert len(list(translator.stream("w5 w6 w7", max_length=12))) > 3


def test_a_stream_decodes_no_further_than_it_is_read(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    kind = type(translator.engine.model)  # of the engine that is installed
    step = kind.step

    def counted(self: Model, *arguments: Any) -> Any:
        steps.append(1)
        return step(self, *arguments)

    monkeypatch.setattr(kind, "step", counted)
    stream = translator.stream("w5 w6 w7", max_length=12)
    assert not steps, "nothing is decoded before it is asked for"
    next(stream)
    read = len(steps)
    assert read <= 3
    stream.close()  # type: ignore[attr-defined]
    assert len(steps) == read
    list(translator.stream("w5 w6 w7", max_length=12))
    assert len(steps) - read == 12


def test_any_number_of_texts_in_order(translator: Translator) -> None:
    texts = [f"w{4 + i % 13} w{4 + i % 7} w{4 + i % 5}" for i in range(150)] + ["", "w5"]
    expected = translator.translate(texts, max_length=8, batch_size=4)
    found = list(translator.translate_iterable(iter(texts), max_length=8, batch_size=4))
    assert tokens(found) == tokens(expected)
    assert [result.text for result in found] == [result.text for result in expected]
    endless = translator.translate_iterable((f"w{4 + i % 13}" for i in count()), max_length=3,
                                            batch_size=2)  # fmt: skip
    assert len(list(islice(endless, 100))) == 100


def test_reading_stays_a_little_ahead(translator: Translator) -> None:
    asked = 0

    def texts() -> Iterator[str]:
        nonlocal asked
        for _ in range(10_000):
            asked += 1
            yield "w5 w6"

    results = translator.translate_iterable(texts(), max_length=2, batch_size=2)
    for _ in range(100):
        next(results)
    assert asked <= 100 + 3 * 16 * 2
    asked = 0
    results = translator.translate_iterable(
        texts(), max_length=2, batch_size=64, batch_type="tokens"
    )
    next(results)
    assert asked <= 3 * 16 * 2, "64 tokens are about two rows"


def test_a_bad_text_is_raised_when_its_turn_comes(translator: Translator) -> None:
    results = translator.translate_iterable(iter(["w5", "w6", "\ud800", "w7"]), max_length=3)
    assert len([next(results), next(results)]) == 2
    with pytest.raises(InputError, match="text 2: not valid Unicode"):
        next(results)
    with pytest.raises(InputError, match=r"text 0: expected a string, found \[5, 6\]"):
        next(translator.translate_iterable([[5, 6]]))  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="top_k needs sampling"):
        translator.translate_iterable([], top_k=3)
