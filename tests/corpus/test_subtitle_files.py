"""Folders of subtitles that are refused, and files that cannot be written."""

from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY
from tfexport.corpus.subtitle_files import SubtitleFiles, claim_folders
from tfexport.errors import InputError, OutputExistsError
from tfexport.runtime.speech.transcription import Transcription


def test_if_one_folder_is_refused_none_is_made(tmp_path: Path) -> None:
    (tmp_path / "vtt").mkdir()
    (tmp_path / "vtt/notes").touch()
    folders = {"srt": str(tmp_path / "srt"), "vtt": str(tmp_path / "vtt")}
    apart = str(tmp_path / "in"), str(tmp_path / "out.jsonl")
    with pytest.raises(OutputExistsError, match="holds files that no run has written"):
        claim_folders(folders, apart, ["a.wav"], force=False)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["notes", "vtt"]


def test_files_of_sounds_that_are_gone_stay_and_the_docs_say_so(tmp_path: Path) -> None:
    folders = {"srt": str(tmp_path / "srt")}
    apart = str(tmp_path / "in"), str(tmp_path / "out.jsonl")
    for names in (["a.wav", "b.wav"], ["a.wav"]):
        claim_folders(folders, apart, names, force=False)
        for name in names:
            SubtitleFiles(folders).write(name, Transcription("", (), "en"))
    left = sorted(path.name for path in (tmp_path / "srt").iterdir())
    assert left == [".tfexport-subtitles", "a.srt", "b.srt"]
    page = (REPOSITORY / "docs" / "corpus.md").read_text(encoding="utf-8")
    assert "that of a sound that is no longer in INPUT stays" in page


@pytest.mark.parametrize("name", ["a.srt/b.wav", f"{'n' * 252}.wav"])
def test_a_file_that_cannot_be_written_is_an_error_of_its_sound(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.srt").touch()
    found = Transcription("", (), "en")
    with pytest.raises(InputError, match=": cannot be written: "):
        SubtitleFiles({"srt": str(tmp_path)}).write(name, found)
    assert [path.name for path in tmp_path.iterdir()] == ["a.srt"]
