"""Config values inferred from the shapes of a model's weights."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from tfexport.model_src.config import TransformerConfig

SOURCE_TABLE = "source_embedding.tokens.weight"
TARGET_TABLE = "target_embedding.tokens.weight"
OUTPUT_TABLE = "output_proj.weight"
QUERY = "encoder.layers.0.self_attn.q_proj.weight"


def read_shapes(weights: Mapping[str, Tensor], num_heads: int | None) -> dict[str, Any]:
    """Config values that are certain from names, shapes and equal values.

    No shape determines ``num_heads``; given that, the head size follows.
    """
    inferred: dict[str, Any] = {}

    for stack in ("encoder", "decoder"):
        layers = _layers(weights, stack)
        if layers:
            # Their number, not the highest index: later checks report a gap.
            inferred[f"num_{stack}_layers"] = len(layers)
        inferred[f"{stack}_final_norm"] = f"{stack}.norm.weight" in weights
    inferred["d_model"] = size_of(weights, QUERY, 1)
    inferred["d_ff"] = size_of(weights, "encoder.layers.0.feed_forward.up_proj.weight", 0)
    inferred["source_vocab_size"] = size_of(weights, SOURCE_TABLE, 0)
    inferred["target_vocab_size"] = size_of(weights, TARGET_TABLE, 0)
    for owner in ("encoder", "source_embedding"):
        inferred["max_positions"] = size_of(weights, f"{owner}.positions.table", 0) or inferred.get(
            "max_positions"
        )
    inner = size_of(weights, QUERY, 0)
    if inner and num_heads and num_heads > 0 and inner % num_heads == 0:
        inferred["head_dim"] = inner // num_heads
    inner_ff = inferred["d_ff"]
    decoder_ff = size_of(weights, "decoder.layers.0.feed_forward.up_proj.weight", 0)
    if decoder_ff is not None and inner_ff is not None and decoder_ff != inner_ff:
        inferred["decoder_d_ff"] = decoder_ff
    inferred["gated_feed_forward"] = _any(weights, r"feed_forward\.gate_proj\.")
    for side in ("source", "target"):
        inferred[f"{side}_embedding_norm"] = _embedding_norm(weights, side)
    inferred["attention_bias"] = _any(weights, r"_attn\.\w_proj\.bias|_attn\.out_proj\.bias")
    inferred["feed_forward_bias"] = _any(weights, r"feed_forward\.\w+_proj\.bias")
    inferred["norm_bias"] = _any(weights, r"norm\.bias")
    inferred["output_bias"] = "output_proj.bias" in weights
    inferred["tie_embeddings"] = _equal(weights, SOURCE_TABLE, TARGET_TABLE)
    inferred["tie_output"] = _equal(weights, TARGET_TABLE, OUTPUT_TABLE)
    return {key: value for key, value in inferred.items() if value is not None}


def _embedding_norm(weights: Mapping[str, Tensor], side: str) -> str:
    if f"{side}_embedding.token_norm.weight" in weights:
        return "tokens"
    return "sum" if f"{side}_embedding.norm.weight" in weights else "none"


def size_of(weights: Mapping[str, Tensor], name: str, axis: int) -> int | None:
    """The length of one axis of a weight; None where there is no such weight or axis."""
    tensor = weights.get(name)
    return tensor.shape[axis] if tensor is not None and tensor.dim() > axis else None


def computed_tables(
    names: Iterable[str], weights: Mapping[str, Tensor], config: TransformerConfig
) -> set[str]:
    """Weights that are computed if a file lacks them: sinusoidal position tables.

    Only if the file has none at all: if it has one, or the tables are learned, all are required.
    """
    tables = {name for name in names if name.endswith("positions.table")}
    if not config.positions.startswith("sinusoidal") or any(name in weights for name in tables):
        return set()
    return tables


def _layers(weights: Mapping[str, Tensor], stack: str) -> set[int]:
    found = (re.match(rf"{stack}\.layers\.(\d{{1,6}})\.", name) for name in weights)
    return {int(match.group(1)) for match in found if match}


def _any(weights: Mapping[str, Tensor], pattern: str) -> bool:
    return any(re.search(pattern, name) for name in weights)


def _equal(weights: Mapping[str, Tensor], first: str, second: str) -> bool:
    a, b = weights.get(first), weights.get(second)
    return a is not None and b is not None and a.shape == b.shape and _same(a, b)


def _same(a: Tensor, b: Tensor) -> bool:
    return not (a.is_meta or b.is_meta) and torch.equal(a, b)


def share_tied_tables(weights: dict[str, Tensor], config: Mapping[str, Any]) -> None:
    """Give tables that the config ties one tensor, also under names the file left out."""
    pairs = [(SOURCE_TABLE, TARGET_TABLE)] if config.get("tie_embeddings") else []
    pairs += [(TARGET_TABLE, OUTPUT_TABLE)] if config.get("tie_output") else []
    for first, second in [*pairs, *reversed(pairs)]:
        if first in weights and second not in weights:
            weights[second] = weights[first]
        elif second in weights and first not in weights:
            weights[first] = weights[second]
