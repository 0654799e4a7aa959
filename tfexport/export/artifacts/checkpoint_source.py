"""Checkpoints for artifacts that decode tokens, which need special ids and embeddings."""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

from tfexport.errors import (
    ConfigError,
    Message,
    MissingDependencyError,
    Option,
    TokenizerError,
    join_problems,
)
from tfexport.export.text.model_tokenizers import find_in_folder
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.checkpoint.generation_config import GENERATION_FILE
from tfexport.model_src.checkpoint.read_options import CheckpointLike, ReadOptions
from tfexport.model_src.config import BUNDLE_IDS

# The decoding defaults of a model that a file for greedy decoding can contain.


# Defaults that graphs keep (see greedy_rules), or that do not act on greedy search.
_KEPT = frozenset({
    "suppress_tokens", "first_token", "last_token", "search_rules", "beam_size", "num_hypotheses",
    "length_penalty", "early_stopping", "exhaustive", "renormalize_logits", "max_length",
    "temperature", "top_k", "top_p",
})  # fmt: skip


def start_as_files_say(found: Checkpoint) -> Checkpoint:
    """A copy with the start token of the checkpoint's generation_config.json."""
    start = found.read_generation().start_id
    if start is None or start == found.config.decoder_start_id:
        return found
    config = dataclasses.replace(found.config, start_id=start)
    origins = {**found.origins, "start_id": GENERATION_FILE}
    return dataclasses.replace(found, config=config, origins=origins)


def needs_language(checkpoint: Checkpoint) -> bool:
    """Whether decoding starts with a target language that the model's files do not set."""
    languages = None
    if checkpoint.path is not None and checkpoint.own_config:
        with contextlib.suppress(TokenizerError, MissingDependencyError):  # then it takes ids
            found = find_in_folder(checkpoint.path.parent)
            languages = found.languages if found is not None else None
    if languages is None:
        return False
    first = checkpoint.read_generation().defaults.get("first_token")
    start = checkpoint.config.decoder_start_id
    ids = languages.ids.values()
    return (languages.target_place == "first" and first not in ids) or (
        languages.target_place == "start" and start not in ids
    )


def check_greedy_file(checkpoint: Checkpoint) -> None:
    """Refuse a single file for a model with decoding defaults that the file cannot contain.

    Raises:
        ConfigError: there are such defaults; the message lists them.
    """
    defaults = checkpoint.read_generation().defaults
    lost = [f"{name}={defaults[name]!r}" for name in defaults if name not in _KEPT]
    if needs_language(checkpoint):
        lost.append("the target language, which each call sets")
    if lost:
        remedy = Message(
            "Export a bundle (without ", Option("graph"), "), which contains them, or remove them "
            f"from {GENERATION_FILE} if the model does not need them.",
        )  # fmt: skip
        text = f"a single file cannot contain these decoding defaults: {', '.join(lost)}"
        raise ConfigError(join_problems(checkpoint.name, [text], remedy))


def read_for_decoding(
    checkpoint: CheckpointLike, read: ReadOptions, defaults: Mapping[str, Any] | None = None
) -> Checkpoint:
    """Read a checkpoint for an artifact that decodes tokens; see ``ReadOptions.read``.

    Raises:
        ConfigError: special ids or embeddings are missing, or the decoding defaults in its files
            are not supported.
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
