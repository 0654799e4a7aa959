"""Tokenizers of byte pair encoding with vocab.json and merges.txt: blenderbot-small and FSMT."""

from dataclasses import replace

from tfexport.errors import TokenizerError, shown
from tfexport.export.text.families.built import BuiltTokenizer, ModelTokenizers
from tfexport.export.text.families.folder import ModelFolder
from tfexport.export.text.families.sentencepiece_models import added_tokens
from tfexport.runtime.text.bpe_tokenizers import LOWER_CASE, MOSES, MergedVocabulary

_SMALL = {"bos": "__start__", "eos": "__end__", "unk": "__unk__", "pad": "__null__"}
_FSMT = {"bos": "<s>", "sep": "</s>", "unk": "<unk>", "pad": "<pad>"}
_MERGES = "merges.txt"


def find_blenderbot_small(folder: ModelFolder) -> ModelTokenizers:
    """The tokenizer of a blenderbot-small folder, for both sides.

    Raises:
        TokenizerError: a file is missing or unreadable.
    """
    names = ("vocab.json", _MERGES)
    folder.need(*names)
    vocabulary = _vocabulary(folder, "vocab.json", _SMALL["unk"])
    added = added_tokens(folder, folder.special_tokens(_SMALL, ()), vocabulary)
    found = MergedVocabulary(
        vocabulary, _merges(folder, 1), _unknown(folder, _SMALL["unk"]), added, LOWER_CASE,
        clean_up=folder.setting("clean_up_tokenization_spaces", False, bool),
    )  # fmt: skip
    built = BuiltTokenizer("lower_bpe", "bpe.json", {"bpe.json": found.to_json()})
    paths = tuple(folder.path / name for name in names)
    return ModelTokenizers(folder.path, built, built, paths)


def find_fsmt(folder: ModelFolder) -> ModelTokenizers:
    """The tokenizers of an FSMT folder.

    Raises:
        TokenizerError: a file is missing or unreadable, or they contradict each other.
    """
    vocabularies = {"source": "vocab-src.json", "target": "vocab-tgt.json"}
    names = (*vocabularies.values(), _MERGES)
    folder.need(*names)
    found = {side: _vocabulary(folder, name, _FSMT["unk"]) for side, name in vocabularies.items()}
    source = MergedVocabulary(
        found["source"], _merges(folder, 0), _unknown(folder, _FSMT["unk"]),
        added_tokens(folder, folder.special_tokens(_FSMT, ()), found["source"]), MOSES,
        lower=folder.setting("do_lower_case", False, bool),
        clean_up=folder.setting("clean_up_tokenization_spaces", False, bool),
    )  # fmt: skip
    built = {}
    for (side, pieces), language in zip(found.items(), _languages(folder), strict=True):
        content = replace(source, pieces=pieces, language=language).to_json()
        file = f"{side}-bpe.json"
        built[side] = BuiltTokenizer("moses_bpe", file, {file: content})
    paths = tuple(folder.path / name for name in names)
    return ModelTokenizers(folder.path, built["source"], built["target"], paths)


def _unknown(folder: ModelFolder, default: str) -> str:
    return folder.named("unk", default) or default


def _vocabulary(folder: ModelFolder, name: str, default: str) -> dict[str, int]:
    vocabulary = folder.read_vocabulary(name, whole=False)
    unknown = _unknown(folder, default)
    if unknown not in vocabulary:
        raise TokenizerError(f"{folder.path / name}: has no {unknown!r}.")
    return vocabulary


def _merges(folder: ModelFolder, skipped: int) -> list[tuple[str, str]]:
    """The pairs of merges.txt, of which the last line and the first ``skipped`` are left out."""
    path = folder.path / _MERGES
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[skipped:-1]
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path}: not UTF-8: {error.reason}.") from None
    found = []
    for number, line in enumerate(lines, skipped + 1):
        parts = line.split()
        if len(parts) < 2:
            raise TokenizerError(f"{path}: line {number}, {shown(line)}, does not hold two pieces.")
        found.append((parts[0], parts[1]))
    return found


def _languages(folder: ModelFolder) -> tuple[str, str]:
    """The codes of the source and target language."""
    listed, known = folder.settings.get("langs"), folder.config.get("langs")
    found = listed or known
    if not isinstance(found, list) or len(found) != 2 or not all(isinstance(c, str) for c in found):
        raise TokenizerError(
            f"{folder.path}: langs {shown(found)} is not a list of two languages, such as "
            '["en", "ru"]; Moses needs them.'
        )
    if listed and known and listed != known:
        raise TokenizerError(
            f"{folder.path}: tokenizer_config.json has the langs {shown(listed)}, and config.json "
            f"{shown(known)}."
        )
    return found[0], found[1]
