"""The parts of which a tokenizer of the library ``tokenizers`` is made, read from a folder."""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfexport.errors import TokenizerError, shown
from tfexport.export.text.families.folder import ModelFolder
from tfexport.export.text.families.sentencepiece_file import CONTROL, USER_DEFINED, read_pieces
from tfexport.runtime.text.libraries import failures_as

Scored = tuple[str, float]


@dataclass(frozen=True)
class Parts:
    """A vocabulary and the rules of normalization.

    Attributes:
        path: of the file they are from, for messages.
        paths: all files.
        scored: the pieces of a Unigram model, by id; none of another.
        vocabulary: piece to id of a BPE model; none of another.
        merges: of a BPE model.
        charsmap: the compiled rules of normalization; None if there are none.
        in_order: the pieces are already in the order of the model's ids: from a tokenizer.json.
        marked: control and user-defined pieces of a .model file, with whether they are special;
            None of another file.
    """

    path: Path
    paths: tuple[Path, ...]
    scored: list[Scored] = field(default_factory=list)
    vocabulary: dict[str, int] = field(default_factory=dict)
    merges: list[tuple[str, str]] = field(default_factory=list)
    charsmap: bytes | None = None
    in_order: bool = True
    marked: Sequence[tuple[str, bool]] | None = None


def read_tokenizer_json(folder: ModelFolder, kind: str) -> Parts:
    """The parts of a tokenizer.json.

    Args:
        folder: with the file.
        kind: of its model, "Unigram" or "BPE".

    Raises:
        TokenizerError: it is damaged, or of another kind.
    """
    path = folder.path / "tokenizer.json"
    model = folder.read_object("tokenizer.json").get("model")
    found = model.get("type") if isinstance(model, dict) else None
    if not isinstance(model, dict) or found != kind:
        raise TokenizerError(
            f"{path}: its model is of type {shown(found)}; the tokenizer of this model is {kind}. "
            "It belongs to another model."
        )
    charsmap = _charsmap(folder)
    vocabulary: Any = model.get("vocab")
    with failures_as(TokenizerError, lambda: f"{path}: not the vocabulary of a {kind} model"):
        if kind == "Unigram":
            scored = [(str(piece), float(score)) for piece, score in vocabulary]
            return Parts(path, (path,), scored=scored, charsmap=charsmap)
        merges = [_merge(merge) for merge in model["merges"]]
        ids = {str(piece): int(number) for piece, number in vocabulary.items()}
    return Parts(path, (path,), vocabulary=ids, merges=merges, charsmap=charsmap)


def _merge(value: Any) -> tuple[str, str]:
    left, right = value.split(" ") if isinstance(value, str) else value
    return left, right


def _charsmap(folder: ModelFolder) -> bytes | None:
    """The compiled rules of a tokenizer.json, the first if there are several."""
    normalizer = folder.read_object("tokenizer.json").get("normalizer")
    normalizers = (
        normalizer.get("normalizers", [normalizer]) if isinstance(normalizer, dict) else []
    )
    for each in normalizers if isinstance(normalizers, list) else []:
        if isinstance(each, dict) and each.get("type") == "Precompiled":
            try:
                return base64.b64decode(each["precompiled_charsmap"], validate=True)
            except (KeyError, TypeError, binascii.Error) as error:
                path = folder.path / "tokenizer.json"
                raise TokenizerError(f"{path}: no rules of normalization: {error}") from None
    return None


def read_model_file(folder: ModelFolder, name: str) -> Parts:
    """The parts of a SentencePiece .model.

    Raises:
        TokenizerError: it is none.
    """
    path = folder.path / name
    found = read_pieces(path)
    return Parts(
        path,
        (path,),
        scored=[(piece, score) for piece, score, _ in found.pieces],
        charsmap=found.charsmap,
        in_order=False,
        marked=[
            (piece, kind == CONTROL)
            for piece, _, kind in found.pieces
            if kind in (CONTROL, USER_DEFINED)
        ],
    )


def read_merges(folder: ModelFolder, library: Any) -> Parts:
    """The parts of vocab.json and merges.txt.

    Raises:
        TokenizerError: one is missing or unreadable.
    """
    names = ("vocab.json", "merges.txt")
    folder.need(*names)
    paths = tuple(folder.path / name for name in names)
    folder.read_vocabulary("vocab.json")
    with failures_as(TokenizerError, lambda: f"{paths[1]}: not the merges of vocab.json"):
        vocabulary, merges = library.models.BPE.read_file(*map(str, paths))
    return Parts(paths[0], paths, vocabulary=vocabulary, merges=merges)
