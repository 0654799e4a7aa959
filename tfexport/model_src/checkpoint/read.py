"""A checkpoint to (config, weights), with an account of every key."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tfexport.errors import CheckpointError, ConfigError, join_problems
from tfexport.model_src.attention import Attention
from tfexport.model_src.build import build_transformer
from tfexport.model_src.checkpoint import native
from tfexport.model_src.checkpoint.keymap import Layout, convert_weights
from tfexport.model_src.checkpoint.layouts import LAYOUTS, detect_layout
from tfexport.model_src.checkpoint.load import StateDict, load_state_dict, read_json
from tfexport.model_src.checkpoint.options import (
    Given,
    merge,
    parse_settings,
    rename_keys,
)
from tfexport.model_src.checkpoint.shapes import (
    QUERY,
    SOURCE_TABLE,
    TARGET_TABLE,
    read_shapes,
    share_tied_tables,
)
from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.transformer import Transformer

FROM_WEIGHTS, ASSUMED, MISSING = "weights", "assumed", "missing"
BUNDLE_IDS = ("pad_id", "bos_id", "eos_id")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint, understood.

    Attributes:
        name: the file, for messages.
        layout: the name of its layout.
        config: what the model computes.
        origins: config key to where its value came from: "weights", "assumed", or a source.
        weights: float32, under the model's own names.
        state_dict: the tensors as they were, under the layout's names (after ``rename``).
        fates: every key of the file to the weights that it became; empty if it was ignored.
    """

    name: str
    layout: str
    config: TransformerConfig
    origins: dict[str, str]
    weights: dict[str, Tensor]
    state_dict: dict[str, Tensor]
    fates: dict[str, tuple[str, ...]]

    def build(self, attention: type[Attention] = Attention) -> Transformer:
        """The model with these weights, in eval mode; see ``build_transformer``."""
        model = build_transformer(self.config, attention=attention)
        model.load_state_dict(self.weights, strict=False)
        return model.eval().requires_grad_(False)


@dataclass(frozen=True)
class Examination:
    """A checkpoint as far as it can be understood, and what stands in the way of using it.

    Attributes:
        checkpoint: with stand-ins where the config is incomplete (origin "missing").
        problems: of the file and its weights.
        config_problems: of what was said, or not said, about it.
        remedy: what to do about the problems.
    """

    checkpoint: Checkpoint
    problems: list[str]
    config_problems: list[str]
    remedy: str

    def require_usable(self) -> Checkpoint:
        """The checkpoint, if nothing stands in the way.

        Raises:
            CheckpointError: for problems of the file, and then of the config too.
            ConfigError: for problems of the config alone.
        """
        name = self.checkpoint.name
        if self.problems:
            problems = self.problems + self.config_problems
            raise CheckpointError(join_problems(name, problems, self.remedy))
        if self.config_problems:
            raise ConfigError(join_problems(name, self.config_problems))
        return self.checkpoint


