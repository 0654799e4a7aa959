"""Bytes as tokens: halves of characters, streams, and damaged files."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.manifests import manifest
from tfexport.bundle import Limits, SpecialIds, TokenizerEntry
from tfexport.errors import TokenizerError
from tfexport.runtime.streaming import TextStream
from tfexport.runtime.text.added_tokens import AddedToken
from tfexport.runtime.text.byte_tokenizer import ByteTable
from tfexport.runtime.text.codec import TextCodec
from tfexport.runtime.text.tokenizer import Tokenizer, load_tokenizer

pytestmark = pytest.mark.no_model


def load(folder: Path, **changes: Any) -> Tokenizer:
    table = ByteTable(3, 1, [AddedToken("</s>", 1), AddedToken("<x>", 259, special=False)])
    (folder / "b.json").write_text(json.dumps({**json.loads(table.to_json()), **changes}))
    return load_tokenizer(folder / "b.json", "bytes", 260, None)


def test_text_becomes_its_bytes(tmp_path: Path) -> None:
    tokenizer = load(tmp_path)
    assert tokenizer.encode("aé</s><x>") == [100, 198, 172, 1, 259]
    assert tokenizer.split("aé</s><x>") == ["a", "é", "", "</s>", "<x>"]
    assert tokenizer.decode([100, 198, 172, 1, 259, 198, 2, 5000, -1]) == "aé<x>"
    assert (tokenizer.piece(100), tokenizer.piece(2), tokenizer.size) == ("a", "<2>", 260)
    assert (tokenizer.find("a"), tokenizer.find("<x>"), tokenizer.find("é€")) == (100, 259, None)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("a", [100, 1]),
        ("a</s>", [100, 1]),
        ("</s>", [1]),
        ("a</s></s>", [100, 1, 1]),
        ("a</s>a", [100, 1, 100, 1]),
    ],
)
def test_a_text_that_ends_with_the_end_token_gets_no_second_one(
    tmp_path: Path, text: str, ids: list[int]
) -> None:
    load(tmp_path)
    entry = TokenizerEntry("bytes", "b.json")
    codec = TextCodec(tmp_path, manifest(
        special_ids=SpecialIds(0, 0, 1), limits=Limits(260, 260, 64, None),
        tokenizers={"source": entry, "target": entry},
    ))  # fmt: skip
    assert codec.encode(text) == ids
    assert codec.encode(text, truncate=True, limit=len(ids)) == ids
    assert len(codec.surfaces(text)) == len(ids) - 1
    assert codec.encode_target(text)[: len(ids) - 1] == ids[:-1]


def test_stream_gives_whole_characters(tmp_path: Path) -> None:
    tokenizer = load(tmp_path)
    stream = TextStream(tokenizer.decode, tokenizer.whole_words)
    ids = tokenizer.encode("a €😀 b")
    given = [*(stream.add(i) for i in ids), stream.end()]
    assert "".join(given) == "a €😀 b"
    assert " €" in given


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first": -1}, "first: -1 is not an integer"),
        ({"added": 5}, "added: 5 is not a list"),
        ({"added": [{"content": 1}]}, r"added\[0\]\.id: missing"),
        ({"more": 1}, "more: unknown key"),
        ({"first": 100}, "ids go up to 355"),
    ],
)
def test_file_that_is_damaged_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(TokenizerError, match=message):
        load(tmp_path, **changes)
