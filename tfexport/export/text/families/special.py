"""Special tokens of a tokenizer of the library ``tokenizers``, added as transformers does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfexport.errors import TokenizerError
from tfexport.export.text.families.folder import NAMED, ModelFolder

_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of a tokenizer's class.

    Attributes:
        defaults: names such as "eos" to tokens.
        mask: how the mask is found in text, as keywords of AddedToken; None for the default.
        extra: tokens without a name, where tokenizer_config.json lists none.
    """

    defaults: Mapping[str, str]
    mask: Mapping[str, bool] | None = None
    extra: Sequence[Any] = ()


def add_special_tokens(
    tokenizer: Any, library: Any, folder: ModelFolder, special: SpecialTokens
) -> None:
    """Add the special tokens that a folder and the tokenizer's class name.

    Args:
        tokenizer: of the library.
        library: the module ``tokenizers``.
        folder: of the model.
        special: of the class.

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
    raise TokenizerError(f"{folder.path}: a special token is neither a text nor a token.")


def _added(library: Any, values: Mapping[str, Any]) -> Any:
    flags = {flag: values[flag] for flag in _FLAGS if isinstance(values.get(flag), bool)}
    return library.AddedToken(values["content"], **flags)


def _content(token: Any) -> str:
    content: str = token if isinstance(token, str) else token.content
    return content
