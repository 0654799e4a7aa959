"""The files of a checkpoint: a folder, or a file in one. Each is read once."""

import os
from functools import cached_property
from pathlib import Path
from typing import Any

from tfexport.errors import CheckpointError, join_some
from tfexport.file_access import describe_substitute
from tfexport.marian_binary import describe_marian_folder
from tfexport.model_src.checkpoint.generation_config import GENERATION_FILE
from tfexport.model_src.checkpoint.layouts import layouts_of
from tfexport.model_src.checkpoint.overrides import read_json
from tfexport.model_src.checkpoint.toolkit_pickles import TOOLKIT_NAMES
from tfexport.model_src.checkpoint.unsupported import describe_config, describe_form_of_folder
from tfexport.typing import PathLike

# Large checkpoints of Hugging Face: an index, and several files.
INDEX_NAMES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
FILE_NAMES = (
    "model.safetensors", "model.pt", "model.pth", "model.bin", "pytorch_model.bin", *INDEX_NAMES,
    *TOOLKIT_NAMES,
)  # fmt: skip
# Hugging Face folders may hold the same weights in several forms; its own order of preference.
_HUGGING_FACE = ("model.safetensors", INDEX_NAMES[0], "pytorch_model.bin", INDEX_NAMES[1])
_CONFIG = "config.json"
_NAME_IT = "Name the file itself."


class CheckpointFiles(os.PathLike[str]):
    """The path of a checkpoint, which remembers what was read there.

    Attributes:
        path: a folder, or a file of weights.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)

    @classmethod
    def of(cls, path: PathLike) -> "CheckpointFiles":
        """The files of a path; the argument itself if it is of this class."""
        return path if isinstance(path, cls) else cls(path)

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def folder(self) -> Path:
        """The folder of all files."""
        return self.path if self.path.is_dir() else self.path.parent

    @cached_property
    def config(self) -> dict[str, Any]:
        """The values of config.json; empty without such a file, and of a path that is missing.

        Raises:
            CheckpointError: see ``read_json``.
        """
        file = self.folder / _CONFIG
        return read_json(file) if file.is_file() and self.path.exists() else {}

    @cached_property
    def generation_config(self) -> dict[str, Any] | None:
        """The values of generation_config.json; None without such a file.

        Raises:
            CheckpointError: see ``read_json``.
        """
        file = self.folder / GENERATION_FILE
        return read_json(file) if file.is_file() else None

    def find_weights(self) -> Path:
        """Find the file of weights: the path itself, or the one inside a folder.

        In a folder of Hugging Face, which may hold the same weights in several files, it is the one
        that ``transformers`` would take.

        Raises:
            CheckpointError: there is no such file, or there are several.
        """
        path = self.path
        if not path.exists():
            reason = describe_substitute(path) or "no such file or folder."
            raise CheckpointError(f"{path}: {reason}")
        if not path.is_dir():
            return path
        files = [path / name for name in FILE_NAMES if (path / name).is_file()]
        if files and (form := describe_form_of_folder(path, weights=True)) is not None:
            raise CheckpointError(f"{path}: {form}")
        if not files:
            raise CheckpointError(f"{path}: {self._why_no_weights()}")
        if len(files) > 1 and isinstance(self.config.get("model_type"), str):
            usual = [path / name for name in _HUGGING_FACE if path / name in files]
            return (usual or files)[0]
        if len(files) > 1:
            names = ", ".join(file.name for file in files)
            raise CheckpointError(f"{path}: holds several checkpoints: {names}. Name one of them.")
        return files[0]

    def _why_no_weights(self) -> str:
        folder = self.path
        inside = sorted(
            place.name
            for place in folder.iterdir()
            if place.is_dir() and any((place / name).is_file() for name in FILE_NAMES)
        )
        lost = [name for name in FILE_NAMES if (folder / name).is_symlink()]
        advice = f"Name one of its folders: {join_some(inside)}." if inside else _NAME_IT
        other_project = None if layouts_of(self.config) else describe_config(self.config)
        return (
            other_project
            or describe_form_of_folder(folder, weights=False)
            or describe_marian_folder(folder)
            or next((f"{name} is {describe_substitute(folder / name)}" for name in lost), None)
            or f"no checkpoint in this folder; looked for {', '.join(FILE_NAMES)}. {advice}"
        )
