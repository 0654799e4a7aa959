"""Completion of a config from defaults of the layout, shapes of the weights, and overrides."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tfexport.errors import ConfigError, Message, Option, shown
from tfexport.model_src.checkpoint.layout import Layout
from tfexport.model_src.checkpoint.overrides import SETTINGS, Overrides, Text, fold, name_origin
from tfexport.model_src.checkpoint.shapes import (
    OUTPUT_TABLE,
    QUERY,
    SOURCE_TABLE,
    TARGET_TABLE,
    read_shapes,
    size_of,
)
from tfexport.model_src.config import TransformerConfig

ASSUMED, FROM_BUNDLE, FROM_WEIGHTS, MISSING = "assumed", "bundle", "weights", "missing"
_EMBEDDINGS = {
    SOURCE_TABLE: ("source_vocab_size", "source"),
    TARGET_TABLE: ("target_vocab_size", "target"),
}


@dataclass(frozen=True)
class Completion:
    """A config, as far as it can be completed.

    Attributes:
        config: with placeholder values where there are problems.
        origins: config key to "assumed", "bundle", "weights", "missing", or a source's origin.
        problems: sentences.
    """

    config: TransformerConfig
    origins: dict[str, str]
    problems: list[Text]


def complete_config(
    layout: Layout,
    weights: Mapping[str, Tensor],
    num_heads: int | None,
    overrides: Overrides,
    require: Iterable[str],
    defaults: Mapping[str, Any],
    told: Mapping[str, Any] | None = None,
) -> Completion:
    """Merge config values; shapes of the weights override values that contradict them.

    Args:
        layout: has the defaults of its family.
        weights: by the model's names, tied tables under both of theirs.
        num_heads: if the names of the weights number the heads.
        overrides: values of files, module and caller.
        require: keys that must have a value although the model could do without.
        defaults: values for keys that neither file nor caller gives.
        told: values that the layout found in the tensors.
    """
    stated = stated_values(layout, defaults, overrides)
    heads = stated.get("num_heads") if num_heads is None else num_heads
    heads = heads if isinstance(heads, int) and not isinstance(heads, bool) else None
    inferred = _infer(weights, heads, num_heads is not None, stated) | dict(told or {})
    by_precedence = [
        (ASSUMED, layout.defaults),
        (FROM_BUNDLE, defaults),
        (FROM_WEIGHTS, inferred),
        *overrides.layers,
    ]
    values, origins = fold(by_precedence)
    problems = _contradictions(values, inferred, overrides)
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


def stated_values(
    layout: Layout, defaults: Mapping[str, Any], overrides: Overrides
) -> dict[str, Any]:
    """Config values before the weights are looked at."""
    return fold([(ASSUMED, layout.defaults), (FROM_BUNDLE, defaults), *overrides.layers])[0]


def _infer(
    weights: Mapping[str, Tensor],
    heads: int | None,
    heads_are_counted: bool,
    stated: Mapping[str, Any],
) -> dict[str, Any]:
    inferred = read_shapes(weights, heads)
    if heads_are_counted:
        inferred["num_heads"] = heads
    for stack in ("encoder", "decoder"):
        if stated.get(f"share_{stack}_layers"):  # one layer is stored, however often it is applied
            inferred.pop(f"num_{stack}_layers", None)
        else:  # of a file without layers, the number in its config would go unchecked
            inferred.setdefault(f"num_{stack}_layers", 1)
    return inferred


def needed(keys: Iterable[str]) -> Message:
    """A sentence about config keys that need a value, with the words that give it."""
    keys = list(keys)
    words = Option(SETTINGS, [f"{key}=…" for key in keys])
    return Message(f"needed, and not in the file: {', '.join(keys)}; give ", words)


def _contradictions(
    values: dict[str, Any], inferred: Mapping[str, Any], overrides: Overrides
) -> list[Text]:
    problems: list[Text] = []
    for key, value in overrides.values.items():
        if (
            key in inferred
            and value != inferred[key]
            and not (key.startswith("tie_") and not value)
        ):
            problems.append(
                Message(
                    f"{key} is {shown(value)} in ",
                    name_origin(overrides.origins[key]),
                    f", but the weights have {inferred[key]!r}",
                )
            )
            values[key] = inferred[key]
    return problems


def _half_embeddings(
    layout: Layout, weights: Mapping[str, Tensor], values: dict[str, Any]
) -> list[Text]:
    """Report an embedding table that is missing; the other one's size is used for it."""
    present = [name for name in _EMBEDDINGS if name in weights]
    if len(present) != 1:
        return []
    (there,) = present
    (absent,) = set(_EMBEDDINGS) - {there}
    size, side = _EMBEDDINGS[absent]
    key, _ = layout.table.origin_of(absent, ())
    values[size] = size_of(weights, there, 0)
    missing = f"{key}, the {side} embedding, is missing"
    one_table = Option(SETTINGS, ["tie_embeddings=true"])
    words = size_of(weights, OUTPUT_TABLE, 0) if absent == TARGET_TABLE else None
    if words is None:
        return [Message(f"{missing}; if one table serves both sides, give ", one_table)]
    output, _ = layout.table.origin_of(OUTPUT_TABLE, ())
    as_output = Option(SETTINGS, ["tie_output=true"])
    fits = words == values[size]
    values[size] = words
    if not fits:
        return [
            Message(f"{missing}; if {output}, the output layer, serves as it, give ", as_output)
        ]
    source, _ = layout.table.origin_of(SOURCE_TABLE, ())
    return [
        Message(
            f"{missing}. Two tables fit, and only the model's code shows which is used: for "
            f"{output}, the output layer, give ",
            as_output,
            f"; for {source}, the source embedding, give ",
            one_table,
        )
    ]


def _build(
    values: dict[str, Any], problems: list[Text], query_rows: int | None
) -> TransformerConfig:
    # Missing and contradictory values are reported as problems; placeholders let the other checks
    # go on, and are used for nothing else.
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
