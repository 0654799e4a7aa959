"""A manifest's config in the words of the native engine, which ``engine/config.h`` lists."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from tfexport.bundle import Manifest
from tfexport.errors import shown

# The values of config keys that the engine knows; None for any number. A key that is not here is
# a newer tfexport's, and the engine would leave it out of account.
_KNOWN: Mapping[str, tuple[Any, ...] | None] = {
    **dict.fromkeys((
        "d_model", "num_heads", "num_encoder_layers", "num_decoder_layers", "d_ff",
        "source_vocab_size", "target_vocab_size", "head_dim", "norm_eps", "max_positions",
        "relative_buckets", "relative_max_distance", "decoder_num_heads", "decoder_d_ff",
        "residual_scale", "mask_fill", "dropout", "first_position", "tie_embeddings", "tie_output",
        "pad_id", "bos_id", "eos_id", "unk_id", "start_id", "add_source_bos", "add_source_eos",
    )),
    **dict.fromkeys((
        "norm_bias", "encoder_final_norm", "decoder_final_norm", "attention_bias",
        "feed_forward_bias", "output_bias", "positions_every_layer", "scale_embeddings",
        "scale_target_embeddings", "share_encoder_layers", "share_decoder_layers",
        "gated_feed_forward", "scale_scores", "padding_has_position",
    ), (True, False)),
    "norm": ("layer", "annotated", "rms"),
    "norm_placement": ("post", "pre", "res_post"),
    "decoder_norm_placement": ("same", "post", "pre", "res_post"),
    "activation": ("relu", "gelu", "gelu_tanh", "quick_gelu", "silu"),
    "positions": ("sinusoidal", "sinusoidal_halves", "sinusoidal_t2t", "learned", "none"),
    "source_embedding_norm": ("none", "tokens", "sum"),
    "target_embedding_norm": ("none", "tokens", "sum"),
    "relative_positions": ("none", "buckets", "buckets_every_layer", "shaw", "rotary"),
}  # fmt: skip
_AS_THEY_ARE = (
    "d_model", "num_heads", "head_dim", "d_ff", "num_encoder_layers", "num_decoder_layers", "norm",
    "norm_eps", "norm_placement", "activation", "source_embedding_norm", "target_embedding_norm",
    "residual_scale", "norm_bias", "encoder_final_norm", "decoder_final_norm", "attention_bias",
    "feed_forward_bias", "output_bias", "positions_every_layer", "share_encoder_layers",
    "share_decoder_layers", "gated_feed_forward", "scale_scores", "relative_positions",
    "relative_buckets", "relative_max_distance",
)  # fmt: skip


def uncovered(config: Mapping[str, Any]) -> str:
    """Name something of a config that the engine does not cover; empty if it covers all of it."""
    for key, value in config.items():
        if key not in _KNOWN:
            return f"it does not know the config key {key!r}"
        if not _is_known(key, value):
            return f"it does not know {key} {shown(value)}"
    missing = [key for key in _KNOWN if key not in config]
    return f"the manifest's config has no {', '.join(missing)}" if missing else ""


def _is_known(key: str, value: Any) -> bool:
    values = _KNOWN[key]
    if key in ("d_model", "num_heads"):  # which others are computed from
        return isinstance(value, int) and value > 0
    if values is None:
        return key == "mask_fill" or value is None or isinstance(value, int | float)
    return isinstance(value, str | bool) and value in values


def native_config(manifest: Manifest) -> dict[str, object]:
    """The engine's config of a Transformer's bundle, whose config it covers."""
    config, limits, special = manifest.config, manifest.limits, manifest.special_ids
    rules = manifest.generation
    heads = config["decoder_num_heads"] or config["num_heads"]
    placement = config["decoder_norm_placement"]
    scale = math.sqrt(config["d_model"])
    scaled: Callable[[bool], float] = lambda yes: scale if yes else 1.0  # noqa: E731
    has_positions = config["positions"] != "none"
    return {
        **{key: config[key] for key in _AS_THEY_ARE},
        "decoder_num_heads": heads,
        "decoder_head_dim": config["num_heads"] * config["head_dim"] // heads,
        "decoder_d_ff": config["decoder_d_ff"] or config["d_ff"],
        "decoder_norm_placement": (config["norm_placement"] if placement == "same" else placement),
        "source_vocab_size": limits.source_vocab_size,
        "target_vocab_size": limits.target_vocab_size,
        "max_positions": config["max_positions"] if has_positions else 0,
        "has_positions": has_positions,
        "source_scale": scaled(config["scale_embeddings"]),
        "target_scale": scaled(config["scale_embeddings"] and config["scale_target_embeddings"]),
        "unplaced_id": -1 if config["padding_has_position"] else special.pad,
        "pad_id": special.pad,
        "start_id": special.decoder_start,
        "eos_id": special.eos,
        "first_token": _or_none(rules.get("first_token")),
        "last_token": _or_none(rules.get("last_token")),
        "suppress_tokens": list(rules.get("suppress_tokens", ())),
    }


def _or_none(token: int | None) -> int:
    return -1 if token is None else token
