"""Tokenizers with a SentencePiece model and another table of ids: Marian, M2M100, PLBart."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from tfexport.errors import TokenizerError, shown
from tfexport.export.text.families.built import BuiltTokenizer
from tfexport.export.text.families.folder import ModelFolder
from tfexport.runtime.text.added_tokens import AddedToken
from tfexport.runtime.text.piece_tokenizer import PieceTable


def added_tokens(
    folder: ModelFolder, special: Sequence[str], known: Mapping[str, int]
) -> list[AddedToken]:
    """The tokens that are found before a text is split.

    Args:
        folder: which may list some of them.
        special: all special tokens, in order; those without an id get the next ones.
        known: pieces to ids.
    """
    names = {*special}
    tokens = {
        number: AddedToken(
            values["content"], number, special=values["content"] in names,
            **{flag: values.get(flag) is True for flag in ("lstrip", "rstrip", "single_word")},
        )
        for number, values in folder.listed.items()
    }  # fmt: skip
    ids = {token.content: number for number, token in tokens.items()}
    following = len({*known, *ids})
    for content in special:
        if content in ids:
            continue
        number = known.get(content, following)
        following += content not in known
        ids[content] = number
        tokens[number] = AddedToken(content, number)
    return [*tokens.values()]


def built_pieces(
    table: PieceTable, models: Mapping[str, Path], file: str = "pieces.json"
) -> BuiltTokenizer:
    """A tokenizer of a table and the models that it names.

    Args:
        table: of pieces.
        models: the names in the bundle to the files that are copied; others are left out.
        file: the name of the table in the bundle.
    """
    files: dict[str, bytes | Path] = {file: table.to_json()}
    files |= {name: path for name, path in models.items() if name in (table.encode, table.decode)}
    return BuiltTokenizer("pieces", file, files)


def one_of_codes(folder: ModelFolder, known: Mapping[str, list[str]], default: str) -> list[str]:
    """The languages of the set that the setting ``language_codes`` names.

    Raises:
        TokenizerError: it names none.
    """
    name: str = folder.setting("language_codes", default, str)
    if name not in known:
        raise TokenizerError(
            f"{folder.path}: language_codes {shown(name)} is not one of {', '.join(known)}."
        )
    return known[name]


def default_language(
    folder: ModelFolder, setting: str, default: str | None, codes: Collection[str]
) -> str | None:
    """The language that a setting names, such as "src_lang".

    Raises:
        TokenizerError: it is none of the tokenizer's.
    """
    named: str | None = folder.setting(setting, default, str)
    code = named.removeprefix("__").removesuffix("__") if named else None
    if code is not None and code not in codes:
        raise TokenizerError(
            f"{folder.path}: {setting} {shown(named)} is no language of the tokenizer."
        )
    return code
