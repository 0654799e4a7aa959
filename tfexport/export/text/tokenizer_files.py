"""Tokenizer files of an export: chosen, checked against the model, and copied into a bundle.

A file is checked with the runtime's tokenizers, the code that will read it.
"""

import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path

from tfexport.bundle import TokenizerEntry
from tfexport.errors import (
    ConfigError,
    Message,
    Option,
    TfexportWarning,
    TokenizerError,
    join_problems,
)
from tfexport.export.text.families.built import BuiltTokenizer, ModelTokenizers
from tfexport.export.text.families.model_rules import MODEL_FILES
from tfexport.export.text.model_tokenizers import find_in_folder
from tfexport.export.text.vocabularies import (
    find_doubts,
    find_vocabulary_problems,
    find_word_problems,
    holds_vocabulary,
    is_file,
    read_vocabulary_file,
    split_name,
)
from tfexport.file_access import describe_substitute
from tfexport.languages import Languages
from tfexport.model_src.checkpoint.files import CheckpointFiles
from tfexport.model_src.config import TransformerConfig
from tfexport.runtime.text.codec import without_own_end
from tfexport.runtime.text.tokenizer import Tokenizer, WordTokenizer, check_size, load_tokenizer
from tfexport.runtime.text.vocabulary import KNOWN, Vocabulary, read_words
from tfexport.typing import PathLike

_KINDS = {".json": "tokenizers", ".model": "sentencepiece", ".spm": "sentencepiece"}
_NAMES = {
    "tokenizers": "tokenizer.json",
    "sentencepiece": "tokenizer.model",
    "words": "vocab.txt",
    "vocabulary": "vocab.json",
}
# Names that are looked for next to a checkpoint. vocab.json is not one: it may belong to a
# byte-level model, whose entries are not words.
_USUAL_NAMES = ("tokenizer.json", "tokenizer.model", "vocab.txt")


@dataclass(frozen=True)
class TokenizerContent:
    """The file of one side's tokenizer, with its content.

    Attributes:
        subject: the name of the file in messages.
        kind: the kind of tokenizer, as in the manifest.
        data: the file's content.
    """

    subject: Path
    kind: str
    data: bytes


