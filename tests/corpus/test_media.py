"""Corpora of pictures and sounds: folders and lists of files, each with a text or an error."""

import csv
import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import fs

from tests.conftest import Once
from tests.support.combinations import few_of
from tests.support.command import invoke
from tests.support.picture_bundle import make_picture_bundle
from tfexport.corpus import Advance, decoders, translate_corpus
from tfexport.corpus.decoders import NamedFiles
from tfexport.errors import ConfigError, InputError, OutputExistsError
from tfexport.export.artifacts.transformers_source import read_transformers
from tfexport.runtime import Translator, engine
from tfexport.runtime.speech.subtitles import as_srt

Image = pytest.importorskip("PIL.Image", reason="the extra vision installs it")
pytestmark = pytest.mark.slow
GOOD = ("a.png", "b/1.JPG", "b/2.png", "c.webp", "ü 3.png")


@pytest.fixture(scope="module", name="bundle")
def _bundle(once: Once) -> Path:
    return once("pictures", make_picture_bundle) / "pictures.bundle"


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    """Pictures, one of them damaged, and other files."""
    folder = tmp_path / "in"
    (folder / "b").mkdir(parents=True)
    for seed, name in enumerate(GOOD):
        pixels = np.random.default_rng(seed).integers(0, 256, (9, 5 + seed, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name)
    (folder / "b" / "bad.png").write_bytes((folder / "b/2.png").read_bytes()[:60])
    (folder / "note.txt").write_text("a note")
    (folder / ".hidden.png").write_bytes(b"")
    return folder


def expected(bundle: Path, folder: Path, **options: Any) -> dict[str, tuple[str | None, float]]:
    rows = [{"image": folder / name} for name in GOOD]
    found = Translator(bundle, threads=1).generate_from(rows, **options)
    return {
        name: (one.text, one.hypotheses[0].score) for name, one in zip(GOOD, found, strict=True)
    }


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def check(rows: list[dict[str, Any]], wanted: dict[str, tuple[str | None, float]]) -> None:
    assert [row["image"] for row in rows] == sorted([*wanted, "b/bad.png"])
    for row in rows:
        text, score = wanted.get(row["image"], (None, None))
        assert row["translation"] == text
        assert row["score"] == (None if score is None else pytest.approx(score, abs=1e-5))
        assert ("damaged PNG" in (row["error"] or "")) == (text is None)


def test_a_folder_gives_a_line_of_each_file(bundle: Path, folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    done = invoke("corpus", bundle, folder, output, "--json", "--beam-size", "2")
    assert done.exit_code == 1
    assert "out.jsonl:4: a damaged PNG file" in done.stderr
    listed = invoke("translate", bundle, folder / "a.png", folder / "b/bad.png").stderr
    assert f"files: row 1: {folder / 'b/bad.png'}: a damaged PNG file" in listed
    report = json.loads(done.stdout)
    assert (report["rows"], report["errors"], report["finished"]) == (6, 1, 1)
    assert report["passed_over"] == ["note.txt: .txt is not that of a picture"]
    wanted = expected(bundle, folder, beam_size=2)
    assert len({*wanted.values()}) > 2
    check(rows_of(output), wanted)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".out.jsonl.done",
        "in",
        "out.jsonl",
    ]

    # The same again is known; a file more makes the folder another input.
    first = output.read_bytes()
    again = translate_corpus(bundle, folder, output, beam_size=2)
    assert (again.already, again.decoded_rows, again.errors) == (1, 0, 1)
    assert output.read_bytes() == first
    shutil.copy(folder / "a.png", folder / "d.png")
    more = translate_corpus(bundle, folder, output, beam_size=2)
    assert (more.outdated, more.decoded_rows, more.rows) == (1, 7, 7)


@pytest.mark.parametrize("workers", few_of(["local", "ray"], "local"))
def test_an_interrupted_run_goes_on(
    bundle: Path, folder: Path, tmp_path: Path, workers: str
) -> None:
    output = tmp_path / "out.jsonl"

    def interrupt(advance: Advance) -> None:
        if advance.rows >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        translate_corpus(
            bundle, folder, output, batch_rows=2, workers=1, engine="local", on_advance=interrupt
        )
    assert not output.exists()
    if workers == "local":
        report = translate_corpus(bundle, folder, output, batch_rows=2, workers=1).to_dict()
    else:
        command = [sys.executable, "-m", "tfexport", "corpus", str(bundle), str(folder)]
        options = ["--batch-rows", "2", "--workers", "1", "--engine", workers, "--json"]
        done = subprocess.run(  # with Pillow, which the environment of the other tests has not
            [*command, str(output), *options], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 1, done.stderr
        report = json.loads(done.stdout)
    assert 0 < report["decoded_rows"] < 6
    check(rows_of(output), expected(bundle, folder))


@pytest.mark.parametrize("form", ["csv", "tsv.gz", "jsonl"])
def test_lists_and_other_forms(
    bundle: Path, folder: Path, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfexport.runtime.engine.MOST_INPUT_BYTES", 1)
    monkeypatch.setattr("tfexport.corpus.row_decoder.MOST_INPUT_BYTES", 1)
    wanted = expected(bundle, folder)
    if form == "jsonl":
        (folder / "list.jsonl").write_text(
            "".join(json.dumps({"image": name, "n": n}) + "\n" for n, name in enumerate(GOOD))
        )
        translate_corpus(bundle, folder / "list.jsonl", tmp_path / "out.jsonl")
        rows = rows_of(tmp_path / "out.jsonl")
        assert [row["n"] for row in rows] == [*range(5)]
        (folder / "list.txt").write_text("".join(f"{name}\n" for name in (*GOOD, "", "no.png")))
        report = translate_corpus(bundle, folder / "list.txt", tmp_path / "out.txt")
        assert (tmp_path / "out.txt").read_text().splitlines() == [
            *(row["translation"] for row in rows), "", "",
        ]  # fmt: skip
        assert "No such file" in report.row_errors["list.txt"][0][1]
    else:
        output = tmp_path / f"out.{form}"
        translate_corpus(bundle, folder, output, "file", include=("?.*", "ü*"))
        content = output.read_bytes()
        text = (gzip.decompress(content) if form.endswith("gz") else content).decode()
        delimiter = "," if form == "csv" else "\t"
        rows = [*csv.DictReader(text.splitlines(), delimiter=delimiter)]
        assert [*rows[0]] == ["file", "translation", "score", "error"]
        rows = [{"image": row["file"], **row} for row in rows]
    assert {row["image"]: row["translation"] for row in rows} == {
        name: text for name, (text, _) in wanted.items()
    }


@pytest.mark.parametrize(
    ("output", "options", "said"),
    [
        ("out.txt", [], "its suffix has to be .jsonl, .csv, .tsv"),
        ("out.parquet", [], "its suffix has to be .jsonl, .csv, .tsv"),
        ("in/out.jsonl", [], "one contains the other"),
        ("out.jsonl", ["--include", "*.gif"], "contains no file of a picture (like '*.gif')"),
        ("out.jsonl", ["--max-seconds", "3"], "--max-seconds: "),
        ("out.jsonl", ["--task", "translate"], "--task: "),
        ("out.jsonl", ["--truncate"], "--truncate cuts rows of ids"),
        ("out", ["--format", "jsonl", "--include", "*.png"], "not UTF-8"),
    ],
)
def test_what_does_not_fit_is_refused(
    bundle: Path, folder: Path, output: str, options: list[str], said: str
) -> None:
    done = invoke("corpus", bundle, folder, folder.parent / output, *options)
    assert done.exit_code in (1, 2)
    assert said in done.stderr
    assert not [*folder.parent.glob("*.jsonl"), *folder.parent.glob(".*.files")]


def test_names_on_another_file_system_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = fs.SubTreeFileSystem(folder.as_posix(), fs.LocalFileSystem())
    monkeypatch.setattr(decoders, "file_system", lambda place: (system, place.partition("://")[2]))
    files = NamedFiles("s3://b")
    content = (folder / "b/2.png").read_bytes()
    assert files.content("s3://b/2.png") == content
    monkeypatch.setattr(decoders, "_MOST_FILE_BYTES", len(content) - 1)
    for name, said in (("2.png", "has more than"), ("x.png", "x.png: "), ("a\0", "not the name")):
        with pytest.raises(InputError, match=said):
            files.content(name)


@pytest.fixture(name="spoken")
def _spoken(tmp_path: Path, monkeypatch: Any) -> tuple[Path, Path]:
    """A Whisper bundle, and a folder of sounds with another file among them."""
    pytest.importorskip("transformers", reason="make optional installs it")
    soundfile = pytest.importorskip("soundfile", reason="the extra audio installs it")
    from tests.support.whisper_folders import EagerModel, write_whisper, write_without_graphs

    model, made, folder = write_whisper(tmp_path / "model"), tmp_path / "made", tmp_path / "sounds"
    values = json.loads((tmp_path / "model/config.json").read_text())
    write_without_graphs(made, read_transformers(tmp_path / "model", values, {}), texts=True)
    monkeypatch.setattr(engine, "open_model", lambda *_: EagerModel(model))
    monkeypatch.setattr(EagerModel, "close", lambda model: None, raising=False)
    monkeypatch.setattr(engine, "choose_engine", lambda *_: ("onnxruntime", ""))
    folder.mkdir()
    for number in range(11):
        samples = np.random.default_rng(number).normal(0, 0.1, 1600 + 2700 * number)
        soundfile.write(folder / f"{number % 3}{'x' * number}.wav", samples, 16000)
    (folder / "note.wav").write_text("A note, not a sound.")
    return made, folder


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
def test_sounds_are_transcribed(spoken: tuple[Path, Path], tmp_path: Path) -> None:
    made, folder = spoken
    names = sorted(path.name for path in folder.iterdir() if path.name != "note.wav")
    for options in (
        {},
        {"task": "translate", "temperature": (0.0, 0.7), "logprob_threshold": -1.0},
    ):
        output = tmp_path / f"{len(options)}.jsonl"
        report = translate_corpus(
            made, folder, output, batch_rows=6, workers=2, source_language="de",
            transcription=options,
        )  # fmt: skip
        assert (report.rows, report.errors) == (12, 1)
        found = {row["audio"]: row for row in rows_of(output)}
        assert "note.wav: holds text, not sound" in found.pop("note.wav")["error"]
        assert [*found] == names
        if not options:
            wanted = Translator(made).transcribe(
                [str(folder / name) for name in names], language="de"
            )
            for row, one in zip(found.values(), wanted, strict=True):
                assert row["translation"] == one.text.strip()
            assert len({row["translation"] for row in found.values()}) > 3
            assert all(row["score"] < 0 for row in found.values() if row["translation"])
    with pytest.raises(ConfigError, match="beam_size") as raised:
        translate_corpus(made, folder, tmp_path / "x.jsonl", beam_size=4, target_prefix="a")
    assert "target_prefix" in str(raised.value)
    with pytest.raises(ConfigError, match="source_language: 'xx' is not a language of the model"):
        translate_corpus(made, folder, tmp_path / "x.jsonl", source_language="xx")


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
def test_each_sound_gets_its_subtitles(spoken: tuple[Path, Path], tmp_path: Path) -> None:
    made, folder = spoken
    few = ("0.wav", "1x.wav", "note.wav")
    for path in folder.iterdir():
        if path.name not in few:
            path.unlink()
    (folder / "talks").mkdir()
    (folder / "0.wav").rename(folder / "talks/0.part.wav")
    srt, output = tmp_path / "srt", tmp_path / "out.jsonl"

    def run(**more: Any) -> list[str]:
        report = translate_corpus(
            made, folder, output, workers=1, source_language="de",
            **{"subtitles": {"srt": srt, "vtt": srt}, **more},
        )  # fmt: skip
        assert (report.rows, report.errors) == (3, 1)
        return sorted(path.relative_to(srt).as_posix() for path in srt.rglob("*.*"))

    assert run() == [
        ".tfexport-subtitles", "1x.srt", "1x.vtt", "talks/0.part.srt", "talks/0.part.vtt",
    ]  # fmt: skip
    wanted = Translator(made).transcribe([str(folder / "talks/0.part.wav")], language="de")
    assert wanted[0].text.strip()
    assert (srt / "talks/0.part.srt").read_text("utf-8") == as_srt(wanted[0])
    (srt / "1x.srt").unlink()
    other = {"transcription": {"prompt": "x"}}  # all is done again, and the folder is the run's
    assert "1x.srt" in run(**other)
    (srt / ".tfexport-subtitles").unlink()
    with pytest.raises(OutputExistsError, match="holds files that no run has written"):
        run()
    assert "1x.srt" in run(force=True)
    with pytest.raises(ConfigError, match="one contains the other"):
        run(subtitles={"srt": folder / "srt"})
    with pytest.raises(ConfigError, match="'ass' is not one of 'srt', 'vtt'"):
        run(subtitles={"ass": srt})
    (folder / "list.jsonl").write_text('{"audio": "../0.wav"}\n')
    with pytest.raises(ConfigError, match="this input is a file of rows"):
        translate_corpus(made, folder / "list.jsonl", output, subtitles={"vtt": srt})
    shutil.copy(folder / "1x.wav", folder / "1x.mp3")
    with pytest.raises(InputError, match="would have the same file of subtitles"):
        run()
