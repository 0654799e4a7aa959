"""Tokenizer files: changed, damaged, of another kind."""

import functools
import io
import json
import pickle
from pathlib import Path
from random import Random
from typing import Any

import sentencepiece
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from tests.fuzz.mutate import allowed, any_type, dumps, mutate_bytes, mutate_json, text
from tfexport.export.text.tokenizer_files import TokenizerFiles
from tfexport.model_src.config import TransformerConfig
from tfexport.runtime.text.tokenizer import load_tokenizer

SIZE = 40


def prepare(bundle: Path) -> None:
    """Make one sound tokenizer of every kind."""
    _files()


@functools.cache
def _files() -> dict[str, bytes]:
    words = ["<unk>", *(f"w{i}" for i in range(1, 20))]
    ids = {word: i for i, word in enumerate(words)}
    pieces = {char: i for i, char in enumerate("<unk>▁abcdefghijw0123456789")}
    made = {
        "level": Tokenizer(models.WordLevel(ids, unk_token="<unk>")),
        "piece": Tokenizer(models.WordPiece({**ids, "##a": 20}, unk_token="<unk>")),
        "bpe": Tokenizer(models.BPE({**pieces, "ab": 30}, [("a", "b")])),
        "unigram": Tokenizer(models.Unigram([(word, -1.0) for word in words], 0, False)),
    }
    for tokenizer in made.values():
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
        tokenizer.decoder = decoders.Metaspace()
        tokenizer.add_special_tokens(["<pad>"])
    files = {f"{name}.json": t.to_str().encode() for name, t in made.items()}
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([f"ab{i} cd{i}" for i in range(100)]), model_writer=model,
        vocab_size=SIZE, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    return {**files, "sp.model": model.getvalue(), "words.txt": "\n".join(words).encode()}


def run(rng: Random, scratch: Path, bundle: Path) -> None:
    """Load a file, encode and decode with it."""
    name = rng.choice(sorted(_files()))
    content, path = _files()[name], scratch / name
    if name.endswith(".json") and rng.random() < 0.8:
        content = _changed(rng, content)
    elif rng.random() < 0.8:
        content = mutate_bytes(rng, content)
    elif rng.random() < 0.5:
        content = rng.choice([b"", b"{}", b"[" * 100_000, pickle.dumps({"a": 1}), b'{"a": 0}'])
    path.write_bytes(content)
    if rng.random() < 0.3:
        _check_for_export(rng, path)
        return
    kind = {"json": "tokenizers", "model": "sentencepiece"}.get(path.suffix[1:], "words")
    if rng.random() < 0.1:
        kind = rng.choice(["tokenizers", "sentencepiece", "words", "other"])
    with allowed():
        tokenizer = load_tokenizer(path, kind, rng.choice([SIZE, 10**6, 5]), rng.choice([None, 0]))
        for _ in range(3):
            line = rng.choice(["w1 w2", "ab1 cd3", text(rng)])
            ids = [rng.randrange(SIZE) for _ in range(4)]
            if rng.random() < 0.2:
                ids = any_type(rng)
            for act in (
                lambda line=line: tokenizer.encode(_utf8(line)),
                lambda line=line: tokenizer.split(_utf8(line)),
                lambda ids=ids: tokenizer.decode(ids),
                lambda line=line: tokenizer.find(line),
                lambda: tokenizer.piece(rng.randrange(SIZE)),
                lambda: tokenizer.size,
            ):
                with allowed():
                    act()


def _utf8(line: str) -> str:
    """What the translator has made sure of before it asks a tokenizer."""
    return line.encode("utf-8", "replace").decode()


def _changed(rng: Random, content: bytes) -> bytes:
    tree: Any = json.loads(content)
    if rng.random() < 0.2:
        tree["normalizer"] = {
            "type": "Precompiled",
            "precompiled_charsmap": rng.choice(["AAAA", "", "?"]),
        }
    for _ in range(rng.choice([1, 1, 2, 3])):
        if isinstance(tree, dict | list):
            tree = mutate_json(rng, tree)
    return dumps(tree).encode("utf-8", "surrogatepass")


def _check_for_export(rng: Random, path: Path) -> None:
    config = TransformerConfig(
        8, 2, 1, 1, 12, source_vocab_size=SIZE, target_vocab_size=rng.choice([SIZE, 20]), pad_id=0,
        bos_id=1, eos_id=2, unk_id=rng.choice([None, 0]),
    )  # fmt: skip
    with allowed():
        TokenizerFiles(path, path).check(config)
