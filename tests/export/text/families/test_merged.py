"""Folders of blenderbot-small and FSMT with something wrong, and without sacremoses."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import tokenizer_folders as folders
from tfexport.errors import MissingDependencyError, TokenizerError
from tfexport.runtime.streaming import TextStream
from tfexport.runtime.text.tokenizer import load_tokenizer


def test_words_are_lower_case_pieces(tmp_path: Path) -> None:
    tokenizer, _ = folders.load_both(folders.blenderbot_small_folder(tmp_path))
    ids = tokenizer.encode("The House,__end__it's")
    assert tokenizer.decode(ids) == "the house , it ' s"
    assert [*tokenizer.split("house __end__")] == ["house", "__end__"]
    stream = TextStream(tokenizer.decode, tokenizer.whole_words)
    assert "".join([*(stream.add(i) for i in ids), stream.end()]) == tokenizer.decode(ids)


def test_fsmt_without_sacremoses_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(MissingDependencyError, match=r"needs the sacremoses library\. Install it"):
        folders.load_both(folders.fsmt_folder(tmp_path))


@pytest.mark.parametrize(
    ("make", "name", "content", "message"),
    [
        (
            folders.blenderbot_small_folder,
            "merges.txt",
            b"#\na b\nx\n",
            "line 3, 'x', does not hold two",
        ),
        (folders.blenderbot_small_folder, "merges.txt", b"#\n\xff\n", "not UTF-8"),
        (folders.blenderbot_small_folder, "vocab.json", b'{"a": 0}', "has no '__unk__'"),
        (folders.blenderbot_small_folder, "vocab.json", b'{"__unk__": -1}', "-1, not an id"),
        (folders.fsmt_folder, "vocab-tgt.json", b'{"a": 0}', "has no '<unk>'"),
        (folders.fsmt_folder, "tokenizer_config.json", b'{"langs": ["en"]}', "not a list of two"),
        (
            folders.fsmt_folder,
            "tokenizer_config.json",
            b'{"langs": ["ru", "en"]}',
            "and config.json",
        ),
    ],
)
def test_folder_with_something_wrong_is_one_error(
    tmp_path: Path, make: Any, name: str, content: bytes, message: str
) -> None:
    folder = make(tmp_path)
    (folder / name).write_bytes(content)
    with pytest.raises(TokenizerError, match=message):
        folders.load_both(folder)


def test_missing_files_are_named_together(tmp_path: Path) -> None:
    folder = folders.fsmt_folder(tmp_path)
    for name in ("vocab-src.json", "merges.txt"):
        (folder / name).unlink()
    with pytest.raises(TokenizerError, match=r"vocab-src\.json and merges\.txt"):
        folders.load_both(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"merges": [["a"]]}, r"merges\[0\]: not a list of two texts"),
        ({"pieces": {"a": 0}}, "unknown: '__unk__' is not a piece"),
        ({"words": "moses"}, "words: 'moses' instead of 'lower case'"),
        ({"words": "spaces"}, "words: 'spaces' is not one of"),
        ({"pieces": {"__unk__": 10**6}}, "ids go up to 1000000"),
    ],
)
def test_file_of_a_bundle_that_is_damaged_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folders.load_both(folders.blenderbot_small_folder(tmp_path))
    path = tmp_path / "written" / "bpe.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(path, "lower_bpe", 500, None)
