"""What the quality gate needs: BLEU where there are references, and sacrebleu only there."""

import io
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Once
from tests.support.manifests import rewrite
from tests.support.paths import VERSION_1
from tests.support.picture_bundle import make_picture_bundle
from tests.support.spoken_bundle import RATE, SpokenTable, use_table, write_spoken_bundle
from tests.support.table_model import TableModel, TableState
from tfexport.errors import ConfigError, InputError, MissingDependencyError
from tfexport.export.quantization import samples as samples_module
from tfexport.export.quantization.built_in import built_in_sounds
from tfexport.export.quantization.quality import (
    MOST_WORD_LOSS,
    QualityCheck,
)
from tfexport.export.quantization.quality import open_quality_check as open_any_check
from tfexport.export.quantization.samples import built_in_samples, read_samples
from tfexport.export.quantization.word_errors import word_error_rate, words_of
from tfexport.languages import Languages
from tfexport.runtime import Translator
from tfexport.runtime.text.codec import NO_LANGUAGES, LanguagePair

LINES = ["w12 w4", "w5 w6 w7"]


def open_quality_check(
    translator: Translator, path: Path | None, language_pair: LanguagePair = NO_LANGUAGES
) -> QualityCheck:
    check = open_any_check(translator, path, language_pair)
    assert check is not None
    return check


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
    judge = open_quality_check(translator, path, LanguagePair(source, "en"))
    plain = Translator(VERSION_1, threads=1).encode(LINES[0])
    assert judge.samples[0].ids == [*frame, *plain]
    quality = judge.judge(folder, translator.manifest)
    assert (quality.agreement, quality.bleu_loss) == (1, 0)
    starts = {11} if languages.target_place == "start" else {translator.manifest.special_ids.bos}
    assert {judge._start} == starts
    assert judge._forced == (languages.target_place == "first")  # which is no agreement
    with pytest.raises(ConfigError, match="'fr' is not a language of the model"):
        open_quality_check(translator, path, LanguagePair(source, "fr"))
    with pytest.raises((ConfigError, InputError), match="the model needs a target"):
        open_quality_check(translator, path, LanguagePair(source, None))


def png(seed: int) -> bytes:
    image = pytest.importorskip("PIL.Image", reason="the extra vision installs it")
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (9, 5 + seed, 3), dtype=np.uint8)
    image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def test_samples_of_a_bundle_that_reads_pictures_are_files(tmp_path: Path, once: Once) -> None:
    bundle = once("pictures", make_picture_bundle) / "pictures.bundle"
    translator, files = Translator(bundle, threads=1), [tmp_path / f"{i}.png" for i in range(6)]
    for seed, file in enumerate(files):
        file.write_bytes(png(seed))
    made = translator.generate_from([{"image": str(file)} for file in files])
    lines = [f"{file}\t{one.text}" for file, one in zip(files, made, strict=True)]
    path = tmp_path / "samples.tsv"

    def check(*given: str) -> QualityCheck:
        path.write_text("\n".join(given))
        return open_quality_check(translator, path)

    judge = check(*lines[:4], "", *map(str, files[4:]))
    quality = judge.judge(bundle, translator.manifest)
    assert (quality.samples, quality.agreement, quality.word_loss) == (6, 1, 0)
    assert quality.tokens > 30
    other = tmp_path / "other.bundle"  # one that reads pictures otherwise
    shutil.copytree(bundle, other)
    rewrite(other, lambda manifest: manifest["preprocessing"]["steps"][2].update(mean=[0.1] * 3))
    changed = judge.judge(other, translator.manifest)
    assert (changed.word_loss or 0) > MOST_WORD_LOSS
    assert not replace(changed, agreement=1).passed
    assert "points)" in str(changed)
    (tmp_path / "text.png").write_text("no picture")
    for line, problem in (
        (tmp_path / "none.png", "No such file"),
        (tmp_path / "text.png", "no picture"),
    ):
        with pytest.raises(InputError, match=rf"samples.tsv:2: .*{problem}"):
            check(lines[0], str(line))
    with pytest.raises(InputError, match=r"samples.tsv:257: more than 256 files"):
        check(*[str(files[0])] * 257)


def encode(self: SpokenTable, rows: Sequence[Any]) -> TableState:
    """What the table makes of sounds, and of what it made of them before."""
    made = [row if isinstance(row, list) else self.encoded([row])[0] for row in rows]
    return TableModel.encode(self, made)


