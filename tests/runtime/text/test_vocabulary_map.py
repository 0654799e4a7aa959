"""Lexical shortlists."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.manifests import manifest
from tfexport.errors import InputError
from tfexport.runtime import Translator
from tfexport.runtime.text.vocabulary_map import SHOWN, VocabularyMap

EOS = 2


class _Words:
    """A vocabulary whose token w7 has id 7."""

    def find(self, piece: str) -> int | None:
        return int(piece[1:]) if piece[1:].isdigit() else None


TEXTS: Any = SimpleNamespace(source=_Words(), target=_Words())


def _read(given: Any) -> VocabularyMap:
    return VocabularyMap.read(given, manifest(), TEXTS)


@pytest.mark.parametrize("kind", ["file", "ids", "tokens"])
def test_a_row_may_choose_what_any_of_its_tokens_allows(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "map.txt"
    path.write_text("w5\tw7 w6\n\nw8\tw6\n\tw4\n", encoding="utf-8")
    given = {
        "file": path,
        "ids": {5: [7, 6], 8: (6,), -1: [4]},
        "tokens": {"w5": ["w7", "w6"], "w8": ["w6"], "": ["w4"]},
    }[kind]
    found = _read(given)
    assert found.candidates([5], [EOS]).tolist() == [EOS, 4, 6, 7]
    assert found.candidates([8, 5, 8, 9], [EOS, 1]).tolist() == [1, EOS, 4, 6, 7]
    # A token that the map does not hold allows nothing of its own.
    assert found.candidates([9], [EOS]).tolist() == [EOS, 4]


def test_lines_of_one_token_add_up(tmp_path: Path) -> None:
    path = tmp_path / "map.txt"
    path.write_text("w5\tw6\nw5\tw7 w6", encoding="utf-8")
    assert _read(str(path)).candidates([5], [EOS]).tolist() == [EOS, 6, 7]


def test_a_few_problems_are_named_and_the_others_counted(tmp_path: Path) -> None:
    path = tmp_path / "map.txt"
    path.write_text("w5\tnope\n" * (SHOWN + 2), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        _read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).count("'nope' is not a token") == SHOWN
    assert "and 2 more" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"w5\t\xff\n", "not UTF-8: invalid start byte at byte 3"), (None, "cannot be read")],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "map.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        _read(path)


def test_vocabulary_map_limits_what_may_be_chosen(tiny_bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "map.txt"
    path.write_text("w5\tw6 w7\nw8\tw9\n\tw10\n", encoding="utf-8")
    for given in (path, {5: [6, 7], 8: [9], -1: [10]}):
        translator = Translator(tiny_bundle, threads=1, vocabulary_map=given)
        for beam in (1, 3):
            found = translator.translate(
                ["w5 w5", "w8", "w5 w8", "w4"], max_length=6, beam_size=beam
            )
            allowed = [{6, 7, 10}, {9, 10}, {6, 7, 9, 10}, {10}]
            for result, ids in zip(found, allowed, strict=True):
                assert set(result.hypotheses[0].tokens) <= ids
    path.write_text("w5\tnope\nw6 w7\n", encoding="utf-8")
    with pytest.raises(InputError, match="line 2 holds no tab"):
        Translator(tiny_bundle, vocabulary_map=path)
    path.write_text("w5\tnope\nhuh\tw5\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"(?s)line 1: 'nope' is not a token.*line 2: 'huh'"):
        Translator(tiny_bundle, vocabulary_map=path)
