"""Vocabularies in a bundle: words with how text is split into them."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tfexport.bundle import Limits, TokenizerEntry
from tfexport.errors import InputError, TokenizerError
from tfexport.runtime.streaming import TextStream
from tfexport.runtime.text.codec import TextCodec
from tfexport.runtime.text.tokenizer import load_tokenizer
from tfexport.runtime.text.vocabulary import Vocabulary, read_vocabulary

pytestmark = pytest.mark.no_model

WORDS = ["<unk>", "<pad>", "iglu", "'", "é\u2028", "\n", '"']


def test_words_of_any_characters_come_back(tmp_path: Path) -> None:
    Vocabulary(WORDS, "whitespace").write(tmp_path / "vocab.json")
    found = read_vocabulary(tmp_path / "vocab.json")
    assert (found.words, found.split) == (WORDS, "whitespace")


def test_text_is_split_as_the_file_says(tmp_path: Path) -> None:
    Vocabulary(WORDS, "basic_english").write(tmp_path / "vocab.json")
    tokenizer = load_tokenizer(tmp_path / "vocab.json", "vocabulary", 7, 0, hidden=(1,))
    assert tokenizer.encode("IGLU'Nord") == [2, 3, 0]
    assert tokenizer.split("IGLU'Nord") == ["iglu", "'", "nord"]
    assert tokenizer.decode([1, 2, 3, 0, 1]) == "iglu ' <unk>"
    without = load_tokenizer(tmp_path / "vocab.json", "vocabulary", 7, None)
    with pytest.raises(InputError, match="'nord' is not in the vocabulary"):
        without.encode("IGLU'Nord")


def test_characters_are_joined_by_nothing_and_a_space_is_one(tmp_path: Path) -> None:
    Vocabulary(["<unk>", "<pad>", " ", "j", "a", "\n"], "characters").write(tmp_path / "v.json")
    tokenizer = load_tokenizer(tmp_path / "v.json", "vocabulary", 6, 0, hidden=(1,))
    assert tokenizer.encode("ja  ja\n") == [3, 4, 2, 2, 3, 4, 5]
    assert tokenizer.decode([1, 3, 4, 2, 2, 3, 4, 5, 1]) == "ja  ja\n"
    assert tokenizer.find(" ") == 2
    pieces = TextStream(tokenizer.decode, tokenizer.whole_words)
    assert [pieces.add(token) for token in (3, 4, 2, 3)] == ["j", "a", "", " j"]


def test_unknown_characters_are_replaced_without_more_spaces(tmp_path: Path) -> None:
    Vocabulary(["<unk>", " ", "j", "a"], "characters").write(tmp_path / "v.json")
    entry = TokenizerEntry("vocabulary", "v.json")
    manifest: Any = SimpleNamespace(
        special_ids=SimpleNamespace(unk=0, bos=None, eos=None), hidden_ids=(),
        config={"add_source_bos": False, "add_source_eos": False},
        limits=Limits(4, 4, None, None), tokenizers={"source": entry, "target": entry},
    )  # fmt: skip
    codec = TextCodec(tmp_path, manifest)
    tokens, source = [2, 0, 1, 0, 3], "jé ßa"
    assert codec.encode(source) == tokens
    assert codec.fill_unknowns(tokens, [(i, i) for i in range(5)], source) == source


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (5, "its keys must be split and words"),
        ({"words": []}, "its keys must be"),
        ({"split": "whitespace", "words": [], "more": 1}, "its keys must be"),
        ({"split": None, "words": []}, "split must be a string"),
        ({"split": "whitespace", "words": {"a": 0}}, "and words a list"),
        ({"split": "whitespace", "words": ["a", "a"]}, "'a' has the id 0 and the id 1"),
        ({"split": "whitespace", "words": ["a", 5]}, "id 1 is 5, which is not a string"),
        ({"split": "whitespace", "words": ["\ud800"]}, "not valid Unicode"),
        ({"split": "moses", "words": ["a"]}, "'moses' is not a known rule for splitting text"),
        ({"split": "whitespace", "words": ["a", "b", "c"]}, "ids go up to 2"),
    ],
)
def test_file_that_is_no_vocabulary_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps(content))
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(tmp_path / "vocab.json", "vocabulary", 2, 0)


def test_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for content in ("", "[" * 100_000, "\xff"):
        (tmp_path / "vocab.json").write_text(content, encoding="latin-1")
        with pytest.raises(TokenizerError, match=r"not a vocabulary|the file is empty"):
            load_tokenizer(tmp_path / "vocab.json", "vocabulary", 2, 0)
    with pytest.raises(TokenizerError, match="cannot be read"):
        read_vocabulary(tmp_path / "missing.json")
