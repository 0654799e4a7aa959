"""A model's decoding defaults, as far as a file that decodes greedily can contain them."""

import contextlib
import dataclasses

from tfexport.errors import (
    ConfigError,
    Message,
    MissingDependencyError,
    Option,
    TokenizerError,
    join_problems,
)
from tfexport.export.text.model_tokenizers import find_beside
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.checkpoint.generation_config import GENERATION_FILE

# Defaults that graphs keep (see greedy_rules), or that do not act on greedy search.
_KEPT = frozenset({
    "suppress_tokens", "first_token", "last_token", "search_rules", "beam_size", "num_hypotheses",
    "length_penalty", "early_stopping", "exhaustive", "renormalize_logits", "max_length",
    "temperature", "top_k", "top_p",
})  # fmt: skip


def start_as_files_say(found: Checkpoint) -> Checkpoint:
    """The checkpoint, decoding from the token that its generation_config.json names."""
    start = found.read_generation().start_id
    if start is None or start == found.config.decoder_start_id:
        return found
    config = dataclasses.replace(found.config, start_id=start)
    origins = {**found.origins, "start_id": GENERATION_FILE}
    return dataclasses.replace(found, config=config, origins=origins)


def needs_language(checkpoint: Checkpoint) -> bool:
    """Whether decoding begins with a target language that the model's files do not name."""
    languages = None
    if checkpoint.path is not None and checkpoint.own_config:
        with contextlib.suppress(TokenizerError, MissingDependencyError):  # it takes ids
            found = find_beside(checkpoint.path.parent)
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
    """Refuse a file that decodes by itself for a model whose own rules it would not keep.

    Raises:
        ConfigError: naming each of them.
    """
    defaults = checkpoint.read_generation().defaults
    lost = [f"{name}={defaults[name]!r}" for name in defaults if name not in _KEPT]
    if needs_language(checkpoint):
        lost.append("the target language, which every call names")
    if lost:
        remedy = Message(
            "A bundle contains them all (without ", Option("graph"), "); or remove them from ",
            f"{GENERATION_FILE}, if the model does not need them.",
        )  # fmt: skip
        text = f"a single file cannot contain these decoding defaults: {', '.join(lost)}"
        raise ConfigError(join_problems(checkpoint.name, [text], remedy))
