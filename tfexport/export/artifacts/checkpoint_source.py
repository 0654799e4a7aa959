"""Checkpoints for artifacts that decode tokens, which need special ids and embeddings."""

from collections.abc import Mapping
from typing import Any

from tfexport.errors import ConfigError, Message, Option
from tfexport.export.artifacts.own_rules import start_as_files_say
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.checkpoint.read_options import CheckpointLike, ReadOptions
from tfexport.model_src.config import BUNDLE_IDS


def read_for_decoding(
    checkpoint: CheckpointLike, read: ReadOptions, defaults: Mapping[str, Any] | None = None
) -> Checkpoint:
    """Read a checkpoint for an artifact that decodes tokens; see ``ReadOptions.read``.

    Raises:
        ConfigError: it lacks special ids or embeddings, or its files say that it decodes in a way
            that is not supported.
    """
    found = read.read(checkpoint, BUNDLE_IDS, defaults)
    if not found.config.has_embeddings:
        raise ConfigError(
            Message(
                f"{found.name}: the model has no embeddings, so there are no tokens to decode. "
                "Export its teacher-forced graph with ",
                Option("graph", "forward"),
                ".",
            )
        )
    return start_as_files_say(found)
