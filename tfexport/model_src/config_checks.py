"""Checks of a TransformerConfig's values: types and bounds first, then contradictions.

The config itself runs them, so that its class is not named here.
"""

import math
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tfexport.errors import shown

# The largest value of every integer, far above those of published models: a larger one is a mistake
# or an attack, which would otherwise show only when memory runs out.
BOUNDS = {
    "d_model": 2**16,
    "num_heads": 2**12,
    "num_encoder_layers": 2**9,
    "num_decoder_layers": 2**9,
    "d_ff": 2**20,
    "source_vocab_size": 2**24,
    "target_vocab_size": 2**24,
    "head_dim": 2**16,
    "max_positions": 2**24,
    "pad_id": 2**24 - 1,
    "bos_id": 2**24 - 1,
    "eos_id": 2**24 - 1,
    "unk_id": 2**24 - 1,
    "start_id": 2**24 - 1,
    "first_position": 2**16,
    "relative_buckets": 2**16,
    "relative_max_distance": 2**16,
    "decoder_num_heads": 2**12,
    "decoder_d_ff": 2**20,
}
# Position tables may be computed, so that no file bounds them: max_positions * d_model values.
MAX_TABLE_VALUES = 2**26


def wrong_types(config: Any) -> Iterable[str]:
    """A sentence for each value of a wrong type, or out of its bounds."""
    hints = get_type_hints(type(config))
    for field in fields(config):
        value, hint = getattr(config, field.name), hints[field.name]
        if get_origin(hint) is Literal:
            if value not in get_args(hint):
                choices = ", ".join(repr(c) for c in get_args(hint))
                yield f"{field.name}: {shown(value)} is not one of {choices}"
        elif hint is bool:
            if not isinstance(value, bool):
                yield f"{field.name}: {shown(value)} is not true or false"
        elif hint is float:
            if not _is_real(value):
                yield f"{field.name}: {shown(value)} is not a number"
        elif value is None and type(None) in get_args(hint):
            continue
        elif isinstance(value, bool) or not isinstance(value, int):
            yield f"{field.name}: {shown(value)} is not an integer"
        elif value > BOUNDS[field.name]:
            yield f"{field.name}: {shown(value)} is more than {BOUNDS[field.name]}"
        elif value < 0:  # whether 0 will do depends on the key
            yield f"{field.name}: {shown(value)} is negative"


def _is_real(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def wrong_values(config: Any) -> Iterable[str]:
    """A sentence for each contradiction between values of right types."""
    positive = ["d_model", "num_heads", "num_encoder_layers", "num_decoder_layers", "d_ff"]
    positive += ["max_positions", "source_vocab_size", "target_vocab_size"]
    for name in positive:
        value = getattr(config, name)
        if value is not None and value < 1:
            yield f"{name}: {value} is not positive"
    if config.max_positions * config.d_model > MAX_TABLE_VALUES:
        yield (
            f"max_positions: a table of {config.max_positions} positions of d_model "
            f"{config.d_model} has more than {MAX_TABLE_VALUES} values"
        )
    if config.head_dim == 0 and config.num_heads > 0 and config.d_model % config.num_heads:
        yield (
            f"num_heads: {config.num_heads} heads do not divide d_model {config.d_model}; "
            "give another num_heads, or head_dim"
        )
    if not (math.isfinite(config.norm_eps) and config.norm_eps >= 0):
        yield f"norm_eps: {config.norm_eps} is not a small positive number"
    if not 0 <= config.dropout < 1:
        yield f"dropout: {config.dropout} is not in [0, 1)"
    if not config.mask_fill < 0:
        yield f"mask_fill: {config.mask_fill} is not negative; use -inf or e.g. -1e9"
    if (config.source_vocab_size is None) != (config.target_vocab_size is None):
        yield "source_vocab_size and target_vocab_size: give both, or neither"
    if config.tie_embeddings and config.source_vocab_size != config.target_vocab_size:
        yield (
            f"tie_embeddings: one table cannot serve {config.source_vocab_size} source "
            f"and {config.target_vocab_size} target ids"
        )
    yield from _wrong_decoder(config)
    if config.has_embeddings:
        yield from _wrong_ids(config)


def _wrong_decoder(config: Any) -> Iterable[str]:
    heads = config.decoder_num_heads
    inner = config.num_heads * config.head_dim or config.d_model
    if heads and inner % heads:
        yield f"decoder_num_heads: {heads} heads do not divide the {inner} values of all heads"
    if not (math.isfinite(config.residual_scale) and config.residual_scale > 0):
        yield f"residual_scale: {config.residual_scale} is not a positive number"
    if config.relative_positions.startswith("buckets"):
        buckets, distance = config.relative_buckets, config.relative_max_distance
        if buckets < 4:
            yield f"relative_buckets: {buckets} is fewer than 4"
        elif distance <= buckets // 2:
            yield f"relative_max_distance: {distance} is not above relative_buckets / 2"
    elif config.relative_positions == "shaw" and config.relative_max_distance < 1:
        yield f"relative_max_distance: {config.relative_max_distance} is not positive"
    elif config.relative_positions == "rotary" and any(
        it and inner % it == 0 and inner // it % 2 for it in (config.num_heads, heads)
    ):
        yield "relative_positions: rotary turns pairs of values, and the size of a head is odd"


def _wrong_ids(config: Any) -> Iterable[str]:
    used = {"source": ["pad_id"], "target": ["pad_id", "bos_id", "eos_id", "start_id"]}
    used["source"] += ["bos_id"] if config.add_source_bos else []
    used["source"] += ["eos_id"] if config.add_source_eos else []
    used["source"] += ["unk_id"]
    for side, names in used.items():
        size = config.source_vocab_size if side == "source" else config.target_vocab_size
        for name in names:
            value = getattr(config, name)
            if value is not None and size is not None and not 0 <= value < size:
                yield f"{name}: {value} is not an id of the {side} vocabulary (0 to {size - 1})"
    for side in ("bos", "eos"):
        if getattr(config, f"add_source_{side}") and getattr(config, f"{side}_id") is None:
            yield f"add_source_{side} needs {side}_id"
