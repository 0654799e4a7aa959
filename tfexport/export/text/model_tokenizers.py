"""Finding the tokenizers of a Hugging Face folder by its model type and its files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tfexport.errors import CheckpointError, Message, Option, TokenizerError, shown
from tfexport.export.text.families.built import ModelTokenizers
from tfexport.export.text.families.byt5 import find_byt5
from tfexport.export.text.families.folder import ModelFolder
from tfexport.export.text.families.merged import find_blenderbot_small, find_fsmt
from tfexport.export.text.families.sentencepiece_models import find_m2m100, find_marian, find_plbart
from tfexport.export.text.families.tokenizers_library import (
    RECIPES,
    find_as_it_is,
    find_installed,
    find_rebuilt,
)
from tfexport.model_src.checkpoint.files import CheckpointFiles
from tfexport.model_src.checkpoint.layouts import layouts_of
from tfexport.typing import PathLike

# Names of tokenizer files. A folder with none of these files has no tokenizer.
_FILES = (
    "tokenizer.json", "source.spm", "target.spm", "vocab.json", "target_vocab.json", "merges.txt",
    "sentencepiece.bpe.model", "spiece.model", "vocab-src.json", "vocab-tgt.json",
    "tokenizer.model", "vocab.txt",
)  # fmt: skip
# Those that add a start token.
_FRAMED = ("RobertaTokenizer", "BartTokenizer", "BlenderbotTokenizer")
# Those that add tokens of languages, of which a bundle keeps the list.
_WITH_LANGUAGES = ("NllbTokenizer", "M2M100Tokenizer", "MBartTokenizer", "MBart50Tokenizer")
_SAMPLE = "a b"
_AS_IT_IS = ("TokenizersBackend", "PreTrainedTokenizer", "PythonBackend")
FINDERS: Mapping[str, Callable[[ModelFolder], ModelTokenizers]] = {
    "MarianTokenizer": find_marian,
    "M2M100Tokenizer": find_m2m100,
    "PLBartTokenizer": find_plbart,
    "ByT5Tokenizer": find_byt5,
    "BlenderbotSmallTokenizer": find_blenderbot_small,
    "FSMTTokenizer": find_fsmt,
    **{name: partial(find_rebuilt, name) for name in RECIPES},
    **dict.fromkeys(_AS_IT_IS, find_as_it_is),
}


def find_in_folder(folder: PathLike, by_model: bool = False) -> ModelTokenizers | None:
    """Find the tokenizers in a checkpoint's folder, if its config.json names a known model type.

    Args:
        folder: of the checkpoint, or the path of its file.
        by_model: whether the folder's SentencePiece model splits text, with all of its rules.

    Raises:
        TokenizerError: see ``find_model_tokenizers``.
    """
    files = CheckpointFiles.of(folder)
    try:
        config = files.config
    except CheckpointError:
        return None  # reading the checkpoint reports the problem
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        return None
    return find_model_tokenizers(files.folder, model_type, config, by_model)


def find_model_tokenizers(
    folder: Path, model_type: str, config: Mapping[str, Any], by_model: bool = False
) -> ModelTokenizers | None:
    """Find the tokenizers of a Hugging Face folder, as transformers would load them.

    Args:
        folder: the folder with the model's files.
        model_type: the ``model_type`` of its config.json.
        config: the values of its config.json.
        by_model: see ``find_in_folder``.

    Returns:
        None if the folder holds no tokenizer, or the model type is unknown.

    Raises:
        TokenizerError: the files are incomplete, contradict each other, or belong to another model.
    """
    of_folders = [it for it in layouts_of({"model_type": model_type}) if it.generation is not None]
    if not of_folders:
        return None
    layout = of_folders[0]
    found = ModelFolder(folder, config, by_model)
    named = found.settings.get("tokenizer_class") or config.get("tokenizer_class")
    if named != "ByT5Tokenizer" and not any(map(found.has, _FILES)):
        return None
    usual = layout.tokenizer_class or _AS_IT_IS[0]
    name = named.removesuffix("Fast") if isinstance(named, str) else usual
    if name == "M2M100Tokenizer" and named is None and not found.has("vocab.json"):
        name = "NllbTokenizer"
    if layout.tokenizer_class in _AS_IT_IS:
        name = layout.tokenizer_class
    if name not in FINDERS:
        raise TokenizerError(Message(
            f"{folder}: the tokenizer class {shown(named)} is not supported. Supported classes: "
            f"{', '.join(sorted(FINDERS))}. Alternatively, pass a tokenizer file, such as a "
            "tokenizer.json, with ", Option("tokenizer"), ".",
        ))  # fmt: skip
    if not layout.takes_start_token and name in _FRAMED:
        raise TokenizerError(Message(
            f"{folder}: {name} adds a start token before every text, but a {model_type} checkpoint "
            "is read without one. Pass the tokenizer's file with ", Option("tokenizer"),
            " and set the special tokens around a text with ",
            Option("settings", ["bos_id=…", "start_id=…", "add_source_bos=true"]), ".",
        ))  # fmt: skip
    tokenizers = FINDERS[name](found)
    _check_end(found, tokenizers)
    return tokenizers


@dataclass(frozen=True)
class InstalledTokenizer:
    """The tokenizer of a folder, as the installed transformers reads it.

    Attributes:
        tokenizers: of both sides.
        before: ids in front of a text's own.
        after: ids after them.
    """

    tokenizers: ModelTokenizers
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


def find_installed_tokenizer(
    folder: Path, config: Mapping[str, Any], transformers: Any
) -> InstalledTokenizer | None:
    """Find the tokenizer of a folder whose model no layout reads.

    Args:
        folder: the folder with the model's files.
        config: the values of its config.json.
        transformers: the library.

    Returns:
        None if the folder holds no tokenizer.

    Raises:
        TokenizerError: the library cannot read it, or it is of another kind than a tokenizer.json.
    """
    found = ModelFolder(folder, config)
    files = tuple(folder / name for name in _FILES if found.has(name))
    if not files and found.settings.get("tokenizer_class") != "ByT5Tokenizer":
        return None
    try:
        made = transformers.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0][:200].rstrip(". ")
        raise TokenizerError(Message(
            f"{folder}: transformers cannot read its tokenizer: {reason}. Pass a tokenizer file "
            "with ", Option("tokenizer"), ", or remove its files for a bundle of ids.",
        )) from None  # fmt: skip
    name = type(made).__name__.removesuffix("Fast")
    if name in _WITH_LANGUAGES:
        of_layouts = FINDERS[name](found)
        return InstalledTokenizer(of_layouts, (), (made.eos_token_id,))
    if name == "ByT5Tokenizer":
        return InstalledTokenizer(FINDERS[name](found), (), (made.eos_token_id,))
    backend = getattr(made, "backend_tokenizer", None)
    if backend is None:
        raise TokenizerError(Message(
            f"{folder}: the tokenizer class {name} is not supported. Pass a tokenizer file, such "
            "as a tokenizer.json, with ", Option("tokenizer"), ".",
        ))  # fmt: skip
    content = backend.to_str()
    own = list(made(_SAMPLE, add_special_tokens=False).input_ids)
    framed = list(made(_SAMPLE).input_ids)
    start = next((i for i in range(len(framed)) if framed[i : i + len(own)] == own), 0)
    around = tuple(framed[:start]), tuple(framed[start + len(own) :])
    return InstalledTokenizer(find_installed(found, content, files), *around)


def _check_end(folder: ModelFolder, tokenizers: ModelTokenizers) -> None:
    """Refuse a tokenizer whose end token differs from the model's."""
    content, ids = folder.named("eos", "</s>"), folder.config.get("eos_token_id")
    ends = ids if isinstance(ids, list) else [ids]
    size = 2**31 - 1
    found = None
    if content is not None and ids is not None:
        found = tokenizers.target.load(folder.path, size, None).find(content)
    if found is not None and found not in ends:
        raise TokenizerError(
            f"{folder.path}: its tokenizer's end token {content!r} has the id {found}, and "
            f"config.json has eos_token_id {shown(ids)}. The tokenizer belongs to another model."
        )
