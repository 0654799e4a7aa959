"""Checks of a checkpoint's weights: missing, misshapen or unusable ones."""

import dataclasses
import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from tfexport.errors import join_some
from tfexport.model_src.build import build_transformer
from tfexport.model_src.checkpoint.keymap import KeyTable
from tfexport.model_src.checkpoint.shapes import computed_tables
from tfexport.model_src.config import TransformerConfig

_PRECISIONS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_LISTED = 8


def listed(one: str, many: str, items: list[str]) -> list[str]:
    """A sentence an item, or one for all of them where they are more than a few."""
    if len(items) > _LISTED:
        return [f"{len(items)} {many}: {join_some(items, _LISTED)}"]
    return [f"{item} {one}" for item in items]


def upcast(tensor: Tensor) -> Tensor:
    """A tensor's values in float32; of a type that has none, its shape alone."""
    if _is_float(tensor):
        return tensor.float()
    return torch.empty(tensor.shape, device="meta")


def _is_float(tensor: Tensor) -> bool:
    return tensor.dtype in _PRECISIONS or str(tensor.dtype).startswith("torch.float8")


def bad_values(tensors: Mapping[str, Tensor]) -> list[str]:
    """Sentences about tensors whose values are no finite numbers of float32."""
    problems = []
    for key, tensor in tensors.items():
        if not _is_float(tensor):
            problems.append(f"{key} holds {tensor.dtype} values, not plain floating-point ones")
        elif not (finite := torch.isfinite(tensor.float())).all():
            count = finite.numel() - int(finite.sum())
            problems.append(f"{key} holds {count} values that are NaN or infinite in float32")
    return problems


def expected_shapes(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
    """The name and shape of every weight that a model of this config has."""
    # All layers of a stack are alike, so that one of each is built.
    single = dataclasses.replace(config, num_encoder_layers=1, num_decoder_layers=1)
    with torch.device("meta"):
        state = build_transformer(single).state_dict()
    counts = {
        "encoder": 1 if config.share_encoder_layers else config.num_encoder_layers,
        "decoder": 1 if config.share_decoder_layers else config.num_decoder_layers,
    }
    shapes = {}
    for name, tensor in state.items():
        match = re.match(r"(encoder|decoder)\.layers\.0\.", name)
        rest = name[match.end() :] if match else ""
        names = (
            [f"{match[1]}.layers.{layer}.{rest}" for layer in range(counts[match[1]])]
            if match
            else [name]
        )
        shapes.update(dict.fromkeys(names, tuple(tensor.shape)))
    return shapes


def wrong_weights(
    table: KeyTable,
    weights: Mapping[str, Tensor],
    key_report: Mapping[str, tuple[str, ...]],
    expected: Mapping[str, tuple[int, ...]],
    config: TransformerConfig,
) -> list[str]:
    """Sentences about weights that are missing, of another shape, or without a place."""
    misshapen, missing = [], []
    computed = computed_tables(expected, weights, config)
    for name, shape in expected.items():
        key, wanted = table.origin_of(name, shape, config.num_heads)
        if name in weights:
            heads = sum(name in targets for targets in key_report.values())
            if tuple(weights[name].shape) == shape:
                continue
            if "*" in key and heads != config.num_heads:  # a tensor a head
                misshapen.append(f"{key} is there {heads} times, expected {config.num_heads}")
                continue
            _, found = table.origin_of(name, tuple(weights[name].shape), config.num_heads)
            misshapen.append(f"{key} has shape {list(found)}, expected {list(wanted)}")
        elif key not in key_report and name not in computed:
            missing.append(f"{key} {list(wanted)}")
    surplus = [table.origin_of(name, ())[0] for name in weights if name not in expected]
    return [
        *_few(misshapen),  # a packed tensor stands for several weights
        *listed("is missing", "weights are missing", _unique(missing)),
        *listed("has no place in this model", "weights have no place in this model", surplus),
    ]


def _few(sentences: Iterable[str]) -> list[str]:
    unique = _unique(sentences)
    more = [f"… and {len(unique) - _LISTED} more of another shape"]
    return unique[:_LISTED] + (more if len(unique) > _LISTED else [])


def _unique(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))