@dataclass(frozen=True)
class TokenizerFiles:
    """The tokenizers of source and target, by path; both or neither.

    Attributes:
        source: a file; or one of several vocabularies in a file, as in ``vocab.pt:de``.
        target: the same for the target side.
        source_split: how text is split into the words of a vocabulary; None if not given.
        target_split: the same for the target side.
        model: the tokenizers of a Hugging Face folder, instead of files for each side.
    """

    source: Path | None = None
    target: Path | None = None
    source_split: str | None = None
    target_split: str | None = None
    model: ModelTokenizers | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths of the files, without duplicates."""
        if self.model is not None:
            return self.model.paths
        return tuple(dict.fromkeys(path for path in (self.source, self.target) if path))

    @property
    def languages(self) -> Languages | None:
        """The languages that the tokenizers have tokens for; None if there are none."""
        return None if self.model is None else self.model.languages

    def __bool__(self) -> bool:
        """Whether there are tokenizers."""
        return self.source is not None or self.model is not None

    def content(self, side: str) -> TokenizerContent:
        """Load the tokenizer of a side, which must exist."""
        if self.model is not None:
            built: BuiltTokenizer = getattr(self.model, side)
            return TokenizerContent(self.model.folder, built.kind, built.content)
        path: Path = getattr(self, side)
        return TokenizerContent(path, kind_of(path), path.read_bytes())

    def check(self, config: TransformerConfig) -> None:
        """Check the files, if there are any, against the model's vocabularies; see ``load``.

        Warns:
            TfexportWarning: special ids that a vocabulary contradicts, or words that text is never
                split into.
        """
        if not self:
            return
        for side, tokenizer in zip(("source", "target"), self.load(config), strict=True):
            if isinstance(tokenizer, WordTokenizer):
                for doubt in find_doubts(tokenizer, side, config, self._default_of(side)):
                    subject = f"{getattr(self, side)}: "
                    warnings.warn(TfexportWarning(Message(subject, doubt)), stacklevel=2)

    def _default_of(self, side: str) -> int | None:
        path: Path = getattr(self, side)
        return read_vocabulary_file(path).default if holds_vocabulary(path) else None

    def load(self, config: TransformerConfig) -> tuple[Tokenizer, Tokenizer]:
        """Load the tokenizers of both sides and check them against the model's vocabularies.

        Raises:
            TokenizerError: a file is missing or unreadable, has ids beyond the vocabulary, is a
                word list with a problem, or a vocabulary without a rule for splitting text; of both
                sides.
        """
        loaded: list[Tokenizer] = []
        problems: dict[str, Message] = {}
        for side in ("source", "target"):
            try:
                loaded.append(self._load(side, config))
            except TokenizerError as error:
                problems[str(error)] = error.message  # of a file for both sides, perhaps the same
        if len(problems) == 1:
            raise TokenizerError(*problems.values())
        if problems:
            raise TokenizerError(join_problems("tokenizers", [*problems.values()]))
        source, target = loaded
        return source, target

    def _load(self, side: str, config: TransformerConfig) -> Tokenizer:
        if self.model is not None:
            built: BuiltTokenizer = getattr(self.model, side)
            size = getattr(config, f"{side}_vocab_size") or 0
            return built.load(self.model.folder, size, config.unk_id)
        path: Path | None = getattr(self, side)
        if path is None or not is_file(split_name(path)[0]):
            other = None if path is None else describe_substitute(path)
            raise TokenizerError(f"{path or 'tokenizer'}: {other or 'no such file.'}")
        size = getattr(config, f"{side}_vocab_size") or 0
        hidden = [i for i in (config.pad_id, config.bos_id, config.eos_id) if i is not None]
        vocabulary = self._vocabulary(side)
        if vocabulary is None:
            tokenizer = load_tokenizer(path, kind_of(path), size, config.unk_id, hidden)
            if not isinstance(tokenizer, WordTokenizer):
                return tokenizer
            problems = [*find_word_problems(tokenizer.words, size, side, config.unk_id)]
        else:
            tokenizer = WordTokenizer(vocabulary, config.unk_id, hidden)
            check_size(path, tokenizer, size)
            problems = [*find_vocabulary_problems(tokenizer.words, size, side, config.unk_id)]
        if problems:
            raise TokenizerError(join_problems(str(path), problems))
        return tokenizer

    def _vocabulary(self, side: str) -> Vocabulary | None:
        """The words of a side, with their splitting rule; None for other kinds of tokenizers."""
        path, split = getattr(self, side), getattr(self, f"{side}_split")
        kind = kind_of(path)
        if kind == "vocabulary":
            found = read_vocabulary_file(path)
            split = found.split if split is None else split
            if split is None:
                raise TokenizerError(Message(
                    f"{path}: the vocabulary does not define how text is split into words; "
                    "set it with ", Option("split"), ", or ", Option("source_split"), " and ",
                    Option("target_split"), f": {KNOWN}.",
                ))  # fmt: skip
            return Vocabulary(found.words, split)
        if split is None:
            return None
        if kind == "words":
            return Vocabulary(read_words(path), split)
        splits = Option(f"{side}_split"), " requires a word list or vocabulary."
        raise TokenizerError(Message(f"{path}: this tokenizer splits text itself; ", *splits))

    def copy(self, folder: Path) -> dict[str, TokenizerEntry]:
        """Write the files into a bundle; a file for both sides is written once."""
        if self.model is not None:
            return {side: getattr(self.model, side).write(folder) for side in ("source", "target")}
        if self.source is None or self.target is None:
            return {}
        entries = {}
        shared = (self.source, self.source_split) == (self.target, self.target_split)
        for side, path in (("source", self.source), ("target", self.target)):
            vocabulary = self._vocabulary(side)
            kind = kind_of(path) if vocabulary is None else "vocabulary"
            file = ("" if shared else f"{side}-") + _NAMES[kind]
            if vocabulary is None:
                shutil.copyfile(path, folder / file)
            else:
                vocabulary.write(folder / file)
            entries[side] = TokenizerEntry(kind, file)
        return entries


@dataclass(frozen=True)
class Splits:
    """Rules for splitting text into the words of vocabularies.

    Attributes:
        both: the rule for both sides.
        source: the rule for the source.
        target: the rule for the target.
    """

    both: str | None = None
    source: str | None = None
    target: str | None = None

    @property
    def sides(self) -> tuple[str | None, str | None]:
        """The rules for source and target.

        Raises:
            ConfigError: ``both`` and one of the others is given.
        """
        if self.both is not None and (self.source is not None or self.target is not None):
            raise ConfigError("split: set it either for both sides, or for each side.")
        return self.source or self.both, self.target or self.both


def choose_tokenizers(
    both: PathLike | None = None,
    source: PathLike | None = None,
    target: PathLike | None = None,
    folder: PathLike | None = None,
    splits: Splits | None = None,
) -> TokenizerFiles:
    """Choose the tokenizers of a model: given ones, or one that is in the checkpoint's folder.

    A SentencePiece model of the folder itself splits text with all of its rules, and its pieces
    have the ids that they have in the folder: those of several families are not the model's.

    Args:
        both: the tokenizer of both sides.
        source: the tokenizer of the source, together with ``target``.
        target: the tokenizer of the target, together with ``source``.
        folder: that of a checkpoint, to search if no tokenizer is given, or one of its own.
        splits: the splitting rules of word vocabularies.

    Raises:
        ConfigError: contradictory or incomplete arguments.
    """
    by_side = (splits or Splits()).sides
    if both is not None and (source is not None or target is not None):
        raise ConfigError("tokenizer: set it either for both sides, or for each side.")
    if (source is None) != (target is None):
        together = Option("source_tokenizer"), " and ", Option("target_tokenizer"), "."
        raise ConfigError(Message("tokenizer: set both ", *together))
    if source is not None and source == target:
        both, source, target = source, None, None
    if source is not None and target is not None:
        return TokenizerFiles(Path(source), Path(target), *by_side)
    files = None if folder is None else CheckpointFiles.of(folder)
    by_model = files is not None and both is not None and _is_model_of(Path(both), files.folder)
    if files is not None and (both is None or by_model):
        model = find_in_folder(files, by_model)
        if model is not None and not any(by_side):
            return TokenizerFiles(model=model)
        usual = (files.folder / name for name in _USUAL_NAMES if (files.folder / name).is_file())
        both = next(usual, None) if both is None else both
    if both is not None:
        return TokenizerFiles(Path(both), Path(both), *by_side)
    if any(by_side):
        raise ConfigError(Message(Option("split"), " requires ", Option("tokenizer"), "."))
    return TokenizerFiles()


def _is_model_of(path: Path, folder: Path) -> bool:
    return path.name in MODEL_FILES and path.resolve().parent == folder.resolve()


def encode_source(text: str, tokenizer: Tokenizer, config: TransformerConfig) -> list[int]:
    """The encoder's input ids for a text, special tokens included; none for a blank text."""
    if not text.strip():
        return []
    ids = config.special_ids
    before = [ids.bos] if config.add_source_bos else []
    after = [ids.eos] if config.add_source_eos else []
    return [*before, *without_own_end(tokenizer.encode(text), tokenizer, after), *after]


def kind_of(path: Path) -> str:
    """Detect the kind of tokenizer by the file's suffix and content; "words" by default."""
    return "vocabulary" if holds_vocabulary(path) else _KINDS.get(path.suffix, "words")
