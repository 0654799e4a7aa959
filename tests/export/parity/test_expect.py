"""``--expect``: texts of the user's own code; and real inputs in the comparison."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import SETTINGS
from tests.support import tutorial
from tests.support.command import invoke
from tests.support.manifests import rewrite
from tfexport.bundle import open_bundle
from tfexport.errors import ConfigError, InputError
from tfexport.export import export, verify
from tfexport.export.parity.plan import plan_bundle, read_level
from tfexport.languages import Languages
from tfexport.runtime import Translator
from tfexport.runtime.text.codec import LanguagePair
from tfexport.typing import silent

SOURCES = ["w4 w5 w6", "w7", "w8 w9 w10 w11"]


@pytest.fixture
def own_texts(tiny_bundle: Path) -> list[str]:
    with Translator(tiny_bundle, threads=1) as translator:
        return [result.text or "" for result in translator.translate(SOURCES)]


def written(folder: Path, texts: list[str]) -> Path:
    path = folder / "expected.tsv"
    pairs = zip(SOURCES, texts, strict=True)
    path.write_text("".join(f"{source}\t{text}\n" for source, text in pairs), encoding="utf-8")
    return path


@pytest.mark.usefixtures("few_shapes")
def test_verify_counts_equal_texts_and_fails_where_one_differs(
    tmp_path: Path, tiny_bundle: Path, tiny_checkpoint: Path, own_texts: list[str]
) -> None:
    arguments = ["verify", tiny_bundle, "--checkpoint", tiny_checkpoint, "--set=num_heads=2",
                 "--level=quick", "--expect", written(tmp_path, own_texts)]  # fmt: skip
    done = invoke(*arguments)
    assert done.exit_code == 0, done.output
    first = done.stdout.splitlines()[0]
    assert "not compared with your code; equal to torch.nn.Transformer" in first
    assert "a quick comparison of" in first
    assert "3 of 3 expected texts equal" in first
    written(tmp_path, [*own_texts[:2], "w4 w4 w4"])
    other = invoke(*arguments)
    assert other.exit_code == 1
    assert "expected texts: 1 of 3 lines differ" in other.stdout
    assert f"'w8 w9 w10 w11': expected 'w4 w4 w4', found {own_texts[2]!r}" in other.stdout
    assert "--set: num_heads=2" in other.stdout, "what may be wrong is listed"


@pytest.mark.usefixtures("few_shapes")
def test_real_inputs_and_the_level_are_in_the_report(
    tmp_path: Path, tiny_bundle: Path, tutorial_model: tutorial.TutorialModel
) -> None:
    samples = tmp_path / "real.txt"
    samples.write_text("w4 w5\nw6 w7 w8\tw9\n", encoding="utf-8")
    report = verify(tiny_bundle, tutorial_model, config=SETTINGS, samples=samples, level="quick")
    assert report.passed
    shapes = {(c.inputs, c.batch, c.source_length) for c in report.comparisons}
    assert shapes == {("drawn", 2, 7), ("samples", 2, 4)}
    said = json.loads(json.dumps(report.to_dict()))
    assert said["level"] == "quick"
    assert said["settings"]["num_heads"]["value"] == 2
    assert said["rounding"]["measured_by"] == "float64"


def test_files_and_levels_that_cannot_be_used_are_named(
    tmp_path: Path, tutorial_model: tutorial.TutorialModel
) -> None:
    empty = tmp_path / "empty.tsv"
    empty.write_text("\n")
    with pytest.raises(
        ConfigError, match="expect is only used for the comparison; omit verify=False"
    ):
        export(tutorial_model, tmp_path / "a", config=SETTINGS, expect=empty, verify=False)
    with pytest.raises(ConfigError, match="verify: 'fast' is not one of 'full', 'quick', 'none'"):
        export(tutorial_model, tmp_path / "a", config=SETTINGS, verify="fast")
    assert [read_level(it) for it in (True, False, "none", "quick")] == ["full", "", "", "quick"]


@pytest.mark.usefixtures("few_shapes")
def test_empty_file_is_refused(
    tmp_path: Path, tiny_bundle: Path, tutorial_model: tutorial.TutorialModel
) -> None:
    empty = tmp_path / "empty.tsv"
    empty.write_text("\n")
    with torch.no_grad(), pytest.raises(InputError, match="the file is empty"):
        verify(tiny_bundle, tutorial_model, config=SETTINGS, samples=empty)


@pytest.fixture
def told_bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    """A bundle whose model is told the source language, which has no default, and the target's."""
    folder = tmp_path / "told.bundle"
    shutil.copytree(tiny_bundle, folder)
    languages = Languages({"de": 10, "en": 11}, "before", "first")
    rewrite(folder, lambda m: m.update(languages=asdict(languages)))
    return folder


