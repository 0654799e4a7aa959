"""Vocabularies as training code leaves them: JSON, pickles, torchtext's objects; and hostile files.

The files in ``fixtures/torchtext`` were written by torchtext 0.18 (with torch 2.3) and 0.6, from
``build_vocab_from_iterator([["de0", …]], specials=SPECIALS)`` with ``set_default_index(0)`` and
from ``Vocab(counter, specials=SPECIALS)``: ``vocab`` is one of 17 words, ``pair`` a dict of that
under "de" and one of 19 words under "en", as the tutorial's ``vocab_transform``; ``field`` is a
Field with a vocabulary. ``.pt`` is of ``torch.save``, ``.pkl`` of ``pickle.dump``.
"""

import collections
import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.paths import REPOSITORY
from tests.support.tutorial_text import SPECIALS
from tfexport.errors import TokenizerError
from tfexport.export.text.vocabularies import holds_vocabulary, read_vocabulary_file, split_name

FIXTURES = REPOSITORY / "tests" / "fixtures" / "torchtext"
GERMAN = [*SPECIALS, *sorted(f"de{i}" for i in range(13))]  # equally frequent words are sorted
ENGLISH = [*SPECIALS, *sorted(f"en{i}" for i in range(15))]
WORDS = ["<unk>", "<pad>", "Iglu", "é\n", " "]


@pytest.mark.parametrize(
    ("file", "words", "default"),
    [
        ("vocab-0.18.pt", GERMAN, 0),
        ("vocab-0.18.pkl", GERMAN, 0),
        ("pair-0.18.pt:de", GERMAN, 0),
        ("pair-0.18.pt:en", ENGLISH, 0),
        ("pair-0.18.pkl:de", GERMAN, 0),
        ("pair-0.18.pkl:en", ENGLISH, 0),
        ("no-default-0.18.pt", [*SPECIALS, "a", "b"], None),
        ("field-0.6.pt", [*SPECIALS, "a", "b"], 0),
        ("vocab-0.6.pt", [*SPECIALS, *(f"de{i}" for i in range(13))], 0),
        ("vocab-0.6.pkl", [*SPECIALS, *(f"de{i}" for i in range(13))], 0),
    ],
)
def test_vocabulary_of_torchtext_is_read_without_importing_it(
    file: str, words: list[str], default: int | None
) -> None:
    assert holds_vocabulary(FIXTURES / file)
    found = read_vocabulary_file(FIXTURES / file)
    assert (found.words, found.default) == (words, default)
    assert "torchtext" not in sys.modules


