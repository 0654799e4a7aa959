"""A config from what the weights say, what the user says, and the layout's defaults."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tfexport.errors import ConfigError, Message, Option, shown
from tfexport.model_src.checkpoint.keymap import Layout
from tfexport.model_src.checkpoint.overrides import SETTINGS, Given, Text, spoken
from tfexport.model_src.checkpoint.shapes import (
    QUERY,
    SOURCE_TABLE,
    TARGET_TABLE,
    read_shapes,
    size_of,
)
from tfexport.model_src.config import TransformerConfig

FROM_WEIGHTS, ASSUMED, MISSING = "weights", "assumed", "missing"
_EMBEDDINGS = {
    SOURCE_TABLE: ("source_vocab_size", "source"),
    TARGET_TABLE: ("target_vocab_size", "target"),
}


@dataclass(frozen=True)
class Completion:
    """A config, as far as it can be completed.

    Attributes:
        config: with stand-ins where there are problems.
        origins: config key to "weights", "assumed", "missing", or the source that says it.
        problems: sentences.
    """

    config: TransformerConfig
    origins: dict[str, str]
    problems: list[Text]


def complete_config(
    layout: Layout,
    weights: Mapping[str, Tensor],
    num_heads: int | None,
    given: Given,
    require: Iterable[str],
    defaults: Mapping[str, Any],
) -> Completion:
    """Put the config together; the weights win over what contradicts them.

    Args:
        layout: gives the defaults of its family.
        weights: by the model's names, tied tables under both of theirs.
        num_heads: where the weights' names count the heads.
        given: what the user says.
        require: keys that must have a value although the model could do without.
        defaults: stand in where neither file nor user says anything.
    """
    said = {**layout.defaults, **defaults, **given.values}
    heads = said.get("num_heads") if num_heads is None else num_heads
    heads = heads if isinstance(heads, int) and not isinstance(heads, bool) else None
    facts = read_shapes(weights, heads)
    if num_heads is not None:
        facts["num_heads"] = num_heads
    for stack in ("encoder", "decoder"):
        if said.get(f"share_{stack}_layers"):  # one layer is stored, however often it is applied
            facts.pop(f"num_{stack}_layers", None)
        else:  # a file without layers is not believed to have as many as its config says
            facts.setdefault(f"num_{stack}_layers", 1)
    values = {**layout.defaults, **defaults, **facts, **given.values}
    origins = dict.fromkeys(values, ASSUMED)
    origins |= dict.fromkeys(defaults, "bundle") | dict.fromkeys(facts, FROM_WEIGHTS)
    origins |= given.origins
    problems = _contradictions(values, facts, given)
    rows = size_of(weights, QUERY, 0)
    uneven = heads is not None and heads > 0 and rows is not None and rows % heads != 0
    if uneven:
        problems.append(f"num_heads: {shown(heads)} heads do not divide the {rows} query rows")
    problems += _half_embeddings(layout, weights, values)
    if SOURCE_TABLE not in weights and TARGET_TABLE not in weights:
        require = ()  # special ids mean nothing to a model that takes vectors
    missing = [key for key in (*layout.required, *require) if values.get(key) is None]
    origins |= dict.fromkeys(missing, MISSING)
    if missing:
        problems.append(needed(missing))
    if "num_heads" in missing and "head_dim" not in values:
        origins["head_dim"] = MISSING  # it follows from the heads
    if uneven or rows is None:
        values.pop("num_heads", None)
    return Completion(_build(values, problems, rows), origins, problems)


def needed(keys: Iterable[str]) -> Message:
    """A sentence about config keys that need a value, with the words that give it."""
    keys = list(keys)
    words = Option(SETTINGS, [f"{key}=…" for key in keys])
    return Message(f"needed, and not in the file: {', '.join(keys)}; give ", words)


def _contradictions(values: dict[str, Any], facts: Mapping[str, Any], given: Given) -> list[Text]:
    problems: list[Text] = []
    for key, value in given.values.items():
        if key in facts and value != facts[key] and not (key.startswith("tie_") and not value):
            problems.append(
                Message(
                    f"{key} is {shown(value)} in ",
                    spoken(given.origins[key]),
                    f", but the weights say {facts[key]!r}",
                )
            )
            values[key] = facts[key]
    return problems


def _half_embeddings(
    layout: Layout, weights: Mapping[str, Tensor], values: dict[str, Any]
) -> list[Text]:
    """One table alone: the other one's size stands in, and it is said which is missing."""
    present = [name for name in _EMBEDDINGS if name in weights]
    if len(present) != 1:
        return []
    (there,) = present
    (absent,) = set(_EMBEDDINGS) - {there}
    size, side = _EMBEDDINGS[absent]
    key, _ = layout.origin_of(absent, ())
    values[size] = values.get(_EMBEDDINGS[there][0])
    return [
        Message(
            f"{key}, the {side} embedding, is missing; if one table serves both sides, give ",
            Option(SETTINGS, ["tie_embeddings=true"]),
        )
    ]


def _build(
    values: dict[str, Any], problems: list[Text], query_rows: int | None
) -> TransformerConfig:
    # What is missing or contradictory is reported with the rest; stand-ins let the other checks go
    # on, and are never used for anything else.
    complete = {"d_model": 1, "d_ff": 1, "num_encoder_layers": 1, "num_decoder_layers": 1}
    complete |= {key: value for key, value in values.items() if value is not None}
    if "num_heads" not in complete:
        complete |= {"num_heads": 1, "head_dim": query_rows or 1}
    try:
        return TransformerConfig.from_dict(complete)
    except ConfigError as error:
        if not problems:
            raise
        lines = [Message("\n", problem) for problem in problems]
        raise ConfigError(Message(error.message, *lines)) from None
