"""Rules of a SentencePiece model that transformers leaves out, and tokenizers that have them.

transformers 5 makes tokenizers of the library ``tokenizers`` of the pieces and scores of a model,
and of rules of the tokenizer's class. Of the model's own rules it takes the normalization alone,
and of mBART not even that. transformers 4 had tokenizers that split text by the model itself; many
models were trained with them.
"""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfexport.errors import Message, MissingDependencyError, Option, TfexportWarning
from tfexport.export.text.families.built import BuiltTokenizer
from tfexport.export.text.families.folder import ModelFolder
from tfexport.export.text.families.sentencepiece_models import built_pieces
from tfexport.export.text.families.tokenizer_parts import BPE, SentencePieceModel, read_pieces
from tfexport.runtime.text.added_tokens import AddedToken
from tfexport.runtime.text.piece_tokenizer import PieceTable
from tfexport.runtime.text.tokenizer_json import rules_of

MODEL_FILES = ("spiece.model", "sentencepiece.bpe.model")


def model_file(folder: ModelFolder) -> Path | None:
    """The SentencePiece model of a folder; None if it holds none."""
    return next((folder.path / name for name in MODEL_FILES if folder.has(name)), None)


def warn_of_ignored_rules(folder: ModelFolder, content: str) -> None:
    """Say which rules of a folder's model a tokenizer of the library does not have.

    Args:
        folder: of the model.
        content: the tokenizer that stands for it, as JSON.
    """
    path = model_file(folder)
    if path is None:
        return
    try:
        pieces = read_pieces(path)
    except MissingDependencyError:
        return  # a tokenizer.json needs no such library
    ignored = [*_ignored_rules(pieces, json.loads(content))]
    if ignored:
        warnings.warn(
            TfexportWarning(Message(
                f"{path}: transformers 5 leaves out rules of this model, and so does the bundle: "
                f"{'; '.join(ignored)}. If the model was trained with them, as by transformers 4, "
                "SentencePiece or fairseq, export with ", Option("tokenizer", str(path)),
                ", which keeps them.",
            )),
            stacklevel=2,
        )  # fmt: skip


def _ignored_rules(pieces: SentencePieceModel, tokenizer: dict[str, Any]) -> Iterator[str]:
    model = tokenizer["model"]
    normalizers = [*rules_of(tokenizer.get("normalizer"))]
    splits = [*rules_of(tokenizer.get("pre_tokenizer"))]
    if pieces.model_type == BPE and model["type"] != "BPE":
        yield "its pieces are made by merges, not chosen by their scores"
    if pieces.byte_fallback and not model.get("byte_fallback"):
        yield "unknown characters are bytes, not one unknown token"
    if pieces.charsmap and not any(rule.get("type") == "Precompiled" for rule in normalizers):
        yield "characters are normalized (full-width letters and ligatures are unknown without)"
    if not pieces.dummy_prefix and any(rule.get("prepend_scheme") == "always" for rule in splits):
        yield "no space is put before a text"
    if pieces.keeps_spaces and any(map(_joins_spaces, (*normalizers, *splits))):
        yield "several spaces in a row are kept"
    if pieces.suffix:
        yield "a space belongs to the word before it"


def _joins_spaces(rule: dict[str, Any]) -> bool:
    pattern = rule.get("pattern")
    several = isinstance(pattern, dict) and pattern.get("Regex") == " {2,}"
    return several or rule.get("type") == "WhitespaceSplit"


def built_by_model(folder: ModelFolder, path: Path, tokenizer: Any) -> BuiltTokenizer:
    """A tokenizer with the rules of a folder's model, and the ids of another one.

    Args:
        folder: of the model.
        path: of the SentencePiece model.
        tokenizer: of the library, which has the ids and the special tokens.
    """
    added = [
        AddedToken(
            token.content, number, token.lstrip, token.rstrip, token.single_word, token.special
        )
        for number, token in sorted(tokenizer.get_added_tokens_decoder().items())
    ]
    unknown = folder.named("unk", "<unk>") or "<unk>"
    clean: bool = folder.setting("clean_up_tokenization_spaces", False, bool)
    file = "sentencepiece.model"
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    table = PieceTable(file, file, vocabulary, unknown, added, clean_up=clean)
    return built_pieces(table, {file: path})
