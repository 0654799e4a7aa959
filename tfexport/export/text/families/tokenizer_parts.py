"""The parts of which a tokenizer of the library ``tokenizers`` is made, read from a folder."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfexport.errors import TokenizerError, shown
from tfexport.export.text.families.folder import NAMED, ModelFolder
from tfexport.runtime.text.libraries import failures_as, missing_library, read_file
from tfexport.runtime.text.vocabulary import describe_foreign

# Special tokens of the library ``tokenizers``, added as transformers does.


_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of a tokenizer's class.

    Attributes:
        defaults: names such as "eos" to tokens.
        mask: how the mask is found in text, as keywords of AddedToken; None for the default.
        extra: unnamed tokens, if tokenizer_config.json lists none.
    """

    defaults: Mapping[str, str]
    mask: Mapping[str, bool] | None = None
    extra: Sequence[Any] = ()


def add_special_tokens(
    tokenizer: Any, library: Any, folder: ModelFolder, special: SpecialTokens
) -> None:
    """Add the special tokens that a folder and the tokenizer's class name.

    Args:
        tokenizer: a tokenizer of the library.
        library: the module ``tokenizers``.
        folder: the folder of the model.
        special: the special tokens of the class.

    Raises:
        TokenizerError: the folder lists a token with an id that it does not get.
    """
    there = tokenizer.get_added_tokens_decoder()
    same = {repr(token) for token in there.values()}
    listed = {n: _added(library, values) for n, values in sorted(folder.listed.items())}
    adding = [token for token in listed.values() if repr(token) not in same]
    known = {token.content for token in (*there.values(), *adding)}
    by_content = {token.content: token for token in listed.values()}
    named = _named(library, folder, special, by_content)
    unnamed = special.extra if folder.extra_listed is None else folder.extra_listed
    for token in (*named, *(_given(library, folder, value) for value in unnamed)):
        if _content(token) not in known and token not in adding:
            adding.append(token)
    names = {_content(token) for token in named}
    tokens = []
    for token in adding:
        added = library.AddedToken(token, special=True) if isinstance(token, str) else token
        if not added.special and added.content in names:
            added.special = True
        tokens.append(added)
    tokenizer.add_tokens(tokens)
    for number, token in listed.items():
        found = tokenizer.token_to_id(token.content)
        if found != number:
            raise TokenizerError(
                f"{folder.path}: the added token {token.content!r} is listed with the id {number}, "
                f"but would get {found} after the vocabulary."
            )


def _named(
    library: Any, folder: ModelFolder, special: SpecialTokens, listed: Mapping[str, Any]
) -> list[Any]:
    """The tokens with a name, in the order of transformers."""
    found = []
    for name in NAMED:
        value: Any = special.defaults.get(name)
        if f"{name}_token" in folder.settings:
            value = folder.settings[f"{name}_token"]
            if value is not None:
                value = _given(library, folder, value)
                value = listed.get(_content(value), value)
        if name == "mask" and isinstance(value, str) and special.mask is not None:
            value = library.AddedToken(value, **special.mask)
        if value is not None:
            found.append(value)
    found += [
        _given(library, folder, value)
        for key, value in folder.settings.items()
        if key.endswith("_token") and key.removesuffix("_token") not in NAMED
        if isinstance(value, str)
    ]
    return found


def _given(library: Any, folder: ModelFolder, value: Any) -> Any:
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        return _added(library, {"special": True, **value} if "__type" not in value else value)
    if isinstance(value, str) or hasattr(value, "content"):
        return value
    raise TokenizerError(f"{folder.path}: a special token is neither a string nor a token.")


def _added(library: Any, values: Mapping[str, Any]) -> Any:
    flags = {flag: values[flag] for flag in _FLAGS if isinstance(values.get(flag), bool)}
    return library.AddedToken(values["content"], **flags)


def _content(token: Any) -> str:
    content: str = token if isinstance(token, str) else token.content
    return content


UNIGRAM, BPE = 1, 2  # types of models
CONTROL, USER_DEFINED = 3, 4  # types of pieces


@dataclass(frozen=True)
class SentencePieceModel:
    """The content of a SentencePiece model.

    Attributes:
        pieces: by id: the piece, its score and its type.
        charsmap: the compiled rules of normalization; None if there are none.
        model_type: UNIGRAM, BPE or another.
        unknown: the id of the unknown piece.
        byte_fallback: whether unknown characters are bytes.
        dummy_prefix: whether a space is put before a text.
        keeps_spaces: whether several spaces in a row stay.
        suffix: whether a space belongs to the word before it.
    """

    pieces: list[tuple[str, float, int]]
    charsmap: bytes | None
    model_type: int
    unknown: int
    byte_fallback: bool
    dummy_prefix: bool
    keeps_spaces: bool
    suffix: bool


def read_pieces(path: Path) -> SentencePieceModel:
    """Read a .model file.

    Raises:
        TokenizerError: it is not a SentencePiece model.
        MissingDependencyError: sentencepiece or protobuf is not installed.
    """
    try:
        from sentencepiece import sentencepiece_model_pb2 as messages
    except ImportError:
        raise missing_library(path, "sentencepiece") from None
    library: Any = messages  # made at run time, so without types
    proto = library.ModelProto()
    content = read_file(path)
    with failures_as(
        TokenizerError, lambda: f"{path}: {describe_foreign(path, 'a SentencePiece model')}"
    ):
        proto.ParseFromString(content)
    if not proto.pieces:
        raise TokenizerError(f"{path}: {describe_foreign(path, 'a SentencePiece model')}")
    return SentencePieceModel(
        [(piece.piece, piece.score, piece.type) for piece in proto.pieces],
        proto.normalizer_spec.precompiled_charsmap or None,
        proto.trainer_spec.model_type,
        proto.trainer_spec.unk_id,
        proto.trainer_spec.byte_fallback,
        proto.normalizer_spec.add_dummy_prefix,
        not proto.normalizer_spec.remove_extra_whitespaces,
        proto.trainer_spec.treat_whitespace_as_suffix,
    )


Scored = tuple[str, float]


@dataclass(frozen=True)
class Parts:
    """A vocabulary and the rules of normalization.

    Attributes:
        path: the path of the file, for messages.
        paths: all files.
        scored: the pieces of a Unigram model, by id; none of another.
        vocabulary: piece to id of a BPE model; none of another.
        merges: the merges of a BPE model.
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
        folder: the folder with the file.
        kind: the type of the model, "Unigram" or "BPE".

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
                raise TokenizerError(f"{path}: invalid normalization rules: {error}") from None
    return None


def read_model_file(folder: ModelFolder, name: str) -> Parts:
    """The parts of a SentencePiece .model.

    Raises:
        TokenizerError: it is not a SentencePiece model.
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
