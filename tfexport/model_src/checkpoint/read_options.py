"""Options for reading a checkpoint from a path, a module, or a ``Checkpoint``."""

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from tfexport.errors import ConfigError, Message, Option, join_problems
from tfexport.model_src.checkpoint.from_module import checkpoint_of
from tfexport.model_src.checkpoint.json_values import read_json
from tfexport.model_src.checkpoint.read import Checkpoint, load_checkpoint
from tfexport.model_src.checkpoint.state_dict import find_file

# Decoder ids begin with the start token, and rows are never padded.
_OF_REFERENCE = ("pad_id", "bos_id")
CheckpointLike = str | os.PathLike[str] | nn.Module | Checkpoint


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading a checkpoint.

    Attributes:
        config: config values, or a JSON file of them; they override ``config.json`` beside the
            checkpoint.
        settings: ``key=value`` strings; they override both.
        layout: the name of the layout; None to detect it.
        reference: code of the user's own to compare with; see ``Checkpoint``.
    """

    config: str | os.PathLike[str] | Mapping[str, Any] | None = None
    settings: Iterable[str] = ()
    layout: str | None = None
    reference: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", tuple(self.settings))

    def read(
        self,
        checkpoint: CheckpointLike,
        require: Iterable[str] = (),
        defaults: Mapping[str, Any] | None = None,
    ) -> Checkpoint:
        """Read a file or a module in memory; a ``Checkpoint`` is returned as it is.

        Args:
            checkpoint: path of a file or folder, a module, or a ``Checkpoint``.
            require: config keys that must have a value although the model could do without.
            defaults: values for keys that neither the checkpoint nor the options give.

        Raises:
            CheckpointError: the file or its weights are unusable; every reason is given.
            ConfigError: the config is contradictory or incomplete, or there are options beside a
                ``Checkpoint``, which has been read.
        """
        if self.reference is not None:
            require = (*require, *(key for key in _OF_REFERENCE if key not in require))
        found = self._read(checkpoint, tuple(require), defaults)
        if self.reference is None:
            return found
        return dataclasses.replace(found, reference=self.reference)

    def _read(
        self,
        checkpoint: CheckpointLike,
        require: tuple[str, ...],
        defaults: Mapping[str, Any] | None,
    ) -> Checkpoint:
        if isinstance(checkpoint, Checkpoint):
            self._refuse_beside(checkpoint)
            checkpoint.require(require)
            return checkpoint
        if isinstance(checkpoint, nn.Module):
            found = checkpoint_of(
                checkpoint, self._config_values(), self.settings, require, self.layout, defaults
            )
            return dataclasses.replace(found, module=checkpoint)
        return load_checkpoint(
            checkpoint, self.config, self.settings, self.layout, require, defaults
        )

    def _config_values(self) -> Mapping[str, Any] | None:
        if self.config is None or isinstance(self.config, Mapping):
            return self.config
        return read_json(Path(self.config))

    def _refuse_beside(self, checkpoint: Checkpoint) -> None:
        given = [
            Message(Option(name), " sets how to read a checkpoint, and this one is read already")
            for name in ("config", "settings", "layout")
            if getattr(self, name)
        ]
        if given:
            raise ConfigError(
                join_problems(checkpoint.name, given, "Give it where the checkpoint is loaded.")
            )


def folder_of(checkpoint: CheckpointLike) -> Path | None:
    """The folder of a checkpoint, where its tokenizer is looked for; None for a module.

    Raises:
        CheckpointError: there is no such file, or the folder holds none or several.
    """
    if isinstance(checkpoint, nn.Module):
        return None
    if isinstance(checkpoint, Checkpoint):
        return None if checkpoint.path is None else checkpoint.path.parent
    return find_file(Path(checkpoint)).parent
