"""Tables of pieces that are damaged or hostile."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.tokenizer_folders import train_pieces
from tfexport.errors import TokenizerError
from tfexport.runtime.streaming import TextStream
from tfexport.runtime.text.added_tokens import AddedToken
from tfexport.runtime.text.piece_tokenizer import PieceTable
from tfexport.runtime.text.tokenizer import load_tokenizer

pytestmark = pytest.mark.no_model

TABLE = PieceTable(
    "a.model", "a.model", {"<unk>": 0, "▁is": 1, "▁house": 2, "</s>": 4}, "<unk>",
    [AddedToken("</s>", 4, rstrip=True)],
)  # fmt: skip


def write(folder: Path, **changes: Any) -> Path:
    values = {**json.loads(TABLE.to_json()), **changes}
    (folder / "t.json").write_text(json.dumps(values))
    return folder / "t.json"


def test_text_goes_through_the_table(tmp_path: Path) -> None:
    train_pieces(tmp_path / "a.model")
    tokenizer = load_tokenizer(write(tmp_path), "pieces", 5, 0)
    assert tokenizer.encode("is house</s> is") == [1, 2, 4, 1]
    assert tokenizer.split("is house </s> is")[:2] == ["is", "house"]
    assert tokenizer.decode([1, 2, 4, 3, 9, -1]) == "is house ⁇  ⁇"
    assert (tokenizer.find("▁is"), tokenizer.find("</s>"), tokenizer.find("x")) == (1, 4, None)
    assert (tokenizer.piece(1), tokenizer.piece(4), tokenizer.piece(9)) == ("▁is", "</s>", "<9>")
    stream = TextStream(tokenizer.decode, tokenizer.whole_words)
    assert [*(stream.add(i) for i in (1, 2, 1)), stream.end()] == ["is", " house", " is", ""]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encode": "../../etc/passwd"}, "encode: .* is not the name of a file"),
        ({"decode": "/etc/passwd"}, "decode: "),
        ({"pieces": {"<unk>": 0, "a": True}}, r"pieces\.a: True is not an integer"),
        ({"pieces": {"<unk>": 0, "a": 2**40}}, r"pieces\.a"),
        ({"pieces": {"<unk>": 0, "a": 0}}, "both have the id 0"),
        ({"pieces": {}}, "unknown: '<unk>' is not a piece"),
        ({"pieces": []}, "is not an object"),
        ({"added": [{"content": "a"}]}, r"added\[0\]\.id: missing"),
        ({"joined": "moses"}, "joined: 'moses' is not one of"),
        ({"more": 1}, "more: unknown key"),
        ({"unknown": "\ud800"}, "surrogates"),
        ({"pieces": {"<unk>": 0, "a": 9}}, "ids go up to 9"),
    ],
)
def test_table_that_is_none_is_refused(tmp_path: Path, changes: Any, message: str) -> None:
    train_pieces(tmp_path / "a.model")
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(write(tmp_path, **changes), "pieces", 5, 0)


def test_missing_or_foreign_model_is_named(tmp_path: Path) -> None:
    path = write(tmp_path)
    for content, problem in (
        (None, "cannot be read: No such file"),
        (b"", "the file is empty"),
        (b"\x80\x04N.", "not a SentencePiece model"),
        (b"garbage", "not a SentencePiece model"),
    ):
        if content is not None:
            (tmp_path / "a.model").write_bytes(content)
        with pytest.raises(TokenizerError, match=rf"a\.model: {problem}"):
            load_tokenizer(path, "pieces", 5, 0)
