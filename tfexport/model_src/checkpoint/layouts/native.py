"""The project's own format: safetensors, the model's own names, the config in the metadata."""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from tfexport.atomic import new_file
from tfexport.model_src.checkpoint.keymap import (
    HALVES,
    POSITION_TABLE,
    THIRDS,
    Entries,
    KeyTable,
    Transposed,
)
from tfexport.model_src.checkpoint.layout import Layout, Prepared
from tfexport.model_src.checkpoint.overrides import parse_config
from tfexport.model_src.transformer import Transformer

METADATA_KEY = "tfexport_config"

# fmt: off
_WORDS = {
    "attention": {"self_attn": "self_attn", "cross_attn": "cross_attn"},
    "projection": {"q": "q", "k": "k", "v": "v", "out": "out"},
    "kv": {"k": "k", "v": "v"},
    "matrix": {"up": "up", "down": "down", "gate": "gate"},
    "gate_up": {"gate": "gate", "up": "up"},
    "up_gate": {"up": "up", "gate": "gate"},
    "sublayer": {"self_attn": "self_attn", "cross_attn": "cross_attn",
                 "feed_forward": "feed_forward"},
    "norm": {"token_norm": "token_norm", "norm": "norm"},
}
_LAYER = "{stack}.layers.{layer}"
_ATTENTION = f"{_LAYER}.{{attention}}"
_FEED_FORWARD = f"{_LAYER}.feed_forward"
_SAME = (
    f"{_ATTENTION}.{{projection}}_proj.{{kind}}",
    f"{_FEED_FORWARD}.{{matrix}}_proj.{{kind}}",
    f"{_LAYER}.{{sublayer}}_residual.norm.{{kind}}",
    f"{_LAYER}.self_attn.relative.{{weight}}",
    "{stack}.relative.{weight}",
    "{stack}.norm.{kind}",
    "{side}_embedding.tokens.weight",
    "{side}_embedding.{norm}.{kind}",
    "output_proj.{kind}",
)
_OWN: Entries = {
    **{name: name for name in _SAME},
    "{side}_embedding.positions.table": ("{side}_embedding.positions.table", POSITION_TABLE),
    "encoder.positions.table": ("encoder.positions.table", POSITION_TABLE),
}
# Forms of other modules, which only a rename table leads to.
_FORMS: Entries = {
    "tokens.weight": "{side}_embedding.tokens.weight",
    "positions.table": ("{side}_embedding.positions.table", POSITION_TABLE),
    f"{_ATTENTION}.{{projection}}_proj.weight.T":
        (f"{_ATTENTION}.{{projection}}_proj.weight", Transposed()),
    f"{_ATTENTION}.{{qkv}}_proj.{{head}}.{{kind}}": f"{_ATTENTION}.{{qkv}}_proj.{{kind}}",
    f"{_ATTENTION}.qkv_proj.{{kind}}": (f"{_ATTENTION}.{{qkv}}_proj.{{kind}}", THIRDS),
    f"{_ATTENTION}.qkv_proj.weight.T": (f"{_ATTENTION}.{{qkv}}_proj.weight", Transposed(THIRDS)),
    f"{_ATTENTION}.kv_proj.{{kind}}": (f"{_ATTENTION}.{{kv}}_proj.{{kind}}", HALVES),
    f"{_ATTENTION}.kv_proj.weight.T": (f"{_ATTENTION}.{{kv}}_proj.weight", Transposed(HALVES)),
    f"{_FEED_FORWARD}.{{matrix}}_proj.weight.T":
        (f"{_FEED_FORWARD}.{{matrix}}_proj.weight", Transposed()),
    f"{_FEED_FORWARD}.gate_up_proj.{{kind}}":
        (f"{_FEED_FORWARD}.{{gate_up}}_proj.{{kind}}", HALVES),
    f"{_FEED_FORWARD}.up_gate_proj.{{kind}}":
        (f"{_FEED_FORWARD}.{{up_gate}}_proj.{{kind}}", HALVES),
    "output_proj.weight.T": ("output_proj.weight", Transposed()),
}
# fmt: on

