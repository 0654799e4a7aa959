"""Tokenizers in JavaScript, for Node and for pages, against those in Python."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import open_example
from tests.support.node import tokens_in_node
from tests.support.scripts import script_texts
from tests.support.tokenizer_folders import (
    blenderbot_small_folder,
    byt5_folder,
    m2m100_folder,
    marian_folder,
    plbart_folder,
    train_pieces,
    write_tokenizers,
)
from tfexport.runtime.text.tokenizer import Tokenizer, load_tokenizer

pytestmark = pytest.mark.no_model

PAD, BOS, EOS, UNK = 0, 1, 2, 3
# Of two ways to cut a letter that is there three times, with equal scores, SentencePiece 0.2.3
# takes another than older versions, from which the package in JavaScript is built.
THRICE = re.compile(r"(.)\1\1")
PLAIN = [text for text in script_texts(600) if not THRICE.search(text)]
AWKWARD = [
    "ΛΟΓΟΣ ΟΔΟΣ", "İstanbul IŞIK", "ẞ STRASSE", "don't can't 'm . , ? ! it 's we 're",
    "</s> <unk> x<mask>y [UNK]", "a</s>b <pad> c", "  two  spaces ", "tab\tnew\nline\n two\n\n",
    "👍🏽 👨‍👩‍👧", "a\u200bb c\u200dd\u00ad", ">>fra<< Hello", ">>x", ">>< x",
    "🙂\ufffd\ufeff", "\x85 a", "__start__ a__end__", "snake_case 3.14", "(Hi), so.what?!",
]  # fmt: skip


def write_manifest(folder: Path, entries: dict[str, Any], **config: bool) -> None:
    """What ``loadTokenizers`` reads of a manifest."""
    special = {"pad": PAD, "bos": BOS, "eos": EOS, "start": BOS, "unk": UNK}
    flags = {"add_source_bos": False, "add_source_eos": False, **config}
    values = {"special_ids": special, "config": flags, "tokenizers": entries}
    (folder / "manifest.json").write_text(json.dumps(values))


def differences(folder: Path, kind: str, file: str, texts: Sequence[str]) -> list[Any]:
    """Texts whose ids, or the text of their ids, are others than in Python."""
    entry = {"kind": kind, "file": file}
    write_manifest(folder, {"source": entry, "target": entry})
    tokenizer = load_tokenizer(folder / file, kind, 2**31, UNK, hidden=(PAD, BOS, EOS))
    judge = [expected(tokenizer, text) for text in texts]
    rows = [{key: row[key] for key in ("ids", "text")} for row in tokens_in_node(folder, texts)]
    return [pair for pair in zip(texts, judge, rows, strict=True) if pair[1] != pair[2]]


def expected(tokenizer: Tokenizer, text: str) -> dict[str, Any]:
    ids = tokenizer.encode(text) if text.strip() else []
    return {"ids": ids, "text": tokenizer.decode(ids) if ids else ""}


FOLDERS: dict[str, Callable[[Path], Path]] = {
    "marian": marian_folder,
    "m2m100": m2m100_folder,
    "plbart": plbart_folder,
    "byt5": byt5_folder,
    "blenderbot-small": blenderbot_small_folder,
}


@pytest.mark.parametrize("family", FOLDERS)
def test_ids_of_a_family_are_those_in_python(tmp_path: Path, family: str) -> None:
    entry = write_tokenizers(FOLDERS[family](tmp_path / "folder"))["source"]
    written = tmp_path / "folder" / "written"
    assert differences(written, entry.kind, entry.file, [*PLAIN[:250], *AWKWARD]) == []


def test_pieces_of_the_other_side_are_joined_as_they_are(tmp_path: Path) -> None:
    """Marian's table has pieces of both models; the target's model joins them."""
    entries = write_tokenizers(marian_folder(tmp_path / "folder"))
    written = tmp_path / "folder" / "written"
    values = {side: {"kind": it.kind, "file": it.file} for side, it in entries.items()}
    write_manifest(written, values)
    target = load_tokenizer(written / entries["target"].file, "pieces", 500, None)
    rows = tokens_in_node(written, ["the house is small", "a WORLD 1234 日本"])
    assert [row["text"] for row in rows] == [target.decode(row["ids"]) for row in rows]
    assert any(token not in ("", " ") for row in rows for token in row["tokens"])


SENTENCEPIECE_OPTIONS: dict[str, dict[str, Any]] = {
    "unigram": {},
    "folded case": {"normalization_rule_name": "nmt_nfkc_cf"},
    "bytes": {"byte_fallback": True, "size": 400},
    "merges": {"model_type": "bpe"},
    "no prefix": {"add_dummy_prefix": False},
    "all spaces": {"remove_extra_whitespaces": False},
    "suffix": {"treat_whitespace_as_suffix": True},
    "symbols": {"user_defined_symbols": ["<mask>", "don't"]},
}


@pytest.mark.parametrize("name", SENTENCEPIECE_OPTIONS)
def test_ids_of_sentencepiece_are_those_in_python(tmp_path: Path, name: str) -> None:
    train_pieces(tmp_path / "spiece.model", **SENTENCEPIECE_OPTIONS[name])
    texts = [*PLAIN[:250], *AWKWARD]
    assert differences(tmp_path, "sentencepiece", "spiece.model", texts) == []


def _word_level(tokenizers: Any) -> Any:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(unk_token="<unk>"))
    steps = [tokenizers.normalizers.NFKC(), tokenizers.normalizers.Lowercase()]
    tokenizer.normalizer = tokenizers.normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return tokenizer, tokenizers.trainers.WordLevelTrainer


def _word_piece(tokenizers: Any) -> Any:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    return tokenizer, tokenizers.trainers.WordPieceTrainer


def _byte_level(tokenizers: Any) -> Any:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer, tokenizers.trainers.BpeTrainer


def _metaspace(tokenizers: Any) -> Any:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = tokenizers.normalizers.NFC()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    return tokenizer, tokenizers.trainers.BpeTrainer


@pytest.mark.parametrize("make", [_word_level, _word_piece, _byte_level, _metaspace])
def test_ids_of_a_tokenizer_json_are_those_in_python(tmp_path: Path, make: Any) -> None:
    tokenizer, trainer = make(pytest.importorskip("tokenizers"))
    first = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
    options = {"special_tokens": first, "vocab_size": 900, "show_progress": False}
    tokenizer.train_from_iterator([*PLAIN[250:], *AWKWARD], trainer(**options))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = [*PLAIN[:250], *AWKWARD]
    assert differences(tmp_path, "tokenizers", "tokenizer.json", texts) == []


@pytest.mark.parametrize("rules", ["nmt_nfkc", "nmt_nfkc_cf"])
def test_ids_of_a_charsmap_are_those_of_sentencepiece(tmp_path: Path, rules: str) -> None:
    """A tokenizer.json such as T5's: in Python, in JavaScript, and by the model that it is of."""
    tokenizers = pytest.importorskip("tokenizers")
    sentencepiece = pytest.importorskip("sentencepiece")
    from sentencepiece import sentencepiece_model_pb2 as proto

    train_pieces(tmp_path / "spiece.model", 400, normalization_rule_name=rules)
    model = proto.ModelProto()  # type: ignore[attr-defined]
    model.ParseFromString((tmp_path / "spiece.model").read_bytes())
    pieces = [(piece.piece, piece.score) for piece in model.pieces]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 0))
    tokenizer.normalizer = tokenizers.normalizers.Sequence(
        [
            tokenizers.normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap),
            tokenizers.normalizers.Strip(left=False, right=True),
            tokenizers.normalizers.Replace(tokenizers.Regex(" {2,}"), " "),
        ]
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert differences(tmp_path, "tokenizers", "tokenizer.json", PLAIN) == []
    whole = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    rows = tokens_in_node(tmp_path, PLAIN)
    assert [row["ids"] for row in rows] == [whole.encode(text) for text in PLAIN]


