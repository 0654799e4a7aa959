"""Tokenizer files of an export: chosen, checked against the model, and copied into a bundle.

It imports the runtime's tokenizers, so that a file is checked with the code that will read it.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from tfexport.bundle import TokenizerEntry
from tfexport.errors import ConfigError, Message, Option, TokenizerError, join_problems
from tfexport.export.text.word_list import find_word_problems
from tfexport.model_src.config import TransformerConfig
from tfexport.paths import PathLike
from tfexport.runtime.text.tokenizer import Tokenizer, WordTokenizer, load_tokenizer

_KINDS = {".json": "tokenizers", ".model": "sentencepiece"}
_NAMES = {"tokenizers": "tokenizer.json", "sentencepiece": "tokenizer.model", "words": "vocab.txt"}


@dataclass(frozen=True)
class TokenizerFiles:
    """The tokenizer of each side, by path; both or neither."""

    source: Path | None = None
    target: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files, each once."""
        return tuple(dict.fromkeys(path for path in (self.source, self.target) if path))

    def check(self, config: TransformerConfig) -> None:
        """Check the files, if there are any, against the model's vocabularies; see ``load``."""
        if self.source is not None:
            self.load(config)

    def load(self, config: TransformerConfig) -> tuple[Tokenizer, Tokenizer]:
        """Load the tokenizers of both sides and check them against the model's vocabularies.

        Raises:
            TokenizerError: a file is missing or unreadable, has ids beyond the vocabulary, or is a
                word list with a problem.
        """
        source = self._load("source", self.source, config)
        return source, self._load("target", self.target, config)

    def _load(self, side: str, path: Path | None, config: TransformerConfig) -> Tokenizer:
        if path is None or not path.is_file():
            raise TokenizerError(f"{path or 'tokenizer'}: no such file.")
        size = getattr(config, f"{side}_vocab_size") or 0
        hidden = [i for i in (config.pad_id, config.bos_id, config.eos_id) if i is not None]
        tokenizer = load_tokenizer(path, kind_of(path), size, config.unk_id, hidden)
        if isinstance(tokenizer, WordTokenizer):
            problems = [*find_word_problems(tokenizer.words, size, side, config.unk_id)]
            if problems:
                raise TokenizerError(join_problems(str(path), problems))
        return tokenizer

    def copy(self, folder: Path) -> dict[str, TokenizerEntry]:
        """Copy the files into a bundle; a file for both sides is copied once."""
        if self.source is None or self.target is None:
            return {}
        entries = {}
        for side, path in (("source", self.source), ("target", self.target)):
            prefix = "" if self.source == self.target else f"{side}-"
            entries[side] = TokenizerEntry(kind_of(path), prefix + _NAMES[kind_of(path)])
            shutil.copyfile(path, folder / entries[side].file)
        return entries


def choose_tokenizers(
    both: PathLike | None = None,
    source: PathLike | None = None,
    target: PathLike | None = None,
    beside: Path | None = None,
) -> TokenizerFiles:
    """Choose the tokenizers of a model: those given, or one found in the checkpoint's folder.

    Args:
        both: for both sides.
        source: for the source side, with ``target``.
        target: for the target side, with ``source``.
        beside: a folder to search if none is given.

    Raises:
        ConfigError: contradictory or incomplete arguments.
    """
    if both is not None and (source is not None or target is not None):
        raise ConfigError("tokenizer: give one for both sides, or one for each, not both.")
    if (source is None) != (target is None):
        together = Option("source_tokenizer"), " and ", Option("target_tokenizer"), " together."
        raise ConfigError(Message("tokenizer: give ", *together))
    if source is not None and target is not None:
        return TokenizerFiles(Path(source), Path(target))
    if both is None and beside is not None:
        both = next((beside / name for name in _NAMES.values() if (beside / name).is_file()), None)
    return TokenizerFiles() if both is None else TokenizerFiles(Path(both), Path(both))


def encode_source(text: str, tokenizer: Tokenizer, config: TransformerConfig) -> list[int]:
    """The encoder's input ids for a text, special tokens included; none for a blank text."""
    if not text.strip():
        return []
    ids = config.special_ids
    before = [ids.bos] if config.add_source_bos else []
    after = [ids.eos] if config.add_source_eos else []
    return [*before, *tokenizer.encode(text), *after]


def kind_of(path: Path) -> str:
    """The kind of tokenizer, by the file's suffix; "words" for any unknown suffix."""
    return _KINDS.get(path.suffix, "words")
