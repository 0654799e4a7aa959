"""Tokenizers of the library ``tokenizers``: read from tokenizer.json, or built from other files."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfexport.errors import TokenizerError
from tfexport.export.text.families.built import MBART, MBART50, BuiltTokenizer, ModelTokenizers
from tfexport.export.text.families.folder import ModelFolder
from tfexport.export.text.families.model_rules import (
    built_by_model,
    model_file,
    warn_of_ignored_rules,
)
from tfexport.export.text.families.sentencepiece_models import default_language
from tfexport.export.text.families.tokenizer_parts import (
    Parts,
    Scored,
    SpecialTokens,
    add_special_tokens,
    read_merges,
    read_model_file,
    read_tokenizer_json,
)
from tfexport.languages import Languages
from tfexport.runtime.text.added_tokens import CLEANED
from tfexport.runtime.text.libraries import failures_as, missing_library, read_file
from tfexport.runtime.text.tokenizer_json import read_rules

# transformers takes a vocabulary and the rules of normalization from the files, and everything else
# from the tokenizer's class. So does this, also where a tokenizer.json holds something else.


_FAIRSEQ = {"bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "unk": "<unk>"}
_FAIRSEQ |= {"pad": "<pad>", "mask": "<mask>"}
_MASK_LEFT = {"lstrip": True, "rstrip": False}

Build = Callable[[Any, Parts, ModelFolder], Any]


@dataclass(frozen=True)
class Recipe:
    """How a class of tokenizers is made.

    Attributes:
        kind: the type of the model, "Unigram" or "BPE".
        files: the files to use without a tokenizer.json; empty if that is required.
        build: the library, parts and folder to a tokenizer without special tokens.
        special: parts and folder to the special tokens of the class.
    """

    kind: str
    files: Sequence[str]
    build: Build
    special: Callable[[Parts, ModelFolder], SpecialTokens]


def _spaced(library: Any, tokenizer: Any, words: bool) -> Any:
    """Add the pre-tokenizer and decoder for pieces that start words with a mark."""
    spaces = library.pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    split = [library.pre_tokenizers.WhitespaceSplit(), spaces]
    tokenizer.pre_tokenizer = library.pre_tokenizers.Sequence(split) if words else spaces
    tokenizer.decoder = library.decoders.Metaspace(
        replacement="▁", prepend_scheme="always", split=True
    )
    return tokenizer


def _normalizer(library: Any, charsmap: bytes | None) -> Any:
    one_space = library.normalizers.Replace(library.Regex(" {2,}"), " ")
    first = [] if charsmap is None else [library.normalizers.Precompiled(charsmap)]
    return library.normalizers.Sequence([*first, one_space])


def _unigram(library: Any, scored: Sequence[Scored], unknown: int) -> Any:
    model = library.models.Unigram(list(scored), unk_id=unknown, byte_fallback=False)
    return library.Tokenizer(model)


def _name(folder: ModelFolder, name: str) -> str:
    return folder.named(name, _FAIRSEQ[name]) or _FAIRSEQ[name]


def _moved(parts: Parts, folder: ModelFolder, codes: Sequence[str]) -> list[Scored]:
    """Pieces with the ids of fairseq, and languages and a mask after them."""
    if parts.in_order:
        if not any(piece in codes for piece, _ in parts.scored):
            raise TokenizerError(f"{parts.path}: its vocabulary has no language, such as en_XX.")
        return parts.scored
    first = [_name(folder, name) for name in ("bos", "pad", "eos", "unk")]
    last = [*codes, _name(folder, "mask")]
    return [
        *((piece, 0.0) for piece in first),
        *parts.scored[3:],
        *((piece, 0.0) for piece in last),
    ]


def _mbart(library: Any, parts: Parts, folder: ModelFolder) -> Any:
    # Without rules of normalization, as in transformers 5.
    tokenizer = _unigram(library, _moved(parts, folder, MBART), 3)
    return _spaced(library, tokenizer, words=True)


def _mbart50(library: Any, parts: Parts, folder: ModelFolder) -> Any:
    tokenizer = _unigram(library, _moved(parts, folder, MBART50), 3)
    tokenizer.normalizer = _normalizer(library, parts.charsmap)
    return _spaced(library, tokenizer, words=False)


def _nllb(library: Any, parts: Parts, folder: ModelFolder) -> Any:
    tokenizer = library.Tokenizer(
        library.models.BPE(
            vocab=parts.vocabulary, merges=parts.merges, dropout=None,
            unk_token=_name(folder, "unk"), fuse_unk=True, byte_fallback=False,
        )
    )  # fmt: skip
    if parts.charsmap is not None:
        tokenizer.normalizer = _normalizer(library, parts.charsmap)
    return _spaced(library, tokenizer, words=False)


def _pegasus_tokens(folder: ModelFolder) -> tuple[str | None, int]:
    sentence = folder.settings.get("mask_token_sent", "<mask_1>")
    return sentence if isinstance(sentence, str) else None, folder.count("offset", 103)


def _pegasus(library: Any, parts: Parts, folder: ModelFolder) -> Any:
    scored = parts.scored
    if not parts.in_order:
        settings, (_, offset) = folder.settings, _pegasus_tokens(folder)
        masks = [
            settings.get("mask_token", "<mask_1>"),
            settings.get("mask_token_sent", "<mask_2>"),
        ]
        first = [folder.named("pad", "<pad>"), folder.named("eos", "</s>"), *masks]
        scored = [(piece, 0.0) for piece in dict.fromkeys(first) if isinstance(piece, str)]
        scored += [(f"<unk_{i}>", -100.0) for i in range(2, offset)]
        scored += parts.scored[2:]
    unknown = folder.named("unk", "<unk>")
    if (unknown, 0.0) not in scored:
        raise TokenizerError(f"{parts.path}: its vocabulary has no {unknown!r} with a score of 0.")
    tokenizer = _unigram(library, scored, scored.index((str(unknown), 0.0)))
    tokenizer.normalizer = _normalizer(library, parts.charsmap)
    if parts.charsmap is None:
        line_ends = library.normalizers.Replace(library.Regex(r"\n"), " ")
        spaces = library.normalizers.Replace(library.Regex(" {2,}"), " ")
        tokenizer.normalizer = library.normalizers.Sequence([line_ends, spaces])
    return _spaced(library, tokenizer, words=False)


def _t5(library: Any, parts: Parts, folder: ModelFolder) -> Any:
    scored = [*parts.scored, *(() if parts.in_order else _sentinel_scores(folder))]
    tokenizer = _unigram(library, scored, 2)
    if parts.charsmap is not None:
        tokenizer.normalizer = library.normalizers.Precompiled(parts.charsmap)
    return _spaced(library, tokenizer, words=True)


def _sentinel_scores(folder: ModelFolder) -> list[Scored]:
    count: int = folder.count("extra_ids", 100)
    return [(f"<extra_id_{i}>", 0.0) for i in range(count - 1, -1, -1)]


def _byte_level(prefix: bool) -> Build:
    def build(library: Any, parts: Parts, folder: ModelFolder) -> Any:
        tokenizer = library.Tokenizer(
            library.models.BPE(
                vocab=parts.vocabulary, merges=parts.merges, dropout=None,
                continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False,
            )
        )  # fmt: skip
        space = folder.setting("add_prefix_space", prefix, bool)
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=space)
        tokenizer.decoder = library.decoders.ByteLevel()
        return tokenizer

    return build


def _further(parts: Parts, folder: ModelFolder) -> list[Any]:
    """Special tokens of a .model file, or of an older folder's special_tokens_map.json."""
    if parts.marked is not None:
        return [
            {"__type": "AddedToken", "content": piece, "normalized": False, "special": special}
            for piece, special in parts.marked
        ]
    return list(folder.extra or ())


