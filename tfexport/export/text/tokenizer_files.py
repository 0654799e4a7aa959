"""Tokenizer files of an export: chosen, checked against the model, and copied into a bundle.

It imports the runtime's tokenizers, so that a file is checked with the code that will read it.
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
from tfexport.export.text.model_tokenizers import find_beside
from tfexport.export.text.vocabulary_checks import (
    find_doubts,
    find_vocabulary_problems,
    find_word_problems,
)
from tfexport.export.text.vocabulary_reader import (
    holds_vocabulary,
    is_file,
    read_vocabulary_file,
    split_name,
)
from tfexport.file_access import describe_substitute
from tfexport.languages import Languages
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
# Names next to a checkpoint. A vocab.json may be of a byte-level model, whose entries are no words.
_USUAL_NAMES = ("tokenizer.json", "tokenizer.model", "vocab.txt")


@dataclass(frozen=True)
class TokenizerContent:
    """The file of one side's tokenizer, read.

    Attributes:
        subject: what messages name.
        kind: as in the manifest.
        data: the file's content.
    """

    subject: Path
    kind: str
    data: bytes


@dataclass(frozen=True)
class TokenizerFiles:
    """The tokenizer of each side, by path; both or neither.

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
        """The files, each once."""
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
        """The tokenizer of a side, which there is."""
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
        """A side's words and how text is split into them; None for other kinds of tokenizers."""
        path, split = getattr(self, side), getattr(self, f"{side}_split")
        kind = kind_of(path)
        if kind == "vocabulary":
            found = read_vocabulary_file(path)
            split = found.split if split is None else split
            if split is None:
                raise TokenizerError(Message(
                    f"{path}: a vocabulary does not define how text is split into its words; "
                    "set it with ", Option("split"), ", or ", Option("source_split"), " and ",
                    Option("target_split"), f": {KNOWN}.",
                ))  # fmt: skip
            return Vocabulary(found.words, split)
        if split is None:
            return None
        if kind == "words":
            return Vocabulary(read_words(path), split)
        splits = Option(f"{side}_split"), " goes with a vocabulary of words."
        raise TokenizerError(Message(f"{path}: a tokenizer that splits text itself; ", *splits))

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
    """How text is split into the words of vocabularies.

    Attributes:
        both: on both sides.
        source: on the source side.
        target: on the target side.
    """

    both: str | None = None
    source: str | None = None
    target: str | None = None

    @property
    def sides(self) -> tuple[str | None, str | None]:
        """For source and target.

        Raises:
            ConfigError: ``both`` and one of the others is given.
        """
        if self.both is not None and (self.source is not None or self.target is not None):
            raise ConfigError("split: give one for both sides, or one for each, not both.")
        return self.source or self.both, self.target or self.both


def choose_tokenizers(
    both: PathLike | None = None,
    source: PathLike | None = None,
    target: PathLike | None = None,
    beside: Path | None = None,
    splits: Splits | None = None,
) -> TokenizerFiles:
    """Choose the tokenizers of a model: those given, or one found in the checkpoint's folder.

    Args:
        both: for both sides.
        source: for the source side, with ``target``.
        target: for the target side, with ``source``.
        beside: a folder to search if none is given.
        splits: how text is split, where these are vocabularies of words.

    Raises:
        ConfigError: contradictory or incomplete arguments.
    """
    by_side = (splits or Splits()).sides
    if both is not None and (source is not None or target is not None):
        raise ConfigError("tokenizer: give one for both sides, or one for each, not both.")
    if (source is None) != (target is None):
        together = Option("source_tokenizer"), " and ", Option("target_tokenizer"), " together."
        raise ConfigError(Message("tokenizer: give ", *together))
    if source is not None and target is not None:
        return TokenizerFiles(Path(source), Path(target), *by_side)
    if both is None and beside is not None:
        model = find_beside(beside)
        if model is not None and not any(by_side):
            return TokenizerFiles(model=model)
        both = next((beside / name for name in _USUAL_NAMES if (beside / name).is_file()), None)
    if both is not None:
        return TokenizerFiles(Path(both), Path(both), *by_side)
    if any(by_side):
        raise ConfigError(Message(Option("split"), " goes with ", Option("tokenizer"), "."))
    return TokenizerFiles()


def encode_source(text: str, tokenizer: Tokenizer, config: TransformerConfig) -> list[int]:
    """The encoder's input ids for a text, special tokens included; none for a blank text."""
    if not text.strip():
        return []
    ids = config.special_ids
    before = [ids.bos] if config.add_source_bos else []
    after = [ids.eos] if config.add_source_eos else []
    return [*before, *without_own_end(tokenizer.encode(text), tokenizer, after), *after]


def kind_of(path: Path) -> str:
    """The kind of tokenizer, by the file's suffix and content; "words" for any unknown one."""
    return "vocabulary" if holds_vocabulary(path) else _KINDS.get(path.suffix, "words")
