"""Tokenizers of the library ``tokenizers``: as a file holds them, or made of their parts."""

import re
from typing import Any

from tfexport.errors import TokenizerError
from tfexport.export.text.families.built import BuiltTokenizer, ModelTokenizers
from tfexport.export.text.families.codes import MBART, MBART50
from tfexport.export.text.families.folder import ModelFolder
from tfexport.export.text.families.parts import (
    Parts,
    read_merges,
    read_model_file,
    read_tokenizer_json,
)
from tfexport.export.text.families.pieces import default_language
from tfexport.export.text.families.recipes import RECIPES, Recipe
from tfexport.export.text.families.special import SpecialTokens, add_special_tokens
from tfexport.languages import Languages
from tfexport.runtime.text.added_tokens import CLEANED
from tfexport.runtime.text.libraries import failures_as, missing_library, read_file
from tfexport.runtime.text.tokenizer_json import read_rules

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
    """The tokenizer of a tokenizer.json, as it is; for both sides.

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
            f"{folder.path}: {_JSON} is missing. Of other files transformers itself makes no such "
            "tokenizer, or one without languages; it writes the file where it has one, with "
            "save_pretrained."
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
    built = BuiltTokenizer("tokenizers", _JSON, {_JSON: tokenizer.to_str().encode()})
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
