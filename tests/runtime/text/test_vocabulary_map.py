"""Lexical shortlists."""

from pathlib import Path

import pytest

from tfexport.errors import InputError
from tfexport.runtime import Translator


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
    with pytest.raises(InputError, match=r"(?s)line 1: 'nope' is no token.*line 2: 'huh'"):
        Translator(tiny_bundle, vocabulary_map=path)