LAYOUT = Layout(
    name="native",
    title="tfexport",
    table=KeyTable({**_OWN, **_FORMS}, _WORDS),
    no_reference="the layout 'native' is that of tfexport's own modules",
)
# What names and shapes do not show.
_NOT_SHOWN = (
    "num_heads", "norm_placement", "norm", "norm_eps", "activation", "scale_embeddings",
)  # fmt: skip


def renamed_layout(names: Iterable[str]) -> Layout:
    """The layout of a file whose keys were renamed to these of the modules' own names."""
    positions = () if any(name.endswith("positions.table") for name in names) else ("positions",)
    return replace(
        LAYOUT,
        title="tfexport's own names",
        required=(*_NOT_SHOWN, *positions),
        prepare=_completed,
    )


def _completed(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Prepared:
    """Tensors that other modules have in another form, which computes the same."""
    notes: tuple[str, ...] = ()
    completed = {**tensors, **_zero_biases(tensors)}
    widths = [it.shape[-1] for name, it in tensors.items() if name.endswith("tokens.weight")]
    for name, tensor in tensors.items():
        if _NORM.search(name) and tensor.shape == (1,) and widths:  # one number for all values
            completed[name] = tensor.expand(widths[0])
    tables = {name: POSITION_TABLE(it)[0] for name, it in tensors.items() if _TABLE.search(name)}
    rows = sorted({len(table) for table in tables.values()})
    if len(rows) > 1:
        cut = f"the position tables have {rows} rows; the first {rows[0]} of each are used"
        notes = (cut,)
        completed |= {name: table[: rows[0]] for name, table in tables.items()}
    return Prepared(completed, notes=notes)


_NORM = re.compile(r"\bnorm\.(weight|bias)$")
_TABLE = re.compile(r"_embedding\.positions\.table$")
_PROJECTION = re.compile(
    r"\.(self_attn|cross_attn|feed_forward)\.(\w+_proj)(\.\d+)?\.weight(\.T)?$"
)


def _zero_biases(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Biases of zeros for projections without one, in all layers, if others of their kind have one.

    One that a single layer lacks is missing.
    """
    found = [(name, match) for name in tensors if (match := _PROJECTION.search(name))]
    biases = {
        (name[: match.start()].partition(".")[0], match[1], match[2])
        for name, match in found
        if _bias_of(name) in tensors
    }
    kinds = {kind == "feed_forward" for _, kind, _ in biases}
    return {
        _bias_of(name): tensors[name].new_zeros(tensors[name].shape[1 if match[4] else 0])
        for name, match in found
        if (match[1] == "feed_forward") in kinds
        and (name.partition(".")[0], match[1], match[2]) not in biases
        and tensors[name].dim() == 2
    }


def _bias_of(name: str) -> str:
    return name.removesuffix(".T").removesuffix("weight") + "bias"


def save_checkpoint(model: Transformer, path: str | os.PathLike[str], force: bool = False) -> None:
    """Write a model with its config, for ``load_checkpoint`` or ``tfexport onnx`` to read.

    Raises:
        OutputExistsError: the file exists and ``force`` is false.
    """
    tensors: dict[str, Tensor] = {}
    stored: dict[int, str] = {}
    for name, tensor in model.state_dict().items():
        # A tied table is stored under its first name only; the config has the ties.
        if stored.setdefault(tensor.data_ptr(), name) == name or tensor.numel() == 0:
            tensors[name] = tensor.detach().contiguous()
    with new_file(path, force) as partial:
        save_file(tensors, partial, {METADATA_KEY: json.dumps(model.config.to_dict())})


def read_metadata(metadata: Mapping[str, str], path: Path) -> dict[str, Any]:
    """The config values in a native file's metadata.

    Raises:
        CheckpointError: the metadata is not a config.
    """
    return parse_config(metadata[METADATA_KEY].encode(), f"{path}: the config in its metadata")
