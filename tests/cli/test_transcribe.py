import io
import json
import re
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tests.support.command import invoke
from tests.support.whisper_folders import EagerModel, write_whisper, write_without_graphs
from tfexport.cli import console
from tfexport.export.artifacts.transformers_source import read_transformers
from tfexport.model_src.checkpoint.overrides import read_json
from tfexport.runtime import Translator, engine

transformers = pytest.importorskip("transformers", reason="make optional installs it")
soundfile = pytest.importorskip("soundfile", reason="the extra audio installs it")
srt, webvtt = pytest.importorskip("srt"), pytest.importorskip("webvtt")
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: Any) -> Path:
    model = write_whisper(tmp_path / "model")
    found = read_transformers(tmp_path / "model", read_json(tmp_path / "model/config.json"), {})
    write_without_graphs(tmp_path / "tiny.bundle", found, texts=True)
    monkeypatch.setattr(engine, "open_model", lambda *_: EagerModel(model))
    monkeypatch.setattr(engine, "choose_engine", lambda *_: ("onnxruntime", ""))
    return tmp_path / "tiny.bundle"


def write_sound(path: Path, seconds: float) -> Path:
    samples = np.random.default_rng(len(path.name)).normal(0, 3000, int(16000 * seconds))
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(samples.astype("<i2").tobytes())
    return path


def test_sounds_are_written_in_every_format(bundle: Path, tmp_path: Path) -> None:
    long, short = write_sound(tmp_path / "long.wav", 1.3), write_sound(tmp_path / "short.wav", 0.1)
    wanted = Translator(bundle).transcribe([str(long), short.read_bytes()])
    done = invoke("transcribe", bundle, long, short)
    assert done.stdout.splitlines() == [found.text.strip() for found in wanted]
    (line,) = invoke("transcribe", bundle, long, "--format", "json").stdout.splitlines()
    values = json.loads(line)
    assert values["sound"] == str(long)
    assert values["duration"] == 1.3
    assert [each["tokens"] for each in values["segments"]] == [
        [*each.tokens] for each in wanted[0].segments
    ]
    shown = [each for each in wanted[0].segments if each.text.strip()]
    assert shown
    invoke("transcribe", bundle, long, short, "--format", "vtt", "-o", tmp_path / "out")
    cues = webvtt.read(tmp_path / "out" / "long.vtt")
    assert [cue.text for cue in cues] == [each.text.strip() for each in shown]
    made = [*srt.parse(invoke("transcribe", bundle, long, "--format", "srt").stdout)]
    assert [each.content for each in made] == [each.text.strip() for each in shown]
    for one, other in zip(made, shown, strict=True):
        assert one.start.total_seconds() == pytest.approx(other.start)
        assert one.end.total_seconds() == pytest.approx(min(other.end, 1.3))
    untimed = invoke("transcribe", bundle, short, "--no-timestamps", "--format", "srt").stdout
    assert [each.end.total_seconds() for each in srt.parse(untimed)] == [0.1]


def test_a_terminal_shows_how_much_of_a_sound_is_done(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sounds = write_sound(tmp_path / "[a] long.wav", 2.3), write_sound(tmp_path / "short.wav", 0.1)
    plain = invoke("transcribe", bundle, *sounds, "--batch-size", 1)
    assert plain.exit_code == 0
    assert not plain.stderr
    for terminal, said in ((True, r"left: +\d:\d\d:\d\d"), (False, "\n")):
        shown = Console(file=io.StringIO(), force_terminal=True, width=120)
        monkeypatch.setattr(console, "bar_console", lambda shown=shown: shown)
        if not terminal:
            monkeypatch.setattr(console, "bar_console", lambda: None)
            monkeypatch.setattr(console, "LINE_EVERY", 0.0)
        done = invoke("transcribe", bundle, *sounds, "--batch-size", 1)
        assert done.stdout == plain.stdout
        seen = shown.file.getvalue() if terminal else done.stderr  # type: ignore[attr-defined]
        seen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)
        for part in ("[a] long.wav", r"0:00:0\d of 0:00:02, sound 1 of 2", "short.wav: ", said):
            assert part in seen or re.search(part, seen), part


def test_what_cannot_be_transcribed_is_named(bundle: Path, tmp_path: Path) -> None:
    good, bad = write_sound(tmp_path / "a.wav", 0.2), tmp_path / "b.wav"
    bad.write_text("no sound")
    done = invoke("transcribe", bundle, good, bad, tmp_path / "missing.wav")
    assert len(done.stdout.splitlines()) == 1
    assert "b.wav: holds text, not sound" in done.stderr
    assert f"\n{tmp_path}/missing.wav: No such file or directory\n" in done.stderr
    long = write_sound(tmp_path / "long.wav", 1.0)
    done = invoke("transcribe", bundle, long, "--no-timestamps")
    assert "1.00 s are more than a window of 0.24 s, and without --timestamps" in done.stderr
    done = invoke("transcribe", bundle, long, "--max-seconds", "0.5")
    assert "at most 0.5 s are read" in done.stderr
    for given, message in (
        (("--language", "klingon"), "known: de, en, fr"),
        (("--fallback", "--temperature", "0.3"), "give one of both"),
        (("--word-times",), "choose --format json"),
        (("--word-times", "--format", "json"), "names no alignment_heads"),
    ):
        done = invoke("transcribe", bundle, good, *given)
        assert (done.exit_code, message in done.stderr) == (2, True)
    done = invoke("transcribe", bundle, good, good, "--format", "srt")
    assert "several sounds need --output FOLDER" in done.stderr
    done = invoke("transcribe", bundle, good, long, "--format", "srt", "-o", tmp_path / "both.srt")
    assert "several sounds need a folder" in done.stderr
    assert not (tmp_path / "both.srt").exists()
