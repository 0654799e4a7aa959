"""Results depend on nothing but the row: not on batch, order, padding, threads or workers."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_rows import rows_of, scores, tokens
from tfexport.runtime import Translator

WAYS: list[dict[str, Any]] = [
    {},
    {"beam_size": 4, "num_hypotheses": 3},
    {"beam_size": 4, "beam_groups": 2, "diversity_penalty": 0.5},
    {"beam_size": 3, "coverage_penalty": 0.2, "early_stopping": False},
    {"no_repeat_ngram_size": 2, "repetition_penalty": 1.2},
    {"return_alternatives": True, "num_hypotheses": 3},
    {"return_attention": True},
]


@pytest.fixture(scope="module")
def translator(tiny_bundle: Path) -> Translator:
    return Translator(tiny_bundle, threads=1)


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_batch_order_padding_and_threads_change_nothing(
    translator: Translator, tiny_bundle: Path, options: dict[str, Any]
) -> None:
    rows = rows_of(24)
    expected = translator.generate(rows, max_length=12, **options)
    backwards = translator.generate(rows[::-1], max_length=12, batch_size=5, **options)[::-1]
    by_tokens = translator.generate(
        rows, max_length=12, batch_size=30, batch_type="tokens", **options
    )
    alone = [translator.generate([row], max_length=12, **options)[0] for row in rows]
    two = Translator(tiny_bundle, threads=2).generate(rows, max_length=12, **options)
    with Translator(tiny_bundle, threads=1, workers=3) as many:
        worked = many.generate(rows, max_length=12, batch_size=4, **options)
    for other in (backwards, by_tokens, alone, two, worked):
        assert tokens(other) == tokens(expected)
        assert scores(other) == pytest.approx(scores(expected), abs=1e-5)


def test_samples_of_a_row_do_not_depend_on_how_it_was_asked_for(translator: Translator) -> None:
    texts = [f"w{4 + i % 13} w7" for i in range(40)]
    options: dict[str, Any] = {"sampling": True, "seed": 5, "max_length": 8}
    expected = tokens(translator.translate(texts, **options))
    assert tokens(list(translator.translate_iterable(texts, batch_size=2, **options))) == expected
    assert tokens(translator.translate(texts, batch_size=7, **options)) == expected
    assert tokens(translator.translate(texts, **{**options, "seed": 6})) != expected
    unseeded: dict[str, Any] = {"sampling": True, "max_length": 8}
    assert tokens(translator.translate(texts, **unseeded)) != tokens(
        translator.translate(texts, **unseeded)
    )
