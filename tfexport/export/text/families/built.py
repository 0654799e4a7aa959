"""Tokenizers that are made of a model's own files, and the languages they know."""

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tfexport.bundle import TokenizerEntry
from tfexport.errors import MissingDependencyError, TokenizerError
from tfexport.languages import Languages
from tfexport.runtime.text.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class BuiltTokenizer:
    """A tokenizer as files of a bundle, not yet written.

    Attributes:
        kind: as in the manifest.
        file: the name of the file that the manifest names.
        files: name to content, or to the file that is copied; ``file`` among them.
    """

    kind: str
    file: str
    files: Mapping[str, bytes | Path]

    def write(self, folder: Path) -> TokenizerEntry:
        """Write the files; one that is there already, of the other side, is written again."""
        for name, content in self.files.items():
            data = content.read_bytes() if isinstance(content, Path) else content
            (folder / name).write_bytes(data)
        return TokenizerEntry(self.kind, self.file)

    @property
    def content(self) -> bytes:
        """The content of the file that the manifest names."""
        content = self.files[self.file]
        return content.read_bytes() if isinstance(content, Path) else content

    def load(self, subject: Path, vocab_size: int, unk_id: int | None) -> Tokenizer:
        """The tokenizer, checked against the model's vocabulary.

        Args:
            subject: the folder that it was found in, for messages.
            vocab_size: of the model's source or target side.
            unk_id: of the model.

        Raises:
            TokenizerError: its files do not make a tokenizer, or it has ids that the model lacks.
            MissingDependencyError: its library is not installed.
        """
        with tempfile.TemporaryDirectory() as name:
            self.write(Path(name))
            try:
                return load_tokenizer(Path(name) / self.file, self.kind, vocab_size, unk_id)
            except MissingDependencyError as error:
                raise MissingDependencyError(self._as_found(str(error), "")) from None
            except TokenizerError as error:
                # The file is written at export: the user knows the folder only.
                text = self._as_found(str(error), f"{name}{os.sep}")
                text = text.replace(str(Path(name) / self.file), str(subject))
                raise TokenizerError(text.replace(name, str(subject))) from None

    def _as_found(self, text: str, folder: str) -> str:
        """A message with the names of files in the user's folder, in place of the bundle's."""
        for name, content in self.files.items():
            if isinstance(content, Path):
                text = re.sub(
                    rf"(?<![\w./-]){re.escape(folder + name)}\b",
                    str(content).replace("\\", r"\\"),
                    text,
                )
        return text


@dataclass(frozen=True)
class ModelTokenizers:
    """The tokenizers of a Hugging Face folder.

    Attributes:
        folder: of the model.
        source: of the source side.
        target: of the target side.
        paths: the files that were read.
        languages: that the tokenizer has tokens for, in the form of the manifest's ``languages``;
            None if there are none.
    """

    folder: Path
    source: BuiltTokenizer
    target: BuiltTokenizer
    paths: tuple[Path, ...]
    languages: Languages | None = None