class Plain:
    """A vocabulary class of somebody's own."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


FORMS: dict[str, Callable[[], Any]] = {
    "list": lambda: list(WORDS),
    "tuple": lambda: tuple(WORDS),
    "words to ids": lambda: {word: i for i, word in enumerate(WORDS)},
    "in another order": lambda: {word: i for i, word in reversed([*enumerate(WORDS)])},
    "ids to words": lambda: dict(enumerate(WORDS)),
    "OrderedDict": lambda: collections.OrderedDict((word, i) for i, word in enumerate(WORDS)),
    "Counter of ids": lambda: collections.Counter({word: i for i, word in enumerate(WORDS)}),
    "defaultdict": lambda: collections.defaultdict(int, {w: i for i, w in enumerate(WORDS)}),
    "object with itos": lambda: Plain(freqs={"Iglu": 3}, itos=list(WORDS), stoi={}, rest={1, 2}),
    "object with ids to words": lambda: Plain(itos=dict(enumerate(WORDS))),
    "object with stoi": lambda: Plain(stoi={word: i for i, word in enumerate(WORDS)}),
    "field": lambda: Plain(init="<bos>", vocab=Plain(itos=list(WORDS)), kept=frozenset("ab")),
}


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("form", FORMS)
def test_pickle_of_any_protocol_is_read(tmp_path: Path, form: str, protocol: int) -> None:
    path = tmp_path / "vocab.pkl"
    path.write_bytes(pickle.dumps(FORMS[form](), protocol))
    assert holds_vocabulary(path)
    assert read_vocabulary_file(path).words == WORDS


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("zipped", [True, False])
def test_file_of_torch_save_is_read(tmp_path: Path, form: str, zipped: bool) -> None:
    path = tmp_path / "vocab"  # by its content, whatever it is called
    value = {"source": FORMS[form](), "weights": torch.zeros(3), "epoch": 5}
    torch.save(value, path, _use_new_zipfile_serialization=zipped)
    assert holds_vocabulary(path)
    assert read_vocabulary_file(Path(f"{path}:source")).words == WORDS


@pytest.mark.parametrize("form", ["list", "words to ids", "in another order", "ids to words"])
def test_json_is_read(tmp_path: Path, form: str) -> None:
    value = FORMS[form]()
    (tmp_path / "one.json").write_text(json.dumps(value))
    (tmp_path / "two.json").write_text(json.dumps({"de": value, "en": ["a"]}))
    assert holds_vocabulary(tmp_path / "one.json")
    assert read_vocabulary_file(tmp_path / "one.json").words == WORDS
    assert holds_vocabulary(tmp_path / "two.json")
    assert read_vocabulary_file(tmp_path / "two.json:de").words == WORDS


def test_tokenizer_json_is_no_vocabulary(tmp_path: Path, demo_folder: Path) -> None:
    assert not holds_vocabulary(demo_folder / "tokenizer.json")
    for content in ("{}", "[]", "{", "5", '{"model": {"a": 0}}', '{"a": 0, "b": {}}', "[" * 99999):
        (tmp_path / "a.json").write_text(content)
        assert not holds_vocabulary(tmp_path / "a.json")


def test_colon_in_the_name_of_a_file_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "vocab:de").write_text("a")
    assert split_name(tmp_path / "vocab:de") == (tmp_path / "vocab:de", None)
    assert split_name(tmp_path / "missing:de") == (tmp_path / "missing:de", None)


class Evil:
    """Would run a command where it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.marker}'",)


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_of_a_pickle_is_run(tmp_path: Path, protocol: int) -> None:
    marker, path = tmp_path / "ran", tmp_path / "vocab.pkl"
    for value in (Evil(marker), [Evil(marker)], {"a": Evil(marker)}, ["a", Evil(marker)]):
        path.write_bytes(pickle.dumps(value, protocol))
        with pytest.raises(TokenizerError):
            read_vocabulary_file(path)
    path.write_bytes(pickle.dumps({"words": ["a", "b"], "evil": Evil(marker)}, protocol))
    assert read_vocabulary_file(Path(f"{path}:words")).words == ["a", "b"]
    assert not marker.exists()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (5, "holds 5, not a vocabulary"),
        ([], "holds a vocabulary without words"),
        ({}, "holds a vocabulary without words"),
        (["a", "b", "a"], "'a' has the id 0 and the id 2"),
        (["a", "\ud800"], "id 1 is .*, which is not valid Unicode"),
        ([b"a"], "id 0 is b'a', which is not a string"),
        (["a", 7], "id 1 is 7, which is not a string"),
        ({"a": 0, "b": 2}, "no word has the id 1; the ids of 2 words must be 0 to 1"),
        ({"a": 1, "b": 2}, "no word has the id 0; the ids of 2 words must be 0 to 1"),
        ({"a": 0, "b": 0}, "'a' and 'b' both have the value 0; .* not word counts"),
        (collections.Counter("aabb"), "both have the value 2; .* not word counts"),
        ({"a": True}, "'a' has the value True, not an id"),
        ({"a": 0.0}, "'a' has the value 0.0, not an id"),
        ({"a": -1}, "'a' has the value -1, not an id"),
        ({"a": 10**30}, "not an id"),
        ({0: "a", "x": "b"}, "no word has the id 1; the ids of 2 words must be 0 to 1"),
        (Plain(words=["a"]), "'tests.*Plain' without any of the attributes itos, vocab, stoi"),
        ({"de": ["a"], "en": ["b"]}, "holds several entries: 'de', 'en'; .*, as in FILE:de"),
        ((["a"], ["b"]), "holds several entries: '0', '1'; .*, as in FILE:0"),
    ],
)
def test_value_that_is_no_vocabulary_is_named(tmp_path: Path, value: Any, message: str) -> None:
    path = tmp_path / "vocab.pkl"
    path.write_bytes(pickle.dumps(value))
    with pytest.raises(TokenizerError, match=message) as caught:
        read_vocabulary_file(path)
    assert "\n" not in str(caught.value)


