"""Sounds of all rates and types; damaged, long and foreign files."""

import io
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfexport.errors import InputError
from tfexport.runtime.media import sound_files
from tfexport.runtime.media.sound_files import read_sound

pytestmark = pytest.mark.no_model

soundfile = pytest.importorskip("soundfile", reason="the extra audio installs it")
soxr = pytest.importorskip("soxr", reason="the extra audio installs it")

RATE = 16000


def tone(seconds: float, rate: int = RATE, channels: int = 1) -> np.ndarray[Any, Any]:
    time = np.arange(int(seconds * rate)) / rate
    return np.stack([0.4 * np.sin(900 * (1 + i) * time) for i in range(channels)], 1)


def encoded(sound: np.ndarray[Any, Any], rate: int = RATE, **options: str) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, sound, rate, **{"format": "WAV", **options})
    return file.getvalue()


@pytest.mark.parametrize("rate", [8000, 11025, 44100, 192000])
@pytest.mark.parametrize("block", [1 << 18, 1001])
def test_blocks_give_what_the_whole_sound_gives(
    monkeypatch: pytest.MonkeyPatch, rate: int, block: int
) -> None:
    monkeypatch.setattr(sound_files, "_BLOCK", block)
    sound = tone(0.31, rate, 2).astype(np.float32)
    found = read_sound(encoded(sound, rate, subtype="FLOAT"), RATE, 1.0)
    wanted = soxr.resample(sound.mean(axis=1), rate, RATE, quality="HQ")
    assert len(found) == -(-len(sound) * RATE // rate)
    np.testing.assert_allclose(found[: len(wanted)], wanted[: len(found)], atol=1e-6)


@pytest.mark.parametrize("kind", ["int16", "int32", "uint8", "float64", "float16"])
def test_arrays_are_scaled_as_files_are(kind: str) -> None:
    floats = tone(0.01)[:, 0]
    scaled = floats
    if kind.startswith("int"):
        scaled = np.round(floats * np.iinfo(kind).max)
    elif kind == "uint8":
        scaled = np.round(floats * 127 + 128)
    found = read_sound((scaled.astype(kind), RATE), RATE, 1.0)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, floats, atol=1 / 120 if kind == "uint8" else 2e-4)


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "AIFF"])
def test_formats_are_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "sound"
    path.write_bytes(encoded(tone(0.2), format=kind))
    found = read_sound(path, RATE, 1.0)
    np.testing.assert_allclose(found, tone(0.2)[:, 0], atol=0.05)


def with_nan() -> bytes:
    sound = tone(0.2)
    sound[160] = np.nan
    return encoded(sound, subtype="FLOAT")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"", "is empty"),
        (b"This is no sound, but a note about one.", "holds text, not sound"),
        (b"Lines of text\n" * 9, "holds text, not sound"),
        ((tone(0.1) * 32768, RATE), "holds values up to 13,1.*Divide.*by 32,768"),
        (b"\x89PNG\r\n\x1a\n" + bytes(90), "is a PNG picture"),
        (b"\0\0\0\x20ftypM4A " + bytes(90), "is an MP4 or M4A file"),
        (bytes(range(256)), "not a sound that libsndfile reads"),
        (encoded(tone(0.2))[:30], "not a sound that libsndfile reads"),
        (encoded(tone(0.0)), "holds no samples"),
        (with_nan(), r"holds NaN or infinity, first at 0.010 s"),
        (encoded(tone(0.2), 700), "has 700 samples of a second; from 1000"),
        (encoded(tone(1.1)), "1.1 s or longer; at most 1 s are read"),
        (encoded(tone(0.5), format="FLAC")[:-200], "damaged|not a sound"),
        ((np.ones(3), 0.5), "the rate of a sound is 0.5"),
        ((np.ones(3), True), "the rate of a sound is True"),
        ((np.ones((2, 400)), RATE), r"has shape \(2, 400\)"),
        ((np.ones(3, complex), RATE), "the sound is complex128"),
        ((["a"], RATE), "the sound is <U1"),
        ((np.array([1e300]), RATE), "NaN or infinity, first at 0.000 s"),
        ((np.zeros(0), RATE), "holds no samples"),
        (3, "3 is no sound"),
    ],
)
def test_what_cannot_be_read_is_named(source: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_sound(source, RATE, 1.0)


def test_a_file_is_named_and_a_folder_refused(tmp_path: Path) -> None:
    path = tmp_path / "note.wav"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n")
    with pytest.raises(InputError, match=r"note\.wav: a Git LFS pointer"):
        read_sound(path, RATE, 1.0)
    with pytest.raises(OSError, match="it is a folder"):
        read_sound(tmp_path, RATE, 1.0)


def test_three_hours_are_refused_without_reading_them(tmp_path: Path) -> None:
    path, samples = tmp_path / "long.wav", 3 * 3600 * RATE
    head = bytearray(encoded(np.zeros(1))[:44])
    head[4:8], head[40:44] = (n.to_bytes(4, "little") for n in (36 + 2 * samples, 2 * samples))
    with path.open("wb") as file:
        file.write(head)
        file.truncate(44 + 2 * samples)
    tracemalloc.start()
    with pytest.raises(InputError, match=r"10800\.0 s or longer; at most 60 s"):
        read_sound(path, RATE, 60.0)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    # Of a header that lies, what there is counts.
    assert len(read_sound(bytes(head) + bytes(64), RATE, 60.0)) == 32