def test_samples_of_a_whisper_model_are_transcribed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soundfile = pytest.importorskip("soundfile", reason="the extra audio installs it")
    use_table(monkeypatch)
    quality_module = "tfexport.export.quantization.quality"
    monkeypatch.setattr(f"{quality_module}.open_model", lambda *_: SpokenTable())
    monkeypatch.setattr(SpokenTable, "encode", encode)
    translator = Translator(write_spoken_bundle(tmp_path / "spoken.bundle"), threads=1)
    files = [str(tmp_path / f"{seed}.wav") for seed in range(3)]
    for seed, file in enumerate(files):
        samples = np.random.default_rng(seed).normal(0, 0.1, int(RATE * 0.2))
        soundfile.write(file, samples, RATE)
    texts = [found.text.strip() for found in translator.transcribe(files)]
    path = tmp_path / "samples.tsv"
    path.write_text("".join(f"{file}\t{text}\n" for file, text in zip(files, texts, strict=True)))
    quality = open_quality_check(translator, path).judge(translator.path, translator.manifest)
    assert (quality.samples, quality.agreement, quality.word_loss) == (3, 1, 0)
    assert quality.word_errors == 0
    lines = [f"{file}\t{text} and more\n" for file, text in zip(files, texts, strict=True)]
    path.write_text("".join(lines))
    quality = open_quality_check(translator, path).judge(translator.path, translator.manifest)
    words = sum(len(words_of(text)) + 2 for text in texts)
    assert (quality.word_loss, quality.word_errors) == (0, 6 / words)


def test_a_bundle_that_reads_sound_has_samples_built_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_table(monkeypatch)
    quality_module = "tfexport.export.quantization.quality"
    monkeypatch.setattr(f"{quality_module}.open_model", lambda *_: SpokenTable())
    monkeypatch.setattr(SpokenTable, "encode", encode)
    translator = Translator(write_spoken_bundle(tmp_path / "spoken.bundle"), threads=1)
    assert not built_in_samples(translator)  # of 3 s and more: the model's window has 0.24
    sounds = [(sound, text) for (sound, _), text in built_in_sounds()]
    shorter = [((sound[RATE : RATE + 3_000], RATE), text) for sound, text in sounds]
    monkeypatch.setitem(samples_module._BUILT_IN, "audio", lambda: shorter)
    samples = built_in_samples(translator)
    assert len(samples) == 16
    assert all(sample.reference and sample.inputs for sample in samples)
    assert len({sample.inputs["input_features"].tobytes() for sample in samples}) == 16  # type: ignore[index]
    quality = open_quality_check(translator, None).judge(translator.path, translator.manifest)
    # The table does not know what is said: its words are not counted.
    assert (quality.samples, quality.agreement, quality.word_loss) == (16, 1, None)
    assert quality.passed
    assert quality.built_in
    assert str(quality).endswith("of built-in samples")
    # With words that it says, they are, with four words that may change by chance.
    texts = [found.text for found in translator.transcribe([one.file for one in samples])]
    said = [replace(one, reference=text) for one, text in zip(samples, texts, strict=True)]
    heard = QualityCheck(translator, said, built_in=True)
    quality = heard.judge(translator.path, translator.manifest)
    assert (quality.word_errors, quality.word_loss) == (0, 0)
    assert replace(quality, word_loss=0.019, agreement=0.9).passed
    assert not replace(quality, word_loss=0.021).passed
    assert not replace(quality, agreement=0.89).passed
    assert not replace(quality, word_loss=0.019, built_in=False).passed


def test_a_bundle_of_texts_has_no_samples_built_in() -> None:
    assert open_any_check(Translator(VERSION_1, threads=1), None) is None


def test_without_the_library_nothing_is_compared(
    once: Once, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = Translator(once("pictures", make_picture_bundle) / "pictures.bundle", threads=1)
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert open_any_check(translator, None) is None


def test_built_in_pictures_are_compared_by_tokens_alone(once: Once) -> None:
    bundle = once("pictures", make_picture_bundle) / "pictures.bundle"
    translator = Translator(bundle, threads=1)
    quality = open_quality_check(translator, None).judge(bundle, translator.manifest)
    assert (quality.samples, quality.agreement, quality.word_loss) == (8, 1, None)
    rows = [array for one in built_in_samples(translator) for array in (one.inputs or {}).values()]
    assert all(array.std() > 0.1 for array in rows)  # there is something to see
    assert len({array.tobytes() for array in rows}) == 8


@pytest.mark.no_model
def test_word_errors_are_counted_as_by_hand() -> None:
    assert words_of("It's 3.5, ÉTÉ!") == ["it's", "3", "5", "été"]
    assert words_of("今日は。สวัสดี") == [*"今日は", *"สวัสดี"]
    assert word_error_rate(["a b c", ""], ["A, b. c", "d"]) == 1 / 4  # one is missing
    assert word_error_rate(["a x c c"], ["a b c"]) == 2 / 3  # one is another, one too many
    assert word_error_rate(["a"], [""]) == 1
