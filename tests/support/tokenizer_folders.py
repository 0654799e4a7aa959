"""Folders with small trained tokenizers, as each family of transformers has them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers

from tests.support.awkward_text import corpus
from tfexport.bundle import TokenizerEntry
from tfexport.export.text.families.tokenizer_parts import read_pieces
from tfexport.export.text.tokenizer_files import choose_tokenizers
from tfexport.model_src.config import TransformerConfig
from tfexport.runtime.text.tokenizer import Tokenizer, load_tokenizer


def train_pieces(path: Path, size: int = 120, **options: Any) -> Path:
    """A SentencePiece model of ``size`` pieces, trained on a small corpus."""
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus()), model_writer=file, vocab_size=size,
            hard_vocab_limit=False, minloglevel=2, num_threads=1, **options,
        )  # fmt: skip
    return path


def pieces_of(path: Path) -> list[str]:
    """The pieces of a SentencePiece model, in the order of its ids."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [model.id_to_piece(i) for i in range(model.get_piece_size())]


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def write_tokenizers(folder: Path, size: int = 500) -> dict[str, TokenizerEntry]:
    """The tokenizers that an export finds in a folder, written to its folder ``written``."""
    files = choose_tokenizers(folder=folder)
    config = TransformerConfig(
        8, 2, 1, 1, 12, pad_id=0, bos_id=0, eos_id=0, source_vocab_size=size, target_vocab_size=size
    )
    files.check(config)
    bundle = folder / "written"
    bundle.mkdir(exist_ok=True)
    return files.copy(bundle)


def load_both(folder: Path, size: int = 500) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of ``write_tokenizers``, read again."""
    entries, bundle = write_tokenizers(folder, size), folder / "written"
    source, target = (
        load_tokenizer(bundle / entries[side].file, entries[side].kind, size, None)
        for side in ("source", "target")
    )
    return source, target


def marian_folder(folder: Path, separate: bool = False, **settings: Any) -> Path:
    """Marian: two models, and vocabularies that lack some of their pieces."""
    folder.mkdir(exist_ok=True)
    train_pieces(folder / "source.spm", 100)
    train_pieces(folder / "target.spm", 140, model_type="bpe")
    source, target = pieces_of(folder / "source.spm"), pieces_of(folder / "target.spm")
    special = {"</s>": None, "<unk>": None}
    codes = [] if separate else [">>fra<<", ">>deu<<"]
    joint = [*special, *codes, *reversed(source[3:90]), *([] if separate else target[5:])]
    vocabulary = [*dict.fromkeys(joint), "<pad>"]
    write_json(folder / "vocab.json", {piece: i for i, piece in enumerate(vocabulary)})
    if separate:
        other = [*special, *target[4:130], "<pad>"]
        write_json(folder / "target_vocab.json", {piece: i for i, piece in enumerate(other)})
        settings["separate_vocabs"] = True
    write_json(
        folder / "tokenizer_config.json", {"source_lang": "en", "target_lang": "mul", **settings}
    )
    write_json(
        folder / "config.json",
        {"model_type": "marian", "share_encoder_decoder_embeddings": not separate},
    )
    return folder


def m2m100_folder(folder: Path, **settings: Any) -> Path:
    """M2M100: a model, and a vocabulary that lacks some of its pieces."""
    folder.mkdir(exist_ok=True)
    train_pieces(folder / "sentencepiece.bpe.model", 110, model_type="bpe")
    pieces = pieces_of(folder / "sentencepiece.bpe.model")
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *reversed(pieces[3:100])]
    write_json(folder / "vocab.json", {piece: i for i, piece in enumerate(vocabulary)})
    if settings:
        write_json(folder / "tokenizer_config.json", settings)
    write_json(folder / "config.json", {"model_type": "m2m_100"})
    return folder


def plbart_folder(folder: Path, **settings: Any) -> Path:
    """PLBart: a model alone."""
    folder.mkdir(exist_ok=True)
    train_pieces(folder / "sentencepiece.bpe.model", 110)
    if settings:
        write_json(folder / "tokenizer_config.json", settings)
    write_json(folder / "config.json", {"model_type": "plbart"})
    return folder


def model_file_folder(folder: Path, model_type: str, name: str, **settings: Any) -> Path:
    """A folder with a SentencePiece model alone, of a family that moves its ids or not."""
    folder.mkdir(exist_ok=True)
    moved = "sentencepiece" not in name
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1} if moved else {}
    train_pieces(folder / name, 130, **ids)
    write_json(folder / "tokenizer_config.json", settings)
    write_json(folder / "config.json", {"model_type": model_type})
    return folder


def madlad_folder(folder: Path) -> Path:
    """MADLAD-400: a model of T5's class, with pieces for the target languages and other ids."""
    folder.mkdir(exist_ok=True)
    pieces = ["<2de>", "<2en>", "<2zh_Hant>"]
    ids = {"unk_id": 0, "pad_id": 1, "eos_id": 2, "bos_id": -1}
    train_pieces(folder / "spiece.model", 130, **ids, user_defined_symbols=pieces)
    special = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    # Without the list of special tokens, transformers 5 takes these pieces for such tokens.
    settings = {
        "tokenizer_class": "T5Tokenizer", "extra_ids": 0, "additional_special_tokens": [], **special
    }  # fmt: skip
    write_json(folder / "tokenizer_config.json", settings)
    write_json(folder / "config.json", {"model_type": "t5"})
    return folder


