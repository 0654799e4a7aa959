"""The tensors of T5 and its kin: tables under several names, and what shapes tell."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_TOKENS = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


def share_one_table(made: dict[str, Tensor], read: dict[str, tuple[str, ...]]) -> list[str]:
    """Leave the table of tokens under its first name alone; sentences about others that differ."""
    there = [name for name in _TOKENS if name in made]
    if not there:
        return []
    first, problems = made[there[0]], []
    for name in there:
        if not same_values(made.pop(name), first):
            problems.append(f"{name} is another table than {there[0]}; this model has one")
        if name != "shared.weight":
            read[name] = ("shared.weight",)
    made["shared.weight"] = first
    return problems


def two_feed_forwards(tensors: Mapping[str, Tensor]) -> list[str]:
    """Sentences about feed-forwards that are gated and not."""
    plain = [name for name in tensors if name.endswith(".DenseReluDense.wi.weight")]
    gated = [name.replace(".wi.", ".wi_1.") for name in plain]
    return [
        f"{name} and {other} are both there; a feed-forward has one of them"
        for name, other in zip(plain, gated, strict=True)
        if other in tensors
    ]


def read_heads(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The heads and buckets of a table of biases, and the size of a head."""
    block = "encoder.block.0.layer.0.SelfAttention"
    table = tensors.get(f"{block}.relative_attention_bias.weight")
    queries = tensors.get(f"{block}.q.weight")
    if table is None or table.dim() != 2 or not table.numel():
        return {}
    buckets, heads = table.shape
    told = {"num_heads": heads, "relative_buckets": buckets}
    if queries is not None and queries.dim() == 2 and queries.size(0) % heads == 0:
        told["head_dim"] = queries.size(0) // heads
    return told


def same_values(one: Tensor, other: Tensor | None) -> bool:
    """Whether two tensors are the same table; one of a type that is not read is like no other."""
    if other is None or one.shape != other.shape:
        return False
    return one is other or (not (one.is_meta or other.is_meta) and torch.equal(one, other))
