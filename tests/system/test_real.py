"""`make real`: what it counts. The packages themselves are fetched by the command alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.real import __main__ as real
from benchmarks.real import packages
from benchmarks.real.packages import NotFetchedError, fetch
from benchmarks.real.published import BEAM, Published, Way
from tests.support.paths import VERSION_1
from tfexport.export.quantization.word_errors import edit_rows
from tfexport.runtime import Translator

ROWS = {"a": [4, 4, 5, 2], "b": [7, 8, 2], "c": [9, 2]}
LIMIT = 6


def own_tokens(text: str) -> list[int]:
    with Translator(VERSION_1) as translator:
        return translator.generate([ROWS[text]], max_length=LIMIT)[0].hypotheses[0].tokens


def published(own: Any, gap: float) -> Published:
    def logits(text: str, tokens: list[int]) -> Tensor:
        return torch.tensor([0.0, 1.0, 1.0 + gap])

    return Published(
        "tiny", "annalog==1.0.6", (Way("a way", (), (own_tokens,)),),
        ROWS.__getitem__, own, lambda text: LIMIT, logits,
    )  # fmt: skip


def test_texts_are_equal_near_ties_or_different() -> None:
    def other(text: str) -> list[int]:
        return [*own_tokens(text)[:-1], 3] if text == "b" else own_tokens(text)

    texts = list(ROWS)
    for own, gap, expected in (
        (own_tokens, 1.0, (3, 0)),
        (other, 1e-5, (2, 1)),
        (other, 1.0, (2, 0)),
    ):
        decoded = real.compare(published(own, gap), VERSION_1, texts)
        assert (decoded.equal, decoded.near) == expected
        assert decoded.tokens[0] == decoded.tokens[1] > 0


def test_texts_are_compared_by_beam_search_too() -> None:
    def own_beam(text: str) -> list[int]:
        with Translator(VERSION_1) as translator:
            found = translator.generate([ROWS[text]], max_length=LIMIT, beam_size=BEAM)
        tokens = found[0].hypotheses[0].tokens
        return [*tokens[:-1], 3] if text == "b" else tokens

    with_beam = replace(published(own_tokens, 1.0), own_beam=own_beam)
    decoded = real.compare(with_beam, VERSION_1, list(ROWS))
    assert (decoded.equal, decoded.of_beam) == (3, 2)


@pytest.mark.parametrize(
    ("found", "errors"), [("a b c d", 0), ("a c d", 1), ("a b x c d", 1), ("b c y", 2), ("", 4)]
)
def test_word_errors_are_insertions_deletions_and_replacements(found: str, errors: int) -> None:
    assert edit_rows(["a", "b", "c", "d"], found.split())[-1] == errors


def test_a_refusal_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = rows_of(monkeypatch, "full prefix: differs by 0.00029 | allowed 0.0001")
    assert row[:3] == ("annalog 1.0.6", "a way", "3")
    assert row[3] == "refused: full prefix: differs by 0.00029 / allowed 0.0001"
    assert len(row) == len(real.HEADINGS)


def rows_of(monkeypatch: pytest.MonkeyPatch, said: str) -> list[tuple[str, ...]]:
    class Module:
        @staticmethod
        def published() -> Published:
            return published(own_tokens, 1.0)

    monkeypatch.setattr("importlib.import_module", lambda name: Module)
    monkeypatch.setattr(real, "export", lambda name, way, output: (said, 1.0))
    return list(real.rows("annalog"))


def test_a_package_that_is_not_to_be_had_is_a_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(packages, "FOLDER", tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(NotFetchedError, match=r"g2p-fa==1\.1\.0: .*No matching distribution"):
        fetch("g2p-fa==1.1.0")
    (row,) = real.rows("g2p_fa")
    assert row[1].startswith("not to be had: g2p-fa==1.1.0")


def test_every_model_has_fifty_texts() -> None:
    assert {path.stem for path in real.TEXTS.iterdir()} == set(real.MODELS)
    for name in real.MODELS:
        texts = (real.TEXTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        assert len(set(texts)) == 50, name