@pytest.mark.usefixtures("few_shapes")
def test_samples_and_expected_texts_are_in_the_languages_that_are_named(
    tmp_path: Path, told_bundle: Path, tutorial_model: tutorial.TutorialModel
) -> None:
    with Translator(told_bundle) as translator:
        results = translator.translate(SOURCES, source_language="de", target_language="en")
        plain = translator.encode(SOURCES[0])
    expect = written(tmp_path, [str(result.text) for result in results])
    samples = tmp_path / "real.txt"
    samples.write_text("".join(f"{source}\n" for source in SOURCES), encoding="utf-8")

    manifest = open_bundle(told_bundle)
    plan = plan_bundle(told_bundle, manifest, "quick", samples, silent, LanguagePair("de"))
    assert plan.rows[0] == (10, *plain)
    given: dict[str, Any] = {"config": SETTINGS, "samples": samples, "level": "quick"}
    given["expect"] = expect
    languages: Any = {"source_language": "de", "target_language": "en"}
    report = verify(told_bundle, tutorial_model, **given, **languages)
    assert report.passed
    with pytest.raises(ConfigError, match=r"needs a source language: .* of de, en"):
        verify(told_bundle, tutorial_model, **given, target_language="en")
    with pytest.raises(ConfigError, match=r"needs a target language: .* of de, en"):
        verify(told_bundle, tutorial_model, **given, source_language="de")
    with pytest.raises(ConfigError, match="'fr' is not a language of the model"):
        verify(told_bundle, tutorial_model, **given, **languages | {"target_language": "fr"})
    del given["samples"], given["expect"]
    with pytest.raises(ConfigError, match="target_language: is of the samples; name them with"):
        verify(told_bundle, tutorial_model, **given, target_language="en")


@pytest.mark.usefixtures("few_shapes")
@pytest.mark.parametrize("kind", ["generate", "forward", "torchscript"])
def test_a_single_file_is_compared_on_real_ids(
    tmp_path: Path, tutorial_model: tutorial.TutorialModel, kind: str
) -> None:
    file = tmp_path / ("model.ts" if kind == "torchscript" else "model.onnx")
    if kind == "torchscript":
        export(tutorial_model, file, graph="torchscript", config=SETTINGS, verify=False)
    else:
        export(tutorial_model, file, graph=kind, config=SETTINGS, verify=False)
    samples = tmp_path / "real.txt"
    given: dict[str, Any] = {"config": SETTINGS, "samples": samples, "level": "quick"}
    samples.write_text("2 4 5 3\n2 6 7 8 3\t1 2\n", encoding="utf-8")
    report = verify(file, tutorial_model, **given)
    assert report.passed
    shapes = {(c.inputs, c.batch, c.source_length) for c in report.comparisons}
    assert shapes == {("drawn", 2, 7), ("samples", 2, 5)}
    for line, message in (
        ("w4 w5", f"real.txt:1: 'w4 w5': not ids, but {file.name} takes ids"),
        ("2 99 3", "real.txt:1: .*99"),
        (" ".join(["4"] * 65), "real.txt:1: .*65"),
    ):
        samples.write_text(f"{line}\n", encoding="utf-8")
        with pytest.raises(InputError, match=message):
            verify(file, tutorial_model, **given)
    for name in ("expect", "source_language", "target_language"):
        given = {"config": SETTINGS, name: "de"}
        with pytest.raises(ConfigError, match=f"^{name} requires a bundle, but .* is a file"):
            verify(file, tutorial_model, **given)
