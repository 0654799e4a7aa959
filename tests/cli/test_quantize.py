"""``tfexport quantize``; tests/export/quantization tests how weights are rounded and judged."""

import shutil
from pathlib import Path

import pytest

from tests.support.command import invoke
from tests.support.paths import VERSION_1
from tfexport.bundle import note_file, open_bundle, read_manifest
from tfexport.runtime import Translator


@pytest.mark.parametrize("weights", ["int8", "int4", "bf16"])
def test_new_bundle_decodes_and_what_was_not_compared_is_said(
    tmp_path: Path, tiny_bundle: Path, weights: str
) -> None:
    output = tmp_path / "q.bundle"
    done = invoke("quantize", tiny_bundle, "-o", output, "--weights", weights)
    assert done.exit_code == 0, done.output
    assert f"{weights} weights, not compared with the original" in done.stdout
    assert "Give --samples" in done.stderr
    assert (read_manifest(output).quantization or {})["weights"] == weights
    shown = invoke("inspect", output).stdout
    assert f"{weights}, not compared with float32; left in float32: none" in shown
    assert Translator(output).generate([[5, 6, 7]], max_length=4)[0].hypotheses[0].tokens
    again = invoke("quantize", output, "-o", tmp_path / "r.bundle")
    assert again.exit_code == 1
    assert f"its weights are {weights} already" in again.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["q.bundle"]


def test_a_bundle_that_cannot_be_noted_is_written(
    tmp_path: Path, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfexport.bundle._LARGE", 0)
    monkeypatch.setattr("tfexport.bundle._ROUNDING", 0.05)
    output = tmp_path / "q.bundle"
    note_file(output).mkdir()
    done = invoke("quantize", tiny_bundle, "-o", output)
    assert done.exit_code == 0, done.output
    assert f"warning: {output}: was written, but not all that lets it open fast: " in done.stderr
    open_bundle(output)


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["none.bundle"], 1, "none.bundle: no such file or folder"),
        (["file"], 1, "file: not a bundle"),
        ([str(VERSION_1), "--weights", "int3"], 2, "'int3' is not one of 'int8', 'int4', 'bf16'"),
        ([str(VERSION_1), "--samples", "none.txt"], 2, "'none.txt' does not exist"),
    ],
)
def test_wrong_use_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], status: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    done = invoke("quantize", "-o", "q.bundle", *args)
    assert done.exit_code == status, done.output
    assert message in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_existing_output_is_kept_without_force(tmp_path: Path) -> None:
    shutil.copytree(VERSION_1, tmp_path / "a.bundle")
    before = read_manifest(tmp_path / "a.bundle")
    done = invoke("quantize", VERSION_1, "-o", tmp_path / "a.bundle")
    assert done.exit_code == 1
    assert "already exists" in done.stderr
    assert "--force" in done.stderr
    assert read_manifest(tmp_path / "a.bundle") == before


def test_languages_need_samples(tiny_bundle: Path, tmp_path: Path) -> None:
    arguments = ("quantize", tiny_bundle, "-o", tmp_path / "q.bundle")
    done = invoke(*arguments, "--source-language", "de", "--target-language", "en")
    assert done.exit_code == 2
    assert "--source-language: is of the samples; name them with --samples" in done.stderr
    assert "--target-language: is of the samples" in done.stderr