def _with_languages(
    codes: Sequence[str], first: bool
) -> Callable[[Parts, ModelFolder], SpecialTokens]:
    def special(parts: Parts, folder: ModelFolder) -> SpecialTokens:
        further = _further(parts, folder)
        if first:
            return SpecialTokens(_FAIRSEQ, _MASK_LEFT, [*codes, *further])
        named = {name: token for name, token in _FAIRSEQ.items() if name != "bos"}
        return SpecialTokens(named, _MASK_LEFT, [*further, *codes])

    return special


def _pegasus_special(parts: Parts, folder: ModelFolder) -> SpecialTokens:
    sentence, offset = _pegasus_tokens(folder)
    further = _further(parts, folder)
    extra = [] if sentence is None or sentence in further else [sentence]
    extra += [f"<unk_{i}>" for i in range(2, offset)]
    named = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask_2>"}
    return SpecialTokens(named, None, extra)


def _t5_special(parts: Parts, folder: ModelFolder) -> SpecialTokens:
    count: int = folder.count("extra_ids", 100)
    further = _further(parts, folder)
    if not any("<extra_id_" in str(token) for token in further):
        further += [f"<extra_id_{i}>" for i in range(count)]
    return SpecialTokens({"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}, None, further)


def _simple(mask: Mapping[str, bool] | None) -> Callable[[Parts, ModelFolder], SpecialTokens]:
    return lambda parts, folder: SpecialTokens(_FAIRSEQ, mask, _further(parts, folder))


_MERGED, _FAIRSEQ_FILE, _PIECES = (
    ["vocab.json", "merges.txt"],
    ["sentencepiece.bpe.model"],
    ["spiece.model"],
)
_ROBERTA = Recipe("BPE", _MERGED, _byte_level(False), _simple(None))
RECIPES: Mapping[str, Recipe] = {
    "RobertaTokenizer": _ROBERTA,
    "BartTokenizer": _ROBERTA,
    "BlenderbotTokenizer": Recipe(
        "BPE", _MERGED, _byte_level(True), _simple({**_MASK_LEFT, "normalized": False})
    ),
    "MBartTokenizer": Recipe("Unigram", _FAIRSEQ_FILE, _mbart, _with_languages(MBART, True)),
    "MBart50Tokenizer": Recipe("Unigram", _FAIRSEQ_FILE, _mbart50, _with_languages(MBART50, False)),
    "NllbTokenizer": Recipe(
        "BPE", [], _nllb, _simple({"normalized": True, "lstrip": True, "special": True})
    ),
    "PegasusTokenizer": Recipe("Unigram", _PIECES, _pegasus, _pegasus_special),
    "T5Tokenizer": Recipe("Unigram", _PIECES, _t5, _t5_special),
}


_JSON = "tokenizer.json"


def find_rebuilt(name: str, folder: ModelFolder) -> ModelTokenizers:
    """The tokenizer of a class, made of a folder's files; for both sides.

    Raises:
        TokenizerError: a file is missing or unreadable, or they contradict each other.
    """
    library, recipe = _library(folder), RECIPES[name]
    parts = _read(folder, recipe, library)
    with failures_as(TokenizerError, lambda: f"{parts.path}: not the files of a {name}"):
        tokenizer = recipe.build(library, parts, folder)
        special = recipe.special(parts, folder)
    add_special_tokens(tokenizer, library, folder, special)
    languages = _LANGUAGES.get(name, lambda _, __: None)(tokenizer, folder)
    return _made(tokenizer, library, folder, parts, languages)


def find_as_it_is(folder: ModelFolder) -> ModelTokenizers:
    """The tokenizer of an unchanged tokenizer.json, for both sides.

    Raises:
        TokenizerError: the file is missing or unreadable.
    """
    library = _library(folder)
    folder.need(_JSON)
    path = folder.path / _JSON
    content = read_file(path)
    with failures_as(TokenizerError, lambda: f"{path}: not a tokenizer.json"):
        read_rules(content)
        tokenizer = library.Tokenizer.from_buffer(content)
    add_special_tokens(tokenizer, library, folder, SpecialTokens({}, None, folder.extra or ()))
    return _made(tokenizer, library, folder, Parts(path, (path,)), None)


def find_installed(folder: ModelFolder, content: str, paths: tuple[Path, ...]) -> ModelTokenizers:
    """The tokenizer that transformers makes of a folder, for both sides.

    Args:
        folder: of the model.
        content: the tokenizer as JSON.
        paths: the files that it was made of.

    Raises:
        TokenizerError: it holds what is not supported.
    """
    library = _library(folder)
    with failures_as(TokenizerError, lambda: f"{folder.path}: its tokenizer is not supported"):
        read_rules(content.encode())
        tokenizer = library.Tokenizer.from_str(content)
    return _made(tokenizer, library, folder, Parts(folder.path, paths), None)


def _library(folder: ModelFolder) -> Any:
    try:
        import tokenizers
    except ImportError:
        raise missing_library(folder.path, "tokenizers") from None
    return tokenizers


def _read(folder: ModelFolder, recipe: Recipe, library: Any) -> Parts:
    if folder.has(_JSON):
        return read_tokenizer_json(folder, recipe.kind)
    if not recipe.files:
        raise TokenizerError(
            f"{folder.path}: {_JSON} is missing. This tokenizer cannot be built from other "
            f"files, or only without its languages; save_pretrained of transformers writes {_JSON}."
        )
    if recipe.kind == "BPE":
        return read_merges(folder, library)
    folder.need(*recipe.files)
    return read_model_file(folder, recipe.files[0])


def _made(
    tokenizer: Any, library: Any, folder: ModelFolder, parts: Parts, languages: Languages | None
) -> ModelTokenizers:
    tokenizer.no_truncation()
    tokenizer.no_padding()
    clean = folder.setting("clean_up_tokenization_spaces", False, bool)
    bpe = type(tokenizer.model).__name__ == "BPE"
    anyway = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
    if clean and (not bpe or folder.setting(anyway, False, bool)):
        replaced = [library.decoders.Replace(part, by) for part, by in CLEANED]
        first = [] if tokenizer.decoder is None else [tokenizer.decoder]
        steps = [*first, library.decoders.Fuse(), *replaced]
        tokenizer.decoder = library.decoders.Sequence(steps)
    path = model_file(folder)
    if folder.by_model and path is not None:
        built = built_by_model(folder, path, tokenizer)
        paths = tuple(dict.fromkeys((path, *parts.paths)))
        return ModelTokenizers(folder.path, built, built, paths, languages)
    content = tokenizer.to_str()
    warn_of_ignored_rules(folder, content)
    built = BuiltTokenizer("tokenizers", _JSON, {_JSON: content.encode()})
    return ModelTokenizers(folder.path, built, built, parts.paths, languages)


def _languages_of(
    tokenizer: Any, folder: ModelFolder, codes: list[str], source: str, places: tuple[str, str]
) -> Languages:
    found = {code: tokenizer.token_to_id(code) for code in codes}
    ids = {code: number for code, number in found.items() if number is not None}
    return Languages(
        ids,
        *places,
        default_language(folder, "src_lang", source if source in ids else None, ids),
        default_language(folder, "tgt_lang", None, ids),
    )


def _nllb_languages(tokenizer: Any, folder: ModelFolder) -> Languages:
    special = [t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special]
    codes = [code for code in special if re.fullmatch("[a-z]{3}_[A-Z][a-z]{3}", code)]
    if not codes:
        raise TokenizerError(
            f"{folder.path}: no language, such as eng_Latn, is a special token of the tokenizer."
        )
    legacy = folder.setting("legacy_behaviour", False, bool)
    places = "after" if legacy else "before", "first"
    return _languages_of(tokenizer, folder, codes, "eng_Latn", places)


_LANGUAGES = {
    "MBartTokenizer": lambda t, f: _languages_of(t, f, MBART, "en_XX", ("after", "start")),
    "MBart50Tokenizer": lambda t, f: _languages_of(t, f, MBART50, "en_XX", ("before", "first")),
    "NllbTokenizer": _nllb_languages,
}
