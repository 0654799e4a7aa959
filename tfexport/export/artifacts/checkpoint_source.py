"""What may be exported: a checkpoint's path, or a module in memory."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from tfexport.errors import ConfigError
from tfexport.model_src.checkpoint.from_module import checkpoint_of
from tfexport.model_src.checkpoint.read import BUNDLE_IDS, Checkpoint, load_checkpoint
from tfexport.model_src.checkpoint.state_dict import find_file, read_json

Source = str | os.PathLike[str] | nn.Module


def folder_of(source: Source) -> Path | None:
    """Where a checkpoint lies, and its tokenizer may; a module lies nowhere."""
    return None if isinstance(source, nn.Module) else find_file(Path(source)).parent


def read_source(
    source: Source,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    settings: Iterable[str] = (),
    layout: str | None = None,
    require: Iterable[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Understand either; see ``load_checkpoint`` and ``checkpoint_of``."""
    if isinstance(source, nn.Module):
        values = (
            config if config is None or isinstance(config, Mapping) else read_json(Path(config))
        )
        return checkpoint_of(source, values, settings, require, layout)
    return load_checkpoint(Path(source), config, settings, layout, require, defaults)


def read_for_decoding(
    source: Source,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    settings: Iterable[str] = (),
    layout: str | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """``read_source`` for what decodes tokens: special ids and embeddings have to be there.

    Raises:
        ConfigError: they are not.
    """
    checkpoint = read_source(source, config, settings, layout, BUNDLE_IDS, defaults)
    if not checkpoint.config.has_embeddings:
        raise ConfigError(
            f"{checkpoint.name}: the model has no embeddings, so there are no tokens to decode. "
            "Export its teacher-forced graph with --graph forward -o model.onnx."
        )
    return checkpoint
