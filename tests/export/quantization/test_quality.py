"""What the quality gate needs: BLEU where there are references, and sacrebleu only there."""

import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.support.manifests import rewrite
from tests.support.paths import VERSION_1
from tfexport.errors import ConfigError, InputError, MissingDependencyError
from tfexport.export.quantization.quality import QualityCheck, open_quality_check, read_samples
from tfexport.languages import Languages
from tfexport.runtime import Translator

LINES = ["w12 w4", "w5 w6 w7"]


def gate(folder: Path, lines: list[str]) -> QualityCheck:
    path = folder / "samples.tsv"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    translator = Translator(VERSION_1)
    return QualityCheck(translator, read_samples(path, translator))


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


@pytest.mark.parametrize(
    ("languages", "frame"),
    [
        (Languages({"de": 10, "en": 11}, "before", "first", "de"), [10]),
        (Languages({"de": 10, "en": 11}, None, "start"), []),
        (Languages({"de": 10, "en": 11}, "before", "source", "de"), [10, 11]),
    ],
)
def test_samples_are_in_the_languages_that_are_named(
    tmp_path: Path, languages: Languages, frame: list[int]
) -> None:
    folder, path = tmp_path / "told.bundle", tmp_path / "samples.tsv"
    shutil.copytree(VERSION_1, folder)
    rewrite(folder, lambda m: m.update(languages=asdict(languages)))
    translator = Translator(folder, threads=1)
    source = "de" if languages.source_place else None
    texts = translator.translate(LINES, source_language=source, target_language="en")
    path.write_text("".join(f"{a}\t{b.text}\n" for a, b in zip(LINES, texts, strict=True)))
    judge = open_quality_check(translator, path, source, "en")
    plain = Translator(VERSION_1, threads=1).encode(LINES[0])
    assert judge.samples[0].ids == [*frame, *plain]
    quality = judge.judge(folder, translator.manifest)
    assert (quality.agreement, quality.bleu_loss) == (1, 0)
    starts = {11} if languages.target_place == "start" else {translator.manifest.special_ids.bos}
    assert {judge._start} == starts
    assert judge._forced == (languages.target_place == "first")  # which is no agreement
    with pytest.raises(ConfigError, match="'fr' is not a language of the model"):
        open_quality_check(translator, path, source, "fr")
    with pytest.raises((ConfigError, InputError), match="the model needs a target"):
        open_quality_check(translator, path, source, None)
