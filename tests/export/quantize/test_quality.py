"""What the quality gate needs: BLEU where there are references, and sacrebleu only there."""

import sys
from pathlib import Path

import pytest

from tests.support.paths import VERSION_1
from tfexport.errors import MissingDependencyError
from tfexport.export.quantize.quality import QualityGate, read_samples
from tfexport.runtime import Translator

LINES = ["w12 w4", "w5 w6 w7"]


def gate(folder: Path, lines: list[str]) -> QualityGate:
    path = folder / "samples.tsv"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    translator = Translator(VERSION_1)
    return QualityGate(translator, read_samples(path, translator))


def test_samples_without_references_need_no_sacrebleu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    judge = gate(tmp_path, LINES)
    quality = judge.judge(VERSION_1, Translator(VERSION_1).manifest)
    assert quality.agreement == 1
    assert quality.bleu is None
    assert quality.passed


def test_samples_with_references_say_at_once_what_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(
        MissingDependencyError, match=r"need sacrebleu, .* pip install .*sacrebleu>"
    ):
        gate(tmp_path, [LINES[0], f"{LINES[1]}\tw8"])


def test_bleu_is_that_of_the_samples_with_a_reference(tmp_path: Path) -> None:
    translator = Translator(VERSION_1)
    line = "w12 w4 w4 w5 w6"
    own = translator.translate([line])[0].text
    judge = gate(tmp_path, [*LINES, f"{line}\t{own}"])
    quality = judge.judge(VERSION_1, translator.manifest)
    assert quality.bleu == pytest.approx(100)
    assert quality.bleu_loss == 0
