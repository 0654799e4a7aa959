"""Files of sound on the command line, and in ``generate_from``, by a bundle that reads them."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.test_module_verbs import exported as exported
from tests.support.command import invoke
from tests.support.manifests import rewrite
from tests.support.paths import VERSION_1
from tfexport.errors import BundleError, InputError
from tfexport.runtime import MediaLimits, Translator
from tfexport.runtime.media.sound_features import FilterBanks

soundfile = pytest.importorskip("soundfile", reason="the extra audio installs it")

RATE = 16000


@pytest.fixture(scope="module")
def plain(exported: Path) -> Path:
    return exported / "a.bundle"


@pytest.fixture(scope="module")
def bundle(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("media") / "sound.bundle"
    shutil.copytree(plain, path)
    part = {
        "kind": "filter_banks", "input": "frames", "sampling_rate": RATE, "num_mel_bins": 6,
        "normalize_means": False, "normalize_vars": False,
    }  # fmt: skip
    rewrite(path, lambda values: values.update(preprocessing=part))
    return path


@pytest.fixture
def sounds(tmp_path: Path) -> list[Path]:
    paths = []
    for number, (length, pitch) in enumerate(((700, 0.01), (720, 0.2), (4000, 1.0))):
        time = np.arange(length)
        paths.append(tmp_path / f"{number}.{'flac' if number else 'wav'}")
        soundfile.write(paths[-1], np.sin(time * pitch * (1 + time / length)), RATE)
    return paths


def test_files_and_a_list_of_them_give_lines(
    bundle: Path, sounds: list[Path], tmp_path: Path
) -> None:
    banks = FilterBanks("frames", RATE, 6, False, False, 9)
    arrays = [banks.inputs((soundfile.read(path)[0], RATE)) for path in sounds]
    translator = Translator(bundle)
    wanted = [list(it.hypotheses[0].tokens) for it in translator.generate_from(arrays)]
    assert len({*map(tuple, wanted)}) > 1
    assert wanted == [
        list(it.hypotheses[0].tokens)
        for it in translator.generate_from([{"audio": path} for path in sounds])
    ]
    lines = [" ".join(map(str, row)) for row in wanted]
    assert invoke("translate", bundle, *sounds).stdout.splitlines() == lines
    listed = tmp_path / "list.txt"
    listed.write_bytes(b"\xef\xbb\xbf" + b"".join(f"{path}\r\n".encode() for path in sounds))
    found = invoke("translate", bundle, "--inputs", listed, "--jsonl").stdout.splitlines()
    assert [json.loads(line)["tokens"] for line in found] == wanted
    assert all("score" in json.loads(line) for line in found)
    rows: dict[str, Any] = {f"frames/{i}": row["frames"] for i, row in enumerate(arrays)}
    np.savez(tmp_path / "rows.npz", **rows)
    found = invoke("translate", bundle, "--inputs", tmp_path / "rows.npz").stdout.splitlines()
    assert found == lines


def test_a_bad_file_leaves_an_empty_line(bundle: Path, sounds: list[Path], tmp_path: Path) -> None:
    (tmp_path / "note.wav").write_text("Not a sound at all, but a note.")
    made = invoke("translate", bundle, sounds[0], tmp_path / "note.wav", sounds[1])
    assert made.exit_code == 1
    first, empty, last = made.stdout.split("\n")[:3]
    assert (bool(first), empty, bool(last)) == (True, "", True)
    assert f"files: row 1: {tmp_path / 'note.wav'}: holds text, not sound" in made.stderr
    made = invoke("translate", bundle, sounds[0], "--max-seconds", "0.01")
    assert "0.0 s or longer; at most 0.01 s are read" in made.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["a.wav", "--ids"], "--ids applies to lines; files of"),
        (["a.wav", "--format", "html"], "--format applies to text"),
        ([], "not ids or text"),
    ],
)
def test_options_of_lines_are_refused(bundle: Path, options: list[str], message: str) -> None:
    made = invoke("translate", bundle, *options)
    assert made.exit_code != 0
    assert message in made.stderr


def test_a_bundle_without_preprocessing_reads_no_files(plain: Path, bundle: Path) -> None:
    made = invoke("translate", plain, "a.wav", "b.wav", "--max-seconds", "9")
    told = "one file of lines is read at a time, and 2 are given: call it for each, or 'tfexport"
    assert told in made.stderr
    assert "does not read sound" in made.stderr
    with pytest.raises(InputError, match="row 0: 'audio': the bundle reads no files"):
        Translator(plain).generate_from([{"audio": "a.wav"}])
    assert "audio as filter_banks into frames" in invoke("inspect", bundle).stdout


def test_the_verb_that_reads_a_bundle_is_named(plain: Path, bundle: Path) -> None:
    for folder, told in (
        (VERSION_1, "reads no sound; translate takes it ('tfexport translate'), and transcribe"),
        (plain, "reads no sound; translate takes it"),
        (bundle, "Its sounds are read by 'tfexport translate', in Python by generate_from"),
    ):
        made = invoke("transcribe", folder, "a.wav")
        assert made.exit_code == 2
        assert told in made.stderr
    made = invoke("translate", VERSION_1, "a.html", "b.html", "--format", "html")
    assert made.exit_code == 2
    told = "one file of --format html is read at a time, and 2 are given: call it for each"
    assert made.stderr.splitlines()[-1].endswith(told)


def test_wrong_rows_are_named_and_a_manifest_is_checked(bundle: Path, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"audio": (np.zeros(2 * RATE, np.float32), RATE)},
        {"image": "a.png"},
        {"audio": tmp_path / "missing.wav"},
        {"audio": (np.sin(np.arange(900)), RATE), "frames": np.ones((9, 6), np.float32)},
    ]
    with pytest.raises(InputError) as raised:
        Translator(bundle, media_limits=MediaLimits(seconds=1.5)).generate_from(rows)
    for part in ("2.0 s or longer; at most 1.5 s", "'image': the bundle reads files as 'audio'",
                 "missing.wav", "gives 'frames', which the row has too"):  # fmt: skip
        assert part in str(raised.value)
    copy = tmp_path / "copy.bundle"
    shutil.copytree(bundle, copy)
    rewrite(copy, lambda values: values["preprocessing"].update(input="other"))
    with pytest.raises(BundleError, match="'other' is not an input of the model"):
        Translator(copy)
