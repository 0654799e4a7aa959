"""Reading of a checkpoint to a config and weights, with a report of every key."""

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tfexport.errors import CheckpointError, Message, Option, join_some
from tfexport.model_src.build import build_transformer
from tfexport.model_src.checkpoint.checkpoint import Checkpoint as Checkpoint
from tfexport.model_src.checkpoint.checkpoint import Examination as Examination
from tfexport.model_src.checkpoint.checkpoint import (
    complete_config,
    computed_tables,
    share_tied_tables,
    stated_values,
)
from tfexport.model_src.checkpoint.detect import Detected, detect_layout
from tfexport.model_src.checkpoint.files import CheckpointFiles
from tfexport.model_src.checkpoint.keymap import KeyTable, convert_weights
from tfexport.model_src.checkpoint.layout import Layout, Prepared
from tfexport.model_src.checkpoint.layouts import native, require_layout_name
from tfexport.model_src.checkpoint.overrides import (
    SETTINGS,
    Source,
    Text,
    parse_settings,
    read_json,
    read_overrides,
)
from tfexport.model_src.checkpoint.rename_tables import (
    Rename,
    read_tables,
    rename_keys,
    table_source,
    unknown_config_keys,
)
from tfexport.model_src.checkpoint.state_dict import StateDict
from tfexport.model_src.checkpoint.unsupported import MODULE, with_lines
from tfexport.model_src.checkpoint.weight_files import load_state_dict
from tfexport.model_src.config import BUNDLE_IDS as BUNDLE_IDS
from tfexport.model_src.config import TransformerConfig

_PRECISIONS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_LISTED = 8


def listed(one: str, many: str, items: list[str]) -> list[str]:
    """A sentence for each item, or one sentence for many items."""
    if len(items) > _LISTED:
        return [f"{len(items)} {many}: {join_some(items, _LISTED)}"]
    return [f"{item} {one}" for item in items]


def upcast(tensor: Tensor) -> Tensor:
    """A tensor's values in float32; only its shape for other types."""
    if _is_float(tensor):
        return tensor.float()
    return torch.empty(tensor.shape, device="meta")


def _is_float(tensor: Tensor) -> bool:
    return tensor.dtype in _PRECISIONS or str(tensor.dtype).startswith("torch.float8")


def bad_values(tensors: Mapping[str, Tensor]) -> list[str]:
    """Sentences about tensors with values that are not finite in float32."""
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
    """Sentences about weights that are missing, misshapen or not read."""
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
        *_few(misshapen),  # a packed tensor is several weights
        *listed("is missing", "weights are missing", _unique(missing)),
        *listed("is not part of this model", "weights are not part of this model", surplus),
    ]


def _few(sentences: Iterable[str]) -> list[str]:
    unique = _unique(sentences)
    more = [f"… and {len(unique) - _LISTED} more with a wrong shape"]
    return unique[:_LISTED] + (more if len(unique) > _LISTED else [])


def _unique(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))


def load_checkpoint(
    path: str | os.PathLike[str],
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    settings: Iterable[str] = (),
    layout: str | None = None,
    require: Iterable[str] = (),
    defaults: Mapping[str, Any] | None = None,
    rename: Rename | None = None,
) -> Checkpoint:
    """Read a checkpoint, find its layout, complete its config and report every key.

    Args:
        path: a .pt, .pth, .bin or .safetensors file, or a folder that holds one.
        config: config values, or a JSON file of them; they override ``config.json`` next to the
            checkpoint.
        settings: ``key=value`` words; they win over both.
        layout: force a layout instead of detecting it.
        require: config keys that must have a value although the model could do without.
        defaults: values for keys that neither file nor user gives.
        rename: a table of keys to names, or a JSON file of one; it replaces that of the config. See
            docs/checkpoints.md.

    Raises:
        CheckpointError: the file or its weights are unusable; every reason is given.
        ConfigError: the config is contradictory or incomplete; every reason is given.
    """
    found = examine_checkpoint(path, config, settings, layout, require, defaults, rename)
    with with_lines(found.checkpoint.path, found.inside):
        return found.require_usable()


def examine_checkpoint(
    path: str | os.PathLike[str],
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    settings: Iterable[str] = (),
    layout: str | None = None,
    require: Iterable[str] = (),
    defaults: Mapping[str, Any] | None = None,
    rename: Rename | None = None,
) -> Examination:
    """``load_checkpoint``, with the problems of weights and config as data."""
    files = CheckpointFiles.of(path)
    with with_lines(files.path):
        raw = load_state_dict(files)
    sources = [Source(raw.config_name, raw.config, optional=True)] if raw.config else []
    if native.METADATA_KEY in raw.metadata:
        sources.append(Source(raw.path.name, native.read_metadata(raw.metadata, raw.path)))
    if files.config:
        config_file = raw.path.with_name("config.json")
        sources.append(Source(config_file.name, files.config, config_file, optional=True))
    if isinstance(config, Mapping):
        sources.append(Source("config", config))
    elif config is not None:
        sources.append(Source(Path(config).name, read_json(Path(config)), Path(config)))
    sources.append(Source(SETTINGS, parse_settings(settings)))
    sources += [table_source(rename)] if rename is not None else []
    with with_lines(raw.path, raw.inside):
        found = examine(raw, sources, layout, require, defaults)
    if not found.checkpoint.own_config:
        return found
    decoding = files.generation_config or {}
    checkpoint = dataclasses.replace(found.checkpoint, generation_config=decoding)
    return dataclasses.replace(found, checkpoint=checkpoint)


