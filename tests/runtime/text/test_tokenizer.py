"""Tokenizer files that are damaged, foreign or incomplete, and texts that have no ids."""

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from tfexport.errors import InputError, TokenizerError
from tfexport.runtime.text import tokenizer as module
from tfexport.runtime.text.libraries import failures_as
from tfexport.runtime.text.tokenizer import (
    JsonTokenizer,
    SentencePieceTokenizer,
    load_tokenizer,
)
from tfexport.runtime.text.vocabulary import read_words

pytestmark = pytest.mark.no_model

TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
    "model": {"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0], ["b", -2.0]]},
}


def write(path: Path, changes: dict[str, Any]) -> Path:
    path.write_text(json.dumps({**TOKENIZER, **changes}))
    return path


def test_panic_of_the_library_is_a_tokenizer_error(tmp_path: Path) -> None:
    normalizer = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    path = write(tmp_path / "t.json", {"normalizer": normalizer})
    with pytest.raises(TokenizerError, match=r"t\.json: not a tokenizer\.json: .*charsmap"):
        JsonTokenizer(path)


def test_interruption_is_not_taken_for_a_failure() -> None:
    def interrupt() -> None:
        with failures_as(TokenizerError, str):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()


def test_text_that_the_library_cannot_encode_is_an_input_error(tmp_path: Path) -> None:
    tokenizer = JsonTokenizer(write(tmp_path / "t.json", {}))
    assert tokenizer.encode("ab") == [0, 1]
    with pytest.raises(InputError, match=r"t\.json cannot encode it: .*unk_id"):
        tokenizer.encode("xyz")
    with pytest.raises(InputError, match="unk_id"):
        tokenizer.split("xyz")


def make(tmp_path: Path, kind: str) -> module.Tokenizer:
    if kind == "tokenizers":
        return JsonTokenizer(write(tmp_path / "t.json", {}))
    if kind == "sentencepiece":
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["a b"]), model_prefix=str(tmp_path / "v"), vocab_size=6,
            hard_vocab_limit=False, minloglevel=2,
        )  # fmt: skip
        return SentencePieceTokenizer(tmp_path / "v.model")
    (tmp_path / "v.txt").write_text("a\nb\n")
    return load_tokenizer(tmp_path / "v.txt", "words", 2, None)


@pytest.mark.parametrize("kind", ["tokenizers", "words"])
def test_ids_that_are_none_are_not_decoded(tmp_path: Path, kind: str) -> None:
    tokenizer = make(tmp_path, kind)
    for wrong in ([2**40], [-1], ["a"], [None], 5):
        try:
            text = tokenizer.decode(wrong)  # type: ignore[arg-type]
        except TokenizerError:
            continue
        assert text == "", "an id that is not in the vocabulary stands for no word"


@pytest.mark.parametrize("kind", ["tokenizers", "words", "sentencepiece"])
def test_half_a_surrogate_pair_is_no_token(tmp_path: Path, kind: str) -> None:
    assert make(tmp_path, kind).find("\ud800") is None


@pytest.mark.parametrize(
    ("name", "write_it", "message"),
    [
        ("v.json", lambda p: p.write_text('{"<unk>": 0, "a": 1}'), "object from words to ids"),
        ("v.json", lambda p: p.write_text("{}"), r"not a tokenizer\.json"),
        ("v.json", lambda p: p.write_bytes(pickle.dumps({"a": 1})), "a pickle, .* never loaded"),
        ("v.pkl", lambda p: p.write_bytes(pickle.dumps({"ä": 1}, 2)), "a pickle, .* never loaded"),
        ("v.pt", lambda p: p.write_bytes(b"PK\3\4\xff\xff"), "a pickle, .* never loaded"),
        ("v.model", lambda p: p.write_bytes(pickle.dumps([])), "a pickle, .* never loaded"),
        ("v.txt", lambda p: p.write_bytes(b"a\n\xff\n"), "not a list of words in UTF-8"),
        ("v.txt", lambda p: p.write_text("a\nb\na\n"), "'a' is on line 1 and on line 3"),
        ("v.txt", lambda p: p.write_text("a\n\nb\n\n\n"), "lines 2 and 4 are both empty"),
        ("v.txt", lambda p: p.mkdir(), "cannot be read"),
    ],
)
def test_file_that_is_no_vocabulary_is_told_by_what_it_is(
    tmp_path: Path, name: str, write_it: Callable[[Path], object], message: str
) -> None:
    path = tmp_path / name
    write_it(path)
    kind = {".json": "tokenizers", ".model": "sentencepiece"}.get(path.suffix, "words")
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(path, kind, 10, None)


def test_command_that_a_message_gives_makes_a_list_of_words(tmp_path: Path) -> None:
    path = tmp_path / "v.json"
    path.write_text(json.dumps({"b": 1, "a": 0}))
    with pytest.raises(TokenizerError) as caught:
        JsonTokenizer(path)
    code = str(caught.value).split('python -c "')[1].split('"')[0]
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert read_words(tmp_path / "vocab.txt") == ["a", "b"]


def test_word_may_hold_what_unicode_counts_as_the_end_of_a_line(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("a\u2028b\x85\nc\n", encoding="utf-8")
    assert read_words(tmp_path / "v.txt") == ["a\u2028b\x85", "c"]


def test_special_tokens_may_lie_beyond_the_model(tmp_path: Path) -> None:
    """As <mask> of facebook/bart-large-cnn, whose table ends at the id before it."""
    mask = {
        "id": 2, "content": "<mask>", "single_word": False, "lstrip": False, "rstrip": False,
        "normalized": False, "special": True,
    }  # fmt: skip
    path = write(tmp_path / "t.json", {"added_tokens": [mask]})
    tokenizer = load_tokenizer(path, "tokenizers", 2, None)
    assert tokenizer.encode("a<mask>b") == [0, 2, 1]  # which the codec refuses by its id
    with pytest.raises(TokenizerError, match="its ids go up to 2"):
        load_tokenizer(path, "tokenizers", 1, None)
    path = write(tmp_path / "t.json", {"added_tokens": [{**mask, "special": False}]})
    with pytest.raises(TokenizerError, match="its ids go up to 2"):
        load_tokenizer(path, "tokenizers", 2, None)
