"""Tokenizers with a SentencePiece model and another table of ids: Marian, M2M100, PLBart."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tfexport.errors import TokenizerError, shown
from tfexport.export.text.families.built import M2M100, PLBART, BuiltTokenizer, ModelTokenizers
from tfexport.export.text.families.folder import ModelFolder
from tfexport.export.text.families.tokenizer_parts import read_pieces
from tfexport.languages import Languages
from tfexport.runtime.text.added_tokens import AddedToken
from tfexport.runtime.text.piece_tokenizer import PieceTable


def added_tokens(
    folder: ModelFolder, special: Sequence[str], known: Mapping[str, int]
) -> list[AddedToken]:
    """The tokens that are found before a text is split.

    Args:
        folder: the folder, which may list some of them.
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
        table: the table of pieces.
        models: the names in the bundle to the files that are copied; others are left out.
        file: the name of the table in the bundle.
    """
    files: dict[str, bytes | Path] = {file: table.to_json()}
    files |= {name: path for name, path in models.items() if name in (table.encode, table.decode)}
    return BuiltTokenizer("pieces", file, files)


def one_of_codes(folder: ModelFolder, known: Mapping[str, list[str]], default: str) -> list[str]:
    """The languages of the set that the setting ``language_codes`` names.

    Raises:
        TokenizerError: the setting names no known set.
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
        TokenizerError: it is not a language of the tokenizer.
    """
    named: str | None = folder.setting(setting, default, str)
    code = named.removeprefix("__").removesuffix("__") if named else None
    if code is not None and code not in codes:
        raise TokenizerError(
            f"{folder.path}: {setting} {shown(named)} is not a language of the tokenizer."
        )
    return code


# Marian: two SentencePiece models and vocabularies of their pieces. No punctuation is normalised,
# as in transformers, whose tokenizer has the function and never calls it, with or without
# sacremoses.


MARIAN_FILES = ("source.spm", "target.spm", "vocab.json")
_SECOND = "target_vocab.json"
_MARIAN_SPECIAL = {"unk": "<unk>", "eos": "</s>", "pad": "<pad>"}
_NAMES = {"source.spm": "source.model", "target.spm": "target.model"}


def find_marian(folder: ModelFolder) -> ModelTokenizers:
    """The tokenizers of a Marian folder.

    Raises:
        TokenizerError: a file is missing or unreadable, or they contradict each other.
    """
    separate = folder.setting("separate_vocabs", False, bool)
    if folder.config.get("share_encoder_decoder_embeddings") is False and not separate:
        raise TokenizerError(
            f"{folder.path}: config.json has share_encoder_decoder_embeddings false, so each side "
            "has a separate vocabulary, but tokenizer_config.json does not set separate_vocabs."
        )
    names = [*MARIAN_FILES, *([_SECOND] if separate else [])]
    folder.need(*names)
    source = folder.read_vocabulary("vocab.json")
    target = folder.read_vocabulary(_SECOND) if separate else source
    unknown = folder.named("unk", "<unk>") or "<unk>"
    for name, vocabulary in (("vocab.json", source), (_SECOND, target)):
        if unknown not in vocabulary:
            raise TokenizerError(f"{folder.path / name}: has no {unknown!r}.")
    special = folder.special_tokens(_MARIAN_SPECIAL, ())
    added = added_tokens(folder, special, source)
    clean: bool = folder.setting("clean_up_tokenization_spaces", False, bool)
    joiner = "target.model" if separate else "source.model"  # as transformers joins
    tables = {
        "source": PieceTable("source.model", "source.model", source, unknown, added),
        "target": PieceTable("target.model", joiner, target, unknown, added),
    }
    tables = {
        side: replace(table, prefix=True, behind_special=" ", clean_up=clean)
        for side, table in tables.items()
    }
    models = {bundled: folder.path / name for name, bundled in _NAMES.items()}
    built = {
        side: built_pieces(table, models, f"{side}-pieces.json") for side, table in tables.items()
    }
    codes = {} if separate else _codes(source)
    paths = tuple(folder.path / name for name in names)
    languages = Languages(codes, None, "source") if codes else None
    return ModelTokenizers(folder.path, built["source"], built["target"], paths, languages)


def _codes(vocabulary: Mapping[str, int]) -> dict[str, int]:
    """Target languages to the ids of pieces such as ``>>fra<<``."""
    return {
        piece[2:-2]: number
        for piece, number in vocabulary.items()
        if piece.startswith(">>") and piece.endswith("<<") and len(piece) > 4
    }


# M2M100: a SentencePiece model, a vocabulary of its pieces, then languages. As in transformers, the
# languages' tokens are special only where the folder lists them as such; elsewhere they are not
# found in text, and decoded text shows them.


M2M100_FILES = ("vocab.json", "sentencepiece.bpe.model")
_M2M100_SPECIAL = {"bos": "<s>", "eos": "</s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>"}


def find_m2m100(folder: ModelFolder) -> ModelTokenizers:
    """The tokenizer of an M2M100 folder, for both sides.

    Raises:
        TokenizerError: a file is missing or unreadable, or they contradict each other.
    """
    folder.need(*M2M100_FILES)
    codes = one_of_codes(folder, M2M100, "m2m100")
    vocabulary = folder.read_vocabulary("vocab.json")
    tokens = {f"__{code}__": len(vocabulary) + i for i, code in enumerate(codes)}
    added = added_tokens(folder, folder.special_tokens(_M2M100_SPECIAL, ()), vocabulary)
    wrong = [token for token in added if tokens.get(token.content, token.id) != token.id]
    if wrong:
        raise TokenizerError(
            f"{folder.path}: the id of {wrong[0].content} is {wrong[0].id}, but "
            f"{tokens[wrong[0].content]} according to vocab.json, after which the languages come."
        )
    unknown = folder.named("unk", "<unk>") or "<unk>"
    if unknown not in vocabulary:
        raise TokenizerError(f"{folder.path / 'vocab.json'}: has no {unknown!r}.")
    clean: bool = folder.setting("clean_up_tokenization_spaces", False, bool)
    model = "sentencepiece.model"
    table = PieceTable(model, model, {**vocabulary, **tokens}, unknown, added, clean_up=clean)
    built = built_pieces(table, {model: folder.path / M2M100_FILES[1]})
    languages = Languages(
        {code: tokens[f"__{code}__"] for code in codes},
        "before",
        "first",
        default_language(folder, "src_lang", "en", codes),
        default_language(folder, "tgt_lang", None, codes),
    )
    paths = tuple(folder.path / name for name in M2M100_FILES)
    return ModelTokenizers(folder.path, built, built, paths, languages)


# PLBart: a SentencePiece model whose ids are moved as fairseq does.


FILE = "sentencepiece.bpe.model"
_FIRST = ("<s>", "<pad>", "</s>", "<unk>")


def find_plbart(folder: ModelFolder) -> ModelTokenizers:
    """The tokenizer of a PLBart folder, for both sides.

    Raises:
        TokenizerError: a file is missing or unreadable, or they contradict each other.
    """
    folder.need(FILE)
    codes = one_of_codes(folder, PLBART, "base")
    pieces = read_pieces(folder.path / FILE).pieces
    tokens = [f"__{code}__" for code in codes]
    last = [*tokens, *(["<mask>"] if codes == PLBART["base"] else [])]
    fixed = {piece: i for i, piece in enumerate(_FIRST)}
    fixed |= {token: len(pieces) + 1 + i for i, token in enumerate(last)}
    special = folder.special_tokens(
        {"bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "unk": "<unk>",
         "pad": "<pad>", "mask": "<mask>"}, tokens,
    )  # fmt: skip
    listed = [values["content"] for values in folder.listed.values()]
    unknown = [token for token in (*special, *listed) if token not in (*fixed, "<mask>")]
    if unknown:
        raise TokenizerError(f"{folder.path}: {unknown[0]!r} is not a token of PLBart's tokenizer.")
    table = {piece: i + 1 for i, (piece, _, _) in enumerate(pieces) if i}
    # The languages of programs have no mask: it is found in text, and unknown.
    found = sorted(dict.fromkeys((*special, *tokens)), key=lambda token: token == "<unk>")
    added = [AddedToken(token, fixed.get(token, fixed["<unk>"])) for token in found]
    model = "sentencepiece.model"
    clean: bool = folder.setting("clean_up_tokenization_spaces", True, bool)
    written = PieceTable(
        model, model, {**table, **fixed}, "<unk>", added, joined="text", clean_up=clean
    )
    built = built_pieces(written, {model: folder.path / FILE})
    default = "en_XX" if codes == PLBART["multi"] else None
    languages = Languages(
        {code: fixed[f"__{code}__"] for code in codes},
        "after",
        "start",
        default_language(folder, "src_lang", default, codes),
        default_language(folder, "tgt_lang", None, codes),
    )
    return ModelTokenizers(folder.path, built, built, (folder.path / FILE,), languages)