def examine(
    raw: StateDict,
    sources: Sequence[Source],
    layout_name: str | None = None,
    require: Iterable[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> Examination:
    """Read a flat state dict: its layout, then its config and its weights."""
    names, detected = _find_layout(raw, sources, layout_name)
    layout, defaults = detected.layout, defaults or {}
    overrides, skipped = read_overrides(sources, layout)
    own = overrides.own_config
    tensors = {name: raw.tensors[key] for key in raw.tensors if (name := names[key]) is not None}
    prepared = layout.prepare({name: upcast(it) for name, it in tensors.items()}, own)
    converted = convert_weights(layout.table, prepared.tensors)
    weights, read = converted.weights, _keys_read(prepared, converted.key_report, tensors)
    unread = [
        key if key == name else f"{key} (renamed to {name})"
        for key in raw.tensors
        if (name := names[key]) is not None and name not in read
    ]
    share_tied_tables(weights, stated_values(layout, defaults, overrides))
    completion = complete_config(
        layout, weights, converted.num_heads, overrides, require, defaults, prepared.values
    )
    expected = expected_shapes(completion.config)
    problems: list[Text] = [
        *prepared.problems,
        *converted.problems,
        *(f"{key} is not a tensor" for key in raw.others if names[key] is not None),
        *listed("was not read", "keys were not read", unread),
        *bad_values({name: tensors[name] for name in read}),
        *wrong_weights(layout.table, weights, converted.key_report, expected, completion.config),
    ]
    checkpoint = Checkpoint(
        name=str(raw.path),
        path=raw.path,
        layout=layout.name,
        config=completion.config,
        origins=completion.origins,
        weights=weights,
        state_dict=tensors,
        key_report=_key_report(raw, names, read),
        own_config=own,
    )
    notes = [*raw.notes, *detected.notes, *skipped, *prepared.notes]
    remedy = _remedy(layout, unread)
    return Examination(checkpoint, problems, completion.problems, remedy, notes, raw.inside)


def _key_report(
    raw: StateDict, names: Mapping[str, str | None], read: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Every key of the file to the weights that it became, those that are ignored last."""
    kept = {key: name for key, name in names.items() if key in raw.tensors and name is not None}
    ignored = [key for key, name in names.items() if name is None]
    return {key: read.get(name, ()) for key, name in kept.items()} | dict.fromkeys(ignored, ())


def _keys_read(
    prepared: Prepared, key_report: Mapping[str, tuple[str, ...]], tensors: Mapping[str, Tensor]
) -> dict[str, tuple[str, ...]]:
    """Every key of the file that was read, to the weights that it became."""
    found = {name: weights for name, weights in key_report.items() if name in tensors}
    for name, made in prepared.read.items():
        weights = tuple(weight for each in made for weight in key_report.get(each, ()))
        if made and not weights:
            continue  # renamed to what the table does not know
        found[name] = (*found.get(name, ()), *weights)
    return found


def _find_layout(
    raw: StateDict, sources: Sequence[Source], layout_name: str | None
) -> tuple[dict[str, str | None], Detected]:
    """Every key of a file under its layout's name, None for ignored ones; and the layout."""
    require_layout_name(layout_name)
    tables = read_tables(sources)
    names = rename_keys((*raw.tensors, *raw.others), tables)
    known = [name for key in raw.tensors if (name := names[key]) is not None]
    named = [it for it in reversed(sources) if it.path and "model_type" in it.values]
    # A config.json that the caller names decides the layout, otherwise one in the same folder.
    configs = [it.values for it in named if not it.optional]
    configs += [it.values for it in sources if it.optional]
    try:
        config = configs[0] if configs else None
        detected = detect_layout(raw, known, layout_name, config, renamed=bool(tables.rename))
    except CheckpointError as error:
        # A table under a misspelt name may be why; a config of another kind has other keys.
        given = [it for it in sources if not it.optional and "model_type" not in it.values]
        unknown = [Message("\nNote: ", problem, ".") for problem in unknown_config_keys(given)]
        raise CheckpointError(Message(error.message, *unknown)) from None
    stripped = {
        key: None if name is None else name.removeprefix(detected.prefix)
        for key, name in names.items()
    }
    return stripped, detected


def _remedy(layout: Layout, unread: list[str]) -> Message:
    read_as = Message(f"Read as {layout.title} (", Option("layout", layout.name), ").")
    if not unread:
        return read_as
    return Message(
        read_as,
        " Every weight must be read, because an export without it would compute something else. "
        "If a weight has another name, map it with the config's 'rename'. If the forward pass "
        "does not use it, list it in 'ignore'. If the model computes more than this layout, "
        f"{MODULE}.",
    )