def test_entry_that_is_missing_is_named_with_those_that_are_there() -> None:
    with pytest.raises(TokenizerError, match="no entry 'fr'; its entries are 'de', 'en'"):
        read_vocabulary_file(FIXTURES / "pair-0.18.pt:fr")
    with pytest.raises(TokenizerError, match="'de'; it holds a single value without a key"):
        read_vocabulary_file(FIXTURES / "vocab-0.18.pt:de")


def test_older_state_of_torchtexts_vocabulary_has_the_unknown_word_at_its_end(
    tmp_path: Path,
) -> None:
    content = (FIXTURES / "vocab-0.18.pkl").read_bytes()
    path = tmp_path / "vocab.pkl"
    path.write_bytes(content.replace(b"0.0.2", b"0.0.1").replace(b"de9", b"de8"))
    found = read_vocabulary_file(path)  # as vocab.cpp reads it: the last word is the unknown one
    assert found.words == GERMAN[:-1]
    assert found.default == GERMAN.index("de8")
    path.write_bytes(content.replace(b"0.0.2", b"0.0.9"))
    with pytest.raises(TokenizerError, match=r"format version '0\.0\.9'; save vocab.get_itos"):
        read_vocabulary_file(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "damaged pickle"),
        (b"\x80\x04K\x05", "damaged pickle"),
        (b"\x80\x02(K\x05.", "not a vocabulary"),
        (b"hello, no pickle", "damaged pickle"),
        (b"PK\3\4" + b"\0" * 40, "its archive has no end"),
        (b"\x80\x02ios\nsystem\n.", "damaged pickle|instruction"),
        (b"\x80\x02(ios\nsystem\n.", "instruction INST"),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fab.", "damaged pickle"),
        (b"\x80\x02r\xff\xff\xff\xff.", "damaged pickle"),
        # A dictionary copied by every other instruction.
        (
            pickle.dumps({str(i): i for i in range(9000)}, 2)[:-1]
            + b"q\xffccollections\nCounter\nq\xfe"
            + b"h\xfeh\xff\x85R" * 5000
            + b".",
            "more than 2000000 instructions",
        ),
        (b"\x80\x02" + b"]" * 2_100_000 + b".", "more than 2000000 instructions"),
        # A number of a million digits, and a long tuple, as keys again and again.
        (b"\x80\x02}\x8b" + (10**6).to_bytes(4, "little") + b"\1" * 10**6 + b"Ns.", "long tuples"),
        (b"\x80\x02}(" + b"K\1" * 99 + b"tNs.", "long tuples"),
        (b"\x80\x02}K\1K\1\x86K\1\x86Ns.", "nested tuples"),
    ],
)
def test_damaged_or_hostile_pickle_is_refused_in_one_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "vocab.pkl"
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match=message) as caught:
        read_vocabulary_file(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_pickle_that_is_too_large_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "vocab.pkl"
    with path.open("wb") as file:
        file.write(b"\x80\x04")
        file.truncate(2**26)
    with pytest.raises(TokenizerError, match="more than 33554432 bytes of pickle"):
        read_vocabulary_file(path)
