"""The tokenizer of ByT5, which encodes bytes and needs no vocabulary file."""

from dataclasses import replace
from typing import Any

from tfexport.export.text.families.built import BuiltTokenizer, ModelTokenizers
from tfexport.export.text.families.folder import ModelFolder
from tfexport.export.text.families.sentencepiece_models import added_tokens
from tfexport.runtime.text.byte_tokenizer import ByteTable

_SPECIAL = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
_FIRST = ("pad", "eos", "unk")  # in the order of their ids
_FILE = "bytes.json"


def find_byt5(folder: ModelFolder) -> ModelTokenizers:
    """Build the tokenizer of a ByT5 folder, for source and target.

    Raises:
        TokenizerError: the settings in the folder contradict each other.
    """
    count: int = folder.count("extra_ids", 125)
    special = folder.special_tokens(_SPECIAL, [f"<extra_id_{i}>" for i in range(count)])
    first = [folder.named(name, _SPECIAL[name]) or _SPECIAL[name] for name in _FIRST]
    known = {token: i for i, token in enumerate(first)}
    known |= {chr(byte): byte + len(_FIRST) for byte in range(256)}
    listed = {values["content"] for values in folder.listed.values()}
    around = {
        token: _strips(folder, name)
        for name, token in zip(_FIRST, first, strict=True)
        if token not in listed
    }
    added = [
        replace(token, **around.get(token.content, {}))
        for token in added_tokens(folder, special, known)
    ]
    clean: bool = folder.setting("clean_up_tokenization_spaces", False, bool)
    table = ByteTable(len(_FIRST), own_end=_FIRST.index("eos"), added=added, clean_up=clean)
    built = BuiltTokenizer("bytes", _FILE, {_FILE: table.to_json()})
    file = "tokenizer_config.json" if folder.has("tokenizer_config.json") else "config.json"
    return ModelTokenizers(folder.path, built, built, (folder.path / file,))


def _strips(folder: ModelFolder, name: str) -> dict[str, Any]:
    """Read how a token matches text; by default it includes the white space around it."""
    value = folder.settings.get(f"{name}_token")
    values = value if isinstance(value, dict) else {"lstrip": True, "rstrip": True}
    return {flag: values.get(flag) is True for flag in ("lstrip", "rstrip", "single_word")}