def merges_folder(folder: Path, model_type: str, first: Sequence[str], **settings: Any) -> Path:
    """A folder with vocab.json and merges.txt of a byte-level BPE."""
    folder.mkdir(exist_ok=True)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=[*first],
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.model.save(str(folder))
    write_json(folder / "tokenizer_config.json", settings)
    write_json(folder / "config.json", {"model_type": model_type})
    return folder


def saved_again(judge: Any, old: Path, folder: Path) -> Path:
    """The folder that transformers writes of a tokenizer."""
    judge.save_pretrained(folder)
    (folder / "config.json").write_bytes((old / "config.json").read_bytes())
    return folder


def tokenizer_json_folder(
    folder: Path, model_type: str, tokenizer: tokenizers.Tokenizer, **settings: Any
) -> Path:
    """A folder with a tokenizer.json."""
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", settings)
    write_json(folder / "config.json", {"model_type": model_type})
    return folder


def spaced_bpe(first: Sequence[str], last: Sequence[str] = ()) -> tokenizers.Tokenizer:
    """A BPE whose pieces mark the beginnings of words, with special tokens around its ids."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=150, special_tokens=[*first], show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    added = [tokenizers.AddedToken(token, special=True) for token in last]
    tokenizer.add_special_tokens(added)
    return tokenizer


def charsmap_of(folder: Path) -> bytes:
    """The rules of normalization of a SentencePiece model that is trained for it."""
    rules = read_pieces(train_pieces(folder / "rules.model")).charsmap
    assert rules is not None
    return rules


def byt5_folder(folder: Path, **settings: Any) -> Path:
    """byT5: no file but the configuration, or settings alone."""
    folder.mkdir(exist_ok=True)
    if settings:
        write_json(
            folder / "tokenizer_config.json", {"tokenizer_class": "ByT5Tokenizer", **settings}
        )
    write_json(folder / "config.json", {"model_type": "t5", "tokenizer_class": "ByT5Tokenizer"})
    return folder


def words_bpe(end: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Pieces and merges of words that end in ``end``."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(end_of_word_suffix=end))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=190, show_progress=False, end_of_word_suffix=end
    )
    tokenizer.train_from_iterator([line.lower() for line in corpus()], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def blenderbot_small_folder(folder: Path, **settings: Any) -> Path:
    """blenderbot-small: pieces that go on end in @@."""
    folder.mkdir(exist_ok=True)
    pieces, merges = words_bpe("</w>")
    marked = [p.removesuffix("</w>") if p.endswith("</w>") else f"{p}@@" for p in pieces]
    special = ["__null__", "__start__", "__end__", "__unk__", "__newln__"]
    vocabulary = {piece: i for i, piece in enumerate([*special, *dict.fromkeys(marked)])}
    write_json(folder / "vocab.json", vocabulary)
    lines = ["#version: 0.2", *(" ".join(merge) for merge in merges), ""]
    (folder / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    write_json(folder / "tokenizer_config.json", settings)
    write_json(folder / "config.json", {"model_type": "blenderbot-small"})
    return folder


def fsmt_folder(folder: Path, **settings: Any) -> Path:
    """FSMT: a vocabulary for each side, and merges for both."""
    folder.mkdir(exist_ok=True)
    pieces, merges = words_bpe("</w>")
    first = ["<s>", "<pad>", "</s>", "<unk>"]
    for name, ordered in (("src", [*pieces]), ("tgt", [*reversed(pieces)][:150])):
        vocabulary = {piece: i for i, piece in enumerate([*first, *ordered])}
        write_json(folder / f"vocab-{name}.json", vocabulary)
    lines = [*(f"{first} {second} {7}" for first, second in merges), ""]
    (folder / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    write_json(folder / "tokenizer_config.json", {"langs": ["en", "de"], **settings})
    write_json(folder / "config.json", {"model_type": "fsmt", "langs": ["en", "de"]})
    return folder
