"""What may be exported: a checkpoint's path, or a module in memory."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from tfexport.model_src.checkpoint.live import checkpoint_of
from tfexport.model_src.checkpoint.load import read_json
from tfexport.model_src.checkpoint.read import Checkpoint, load_checkpoint

Source = str | os.PathLike[str] | nn.Module


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