def load_checkpoint(
    path: str | os.PathLike[str],
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    settings: Iterable[str] = (),
    layout: str | None = None,
    require: Iterable[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Read a checkpoint, find its layout, complete its config and account for every key.

    Args:
        path: a .pt, .pth, .bin or .safetensors file, or a folder that holds one.
        config: config values, or a JSON file of them; they win over ``config.json`` beside the
            checkpoint.
        settings: ``key=value`` words; they win over both.
        layout: force a layout instead of detecting it.
        require: config keys that must have a value although the model could do without.
        defaults: values that stand in where neither file nor user says anything.

    Raises:
        CheckpointError: the file or its weights are unusable; every reason is given.
        ConfigError: the config is contradictory or incomplete; every reason is given.
    """
    found = examine_checkpoint(path, config, settings, layout, require, defaults)
    return found.require_usable()


def examine_checkpoint(
    path: str | os.PathLike[str],
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    settings: Iterable[str] = (),
    layout: str | None = None,
    require: Iterable[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> Examination:
    """``load_checkpoint``, with the problems of weights and config as data."""
    raw = load_state_dict(Path(path))
    beside = raw.path.with_name("config.json")
    sources: list[tuple[str, Mapping[str, Any]]] = []
    if native.METADATA_KEY in raw.metadata:
        sources.append((raw.path.name, native.read_config(raw.metadata, raw.path)))
    if beside.is_file():
        sources.append((beside.name, read_json(beside)))
    if isinstance(config, Mapping):
        sources.append(("config", config))
    elif config is not None:
        sources.append((Path(config).name, read_json(Path(config))))
    sources.append(("--set", parse_settings(settings)))
    return examine(raw, merge(sources), layout, require, defaults)


def examine(
    raw: StateDict,
    given: Given,
    layout_name: str | None = None,
    require: Iterable[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> Examination:
    """Understand a flat state dict and what was said about it."""
    _check_layout_name(layout_name)
    ignored = [key for key in (*raw.tensors, *raw.others) if _is_ignored(key, given.ignore)]
    names = rename_keys((key for key in raw.tensors if key not in ignored), given.rename)
    ignored += [key for key, name in names.items() if _is_ignored(name, given.ignore)]
    tensors = {name: raw.tensors[key] for key, name in names.items() if key not in ignored}
    layout = detect_layout(raw, tensors, layout_name)

    converted = convert_weights(layout, tensors)
    weights, fates, problems = converted.weights, converted.fates, converted.problems
    unread = [key for key in tensors if key not in fates]
    problems += [f"{key} is not a tensor" for key in raw.others if key not in ignored]
    problems += [f"{_named(names, key)} was not read" for key in unread]
    problems += _bad_tensors(tensors)

    share_tied_tables(weights, given.values)
    facts = {} if converted.num_heads is None else {"num_heads": converted.num_heads}
    values, origins, config_problems = _complete(
        layout, weights, facts, given, require, defaults or {}
    )
    config = _build_config(values, config_problems, weights)
    problems += _wrong_weights(layout, weights, fates, _expected_shapes(config))
    remedy = f"Read as {layout.title} (--format {layout.name})."
    if unread:
        remedy += " Map foreign names with the config's 'rename', drop them with 'ignore'."
    ignored_fates: dict[str, tuple[str, ...]] = dict.fromkeys(ignored, ())
    checkpoint = Checkpoint(
        name=str(raw.path),
        layout=layout.name,
        config=config,
        origins=origins,
        weights={name: tensor.float() for name, tensor in weights.items()},
        state_dict=tensors,
        fates={**{key: fates.get(name, ()) for key, name in names.items()}, **ignored_fates},
    )
    return Examination(checkpoint, problems, config_problems, remedy)


def _check_layout_name(name: str | None) -> None:
    if name is not None and name not in LAYOUTS:
        choices = ", ".join(repr(choice) for choice in LAYOUTS)
        raise ConfigError(f"--format: {name!r} is not one of {choices}.")


def _is_ignored(key: str, patterns: Iterable[str]) -> bool:
    return any(re.search(pattern, key) for pattern in patterns)


def _named(names: Mapping[str, str], name: str) -> str:
    key = next(key for key, renamed in names.items() if renamed == name)
    return name if key == name else f"{key} (renamed to {name})"


def _bad_tensors(tensors: Mapping[str, Tensor]) -> list[str]:
    problems = []
    for key, tensor in tensors.items():
        if not tensor.is_floating_point() or tensor.layout != torch.strided:
            problems.append(f"{key} holds {tensor.dtype} values, not plain floating-point ones")
        elif not torch.isfinite(tensor).all():
            count = int((~torch.isfinite(tensor)).sum())
            problems.append(f"{key} holds {count} values that are NaN or infinite")
    return problems


def _complete(
    layout: Layout,
    weights: Mapping[str, Tensor],
    facts: dict[str, Any],
    given: Given,
    require: Iterable[str],
    defaults: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """Config values from the weights, the user and the field's defaults; and what is wrong."""
    heads = facts.get("num_heads", given.values.get("num_heads", defaults.get("num_heads")))
    facts = {**read_shapes(weights, heads if isinstance(heads, int) else None), **facts}
    said = {**layout.defaults, **defaults, **given.values}
    for stack in ("encoder", "decoder"):
        if said.get(f"share_{stack}_layers"):  # one layer is stored, however often it is applied
            facts.pop(f"num_{stack}_layers", None)
        else:  # a file without layers is not believed to have as many as its config says
            facts.setdefault(f"num_{stack}_layers", 1)
    values = {**layout.defaults, **defaults, **facts, **given.values}
    origins = dict.fromkeys(values, ASSUMED)
    origins |= dict.fromkeys(defaults, "bundle") | dict.fromkeys(facts, FROM_WEIGHTS)
    origins |= given.origins
    problems = []
    for key, value in given.values.items():
        if key in facts and value != facts[key] and not (key.startswith("tie_") and not value):
            problems.append(
                f"{key} is {value!r} in {given.origins[key]}, but the weights say {facts[key]!r}"
            )
            values[key] = facts[key]
    query = weights.get(QUERY)
    if isinstance(heads, int) and heads > 0 and query is not None and query.shape[0] % heads:
        problems.append(f"num_heads: {heads} heads do not divide the {query.shape[0]} query rows")
    if SOURCE_TABLE not in weights and TARGET_TABLE not in weights:
        require = ()  # special ids mean nothing to a model that takes vectors
    missing = [key for key in (*layout.required, *require) if values.get(key) is None]
    origins |= dict.fromkeys(missing, MISSING)
    if missing:
        words = " ".join(f"--set {key}=…" for key in missing)
        problems.append(f"needed, and not in the file: {', '.join(missing)}; give {words}")
    return values, origins, problems


def _build_config(
    values: dict[str, Any], problems: list[str], weights: Mapping[str, Tensor]
) -> TransformerConfig:
    # What is missing or contradictory is reported with the rest; stand-ins let the other checks go
    # on, and are never used for anything else.
    complete = {"d_model": 1, "d_ff": 1, "num_encoder_layers": 1, "num_decoder_layers": 1}
    complete |= {key: value for key, value in values.items() if value is not None}
    query = weights.get(QUERY)
    if problems or query is None or "num_heads" not in complete:
        complete |= {"num_heads": 1, "head_dim": 1 if query is None else query.shape[0]}
    return TransformerConfig.from_dict({"num_heads": 1, **complete})


def _expected_shapes(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        state = build_transformer(config).state_dict()
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def _wrong_weights(
    layout: Layout,
    weights: Mapping[str, Tensor],
    fates: Mapping[str, tuple[str, ...]],
    expected: Mapping[str, tuple[int, ...]],
) -> list[str]:
    problems = []
    for name, shape in expected.items():
        key, wanted = layout.origin_of(name, shape)
        if name in weights:
            if tuple(weights[name].shape) != shape:
                _, found = layout.origin_of(name, tuple(weights[name].shape))
                problems.append(f"{key} has shape {list(found)}, expected {list(wanted)}")
        elif key not in fates and not name.endswith("positions.table"):
            problems.append(f"{key} {list(wanted)} is missing")
    problems += [f"{name} has no place in this model" for name in weights if name not in expected]
    return list(dict.fromkeys(problems))  # a packed tensor stands for several weights