IN_A_PAGE = """
    const [texts, done] = arguments;
    (async () => {
      const { loadTokenizers, sourceTokens } = await import("tfexport/texts.mjs");
      const open = async (name) => (await fetch(`model.bundle/${name}`)).arrayBuffer();
      const files = {
        text: async (name) => new TextDecoder().decode(await open(name)),
        bytes: async (name) => new Uint8Array(await open(name)),
      };
      const manifest = JSON.parse(await files.text("manifest.json"));
      const { source, target } = await loadTokenizers(manifest, files);
      return texts.map((text) => {
        const ids = sourceTokens(manifest, source, text).map(({ id }) => id);
        return { ids, text: target.decode(ids) };
      });
    })().then(done, (error) => done(String(error)));
"""


def test_pages_read_pieces_without_a_bundler(tmp_path: Path) -> None:
    """In the page of the web example, whose map of imports finds the packages."""
    entry = write_tokenizers(marian_folder(tmp_path / "folder"))["source"]
    written = tmp_path / "folder" / "written"
    values = {"kind": entry.kind, "file": entry.file}
    write_manifest(written, {"source": values, "target": values})
    tokenizer = load_tokenizer(written / entry.file, entry.kind, 2**31, UNK)
    texts = [*PLAIN[:100], *AWKWARD]
    with open_example(tmp_path / "page", written, "onnxruntime") as page:
        rows = page.execute_async_script(IN_A_PAGE, texts)
    assert rows == [expected(tokenizer, text) for text in texts]


def test_end_token_of_byt5_is_not_added_twice(tmp_path: Path) -> None:
    entry = write_tokenizers(byt5_folder(tmp_path / "folder"))["source"]
    written = tmp_path / "folder" / "written"
    values = {"kind": entry.kind, "file": entry.file}
    write_manifest(written, {"source": values, "target": values}, add_source_eos=True)
    manifest = json.loads((written / "manifest.json").read_text())
    manifest["special_ids"]["eos"] = 1
    (written / "manifest.json").write_text(json.dumps(manifest))
    rows = tokens_in_node(written, ["a", "a</s>", "a</s></s>", "</s>", " "])
    assert [row["ids"] for row in rows] == [[100, 1], [100, 1], [100, 1, 1], [1], []]


def test_what_is_only_in_python_is_refused_by_name(tmp_path: Path) -> None:
    entry = {"kind": "moses_bpe", "file": "source-bpe.json"}
    write_manifest(tmp_path, {"source": entry, "target": entry})
    with pytest.raises(AssertionError, match="is of the kind moses_bpe, which there is only in Py"):
        tokens_in_node(tmp_path, ["a"])


def test_half_of_a_character_is_refused(tmp_path: Path) -> None:
    entry = write_tokenizers(byt5_folder(tmp_path / "folder"))["source"]
    written = tmp_path / "folder" / "written"
    values = {"kind": entry.kind, "file": entry.file}
    write_manifest(written, {"source": values, "target": values})
    assert tokens_in_node(written, ["a\ud800"]) == [{"error": "a text has half of a character"}]
