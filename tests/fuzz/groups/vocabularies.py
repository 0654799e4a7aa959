"""Vocabularies of training code: pickles of every protocol, torch's archives, JSON; damaged too."""

import collections
import io
import json
import os
import pickle
from pathlib import Path
from random import Random
from typing import Any

import torch

from tests.fuzz.bundles import command
from tests.fuzz.mutate import allowed, any_type, dumps, mutate_bytes, mutate_json, number, text
from tests.support.paths import REPOSITORY
from tfexport.export.text.tokenizer_files import TokenizerFiles
from tfexport.export.text.vocabularies import holds_vocabulary, read_vocabulary_file
from tfexport.model_src.config import TransformerConfig
from tfexport.runtime.text.tokenizer import load_tokenizer
from tfexport.runtime.text.vocabulary import Vocabulary

WORDS = ["<unk>", "<pad>", "<bos>", "<eos>", *(f"w{i}" for i in range(4, 13))]
SPLITS = ("whitespace", "basic_english", "characters", "spacy:de", "spacy:", "other", "", None)
FIXTURES = sorted((REPOSITORY / "tests" / "fixtures" / "torchtext").glob("*.p[tk]*"))
# Instructions of pickles, to be put anywhere: marks, memos, calls, containers, large numbers.
INSTRUCTIONS = (
    b"(", b".", b"0", b"1", b"2", b"}", b"]", b")", b"\x8f", b"t", b"l", b"d", b"a", b"e", b"s",
    b"u", b"R", b"b", b"o", b"\x81", b"\x92", b"\x85", b"\x86", b"\x87", b"\x90", b"\x91", b"\x93",
    b"\x94", b"q\0", b"h\0", b"r\xff\xff\xff\xff", b"K\1", b"J\xff\xff\xff\x7f", b"\x8a\x08" * 2,
    b"\x8b\xff\xff\xff\x7f", b"X\xff\xff\xff\x7f", b"\x8d" + b"\xff" * 7 + b"\x7f", b"Q",
    b"cos\nsystem\n", b"ccollections\nCounter\n", b"ccollections\nOrderedDict\n",
    b"ccollections\ndefaultdict\n", b"ctorchtext.vocab\nVocab\n", b"c__builtin__\neval\n",
)  # fmt: skip


class Held:
    """An object of a class that a reader does not have, or that would do harm."""

    def __init__(self, state: Any, harmful: bool) -> None:
        self.state, self.harmful = state, harmful

    def __reduce__(self) -> Any:
        if self.harmful:
            return os._exit, (9,)  # which the runner would see
        return collections.OrderedDict, (), self.state if isinstance(self.state, dict) else None


def prepare(bundle: Path) -> None:
    """Read one sound vocabulary, and import what the command does."""
    for path in FIXTURES:
        with allowed():
            read_vocabulary_file(path)
    command("onnx", "--checkpoint", FIXTURES[0], "-o", bundle.parent / "never.bundle")


def run(rng: Random, scratch: Path, bundle: Path) -> None:
    """Read a file as a vocabulary, check it for an export, or read one out of a bundle."""
    path = scratch / rng.choice(["v.pt", "v.pkl", "v.json", "v.txt", "v"])
    if rng.random() < 0.2:
        _read_out_of_a_bundle(rng, path)
        return
    path.write_bytes(_content(rng, path))
    named = Path(f"{path}:{rng.choice(['de', 'en', '0', 'w4', text(rng)])}")
    chosen = named if rng.random() < 0.4 else path
    with allowed():
        found = read_vocabulary_file(chosen)
        assert len(set(found.words)) == len(found.words)
        assert all(isinstance(word, str) for word in found.words)
    with allowed(UserWarning):
        holds_vocabulary(chosen)
        size = rng.choice([len(WORDS), 17, 5])
        config = TransformerConfig(
            8, 2, 1, 1, 12, source_vocab_size=size, target_vocab_size=size, pad_id=1, bos_id=2,
            eos_id=3, unk_id=rng.choice([None, 0]),
        )  # fmt: skip
        files = TokenizerFiles(chosen, chosen, rng.choice(SPLITS), rng.choice(SPLITS))
        source, _ = files.load(config)
        files.check(config)
        source.decode(source.encode("w4 w5, nope"))
        files.copy(scratch)


def _content(rng: Random, path: Path) -> bytes:
    kind = rng.randrange(8)
    if kind == 0:
        return mutate_bytes(rng, rng.choice(FIXTURES).read_bytes())
    if kind == 1:
        return _spliced(rng, rng.choice(FIXTURES).read_bytes())
    if kind == 2 or path.suffix == ".json":
        tree = mutate_json(rng, json.loads(json.dumps(_json_value(rng))))
        return dumps(tree).encode("utf-8", "surrogatepass")
    value = _value(rng)
    try:
        if kind == 3:
            file = io.BytesIO()
            torch.save(value, file, _use_new_zipfile_serialization=rng.random() < 0.5)
            content = file.getvalue()
        else:
            content = pickle.dumps(value, rng.randrange(6))
    except Exception:  # of a value that cannot be pickled; then there is nothing to read
        return b"\x80\x04N."
    if rng.random() < 0.4:
        return rng.choice([mutate_bytes, _spliced])(rng, content)
    return content


def _spliced(rng: Random, content: bytes) -> bytes:
    """Instructions put between others, some of them very often."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 3])):
        at = rng.randrange(len(data) + 1)
        part = b"".join(rng.choice(INSTRUCTIONS) for _ in range(rng.choice([1, 2, 5])))
        data[at:at] = part * rng.choice([1, 1, 10, 3000])
    return bytes(data)


def _json_value(rng: Random) -> Any:
    ids = {word: i for i, word in enumerate(WORDS)}
    words = dict(enumerate(WORDS))
    return rng.choice([WORDS, ids, words, {"de": ids, "en": WORDS}, [WORDS, ids]])


def _value(rng: Random) -> Any:
    value: Any = _json_value(rng)
    kind = rng.randrange(8)
    if kind == 0 and isinstance(value, dict):
        value = rng.choice([collections.OrderedDict, collections.Counter])(value)
    elif kind == 1:
        value = Held(value, harmful=rng.random() < 0.5)
    elif kind == 2:
        value = {"de": Held({"itos": value}, harmful=False), "en": Held({}, harmful=True)}
    elif kind == 3 and isinstance(value, dict):
        value[rng.choice([number(rng), text(rng), None, (1, "a"), "de"])] = any_type(rng)
    elif kind == 4:
        for _ in range(rng.choice([5, 100, 300])):
            value = {"de": value} if rng.random() < 0.5 else [value]
    elif kind == 5 and isinstance(value, list):
        value = [*value, rng.choice([value, number(rng), text(rng)])]
        value.append(value)
    return value


def _read_out_of_a_bundle(rng: Random, path: Path) -> None:
    Vocabulary(WORDS, rng.choice(["whitespace", "basic_english", "characters"])).write(path)
    if rng.random() < 0.5:
        path.write_bytes(mutate_bytes(rng, path.read_bytes()))
    else:
        tree = mutate_json(rng, json.loads(path.read_text()))
        path.write_bytes(dumps(tree).encode("utf-8", "surrogatepass"))
    with allowed():
        tokenizer = load_tokenizer(path, "vocabulary", rng.choice([len(WORDS), 3]), 0)
        tokenizer.decode(tokenizer.encode("w4 w5, nope"))
