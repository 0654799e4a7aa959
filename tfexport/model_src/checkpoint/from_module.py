"""A checkpoint from a module in memory, for the end of a training script."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn import functional as F

from tfexport.errors import ConfigError, join_problems
from tfexport.model_src.checkpoint.layouts import native
from tfexport.model_src.checkpoint.overrides import SETTINGS, Source, parse_settings
from tfexport.model_src.checkpoint.read import Checkpoint, examine
from tfexport.model_src.checkpoint.wrappers import StateDict, flatten
from tfexport.model_src.transformer import Transformer

_ACTIVATIONS = {F.relu: "relu", F.gelu: "gelu", F.silu: "silu"}
_ACTIVATION_MODULES = {nn.ReLU: "relu", nn.GELU: "gelu", nn.SiLU: "silu"}


def checkpoint_of(
    model: nn.Module,
    config: Mapping[str, Any] | None = None,
    settings: Iterable[str] = (),
    require: Iterable[str] = (),
    layout: str | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Read a module in memory as ``load_checkpoint`` reads a file.

    Values that a state dict does not hold come from the ``nn.Transformer`` inside, if there is one,
    from the ``config`` that a model of transformers has, and from ``config``, which overrides them.

    Raises:
        CheckpointError, ConfigError: as ``load_checkpoint``.
    """
    name = type(model).__name__
    if isinstance(model, Transformer):
        values, layout = model.config.to_dict(), native.NATIVE.name
    else:
        values = _read_module(model, name)
    own = _own_config(model)
    sources = [
        *([Source(f"{name}.config", own, optional=True)] if own else []),
        Source("module", values),
        Source("config", config or {}),
        Source(SETTINGS, parse_settings(settings)),
    ]
    flat = flatten(model.state_dict(), Path(name))
    # Cloned, so that further training does not change the checkpoint.
    tensors = {key: tensor.detach().cpu().clone() for key, tensor in flat.tensors.items()}
    raw = StateDict(Path(name), tensors, flat.others)
    found = examine(raw, sources, layout, require, defaults).require_usable()
    decoding = _generation_config(model) if found.own_config else {}
    return dataclasses.replace(found, path=None, generation_config=decoding)


def _own_config(model: nn.Module) -> dict[str, Any]:
    """The ``config`` of a model of transformers, or of the one inside, as its folder has it."""
    for part in model.modules():
        config = getattr(part, "config", None)
        if isinstance(getattr(config, "model_type", None), str):
            return {**_written(config), "architectures": [type(part).__name__]}
    return {}


def _generation_config(model: nn.Module) -> dict[str, Any]:
    found = (getattr(part, "generation_config", None) for part in model.modules())
    return next((_written(config) for config in found if config is not None), {})


def _written(config: Any) -> dict[str, Any]:
    """What transformers writes to a file: what differs from the defaults, as JSON values."""
    values: dict[str, Any] = json.loads(config.to_json_string())
    return values


def _read_module(model: nn.Module, name: str) -> dict[str, Any]:
    stacks = [module for module in model.modules() if isinstance(module, nn.Transformer)]
    layers = [
        layer
        for stack in stacks
        for layer in stack.modules()
        if isinstance(layer, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer)
    ]
    found: dict[str, set[Any]] = {}
    for layer in layers:
        of_layer = {
            "num_heads": layer.self_attn.num_heads,
            "norm_placement": "pre" if layer.norm_first else "post",
            "norm_eps": layer.norm1.eps,
            "activation": _activation(layer.activation),
            "dropout": layer.dropout1.p,
        }
        for key, value in of_layer.items():
            found.setdefault(key, set()).add(value)
    problems = [
        f"{key} differs between layers: {', '.join(sorted(map(repr, values)))}"
        for key, values in found.items()
        if len(values) > 1
    ]
    if problems:
        raise ConfigError(join_problems(name, problems))
    return {key: values.pop() for key, values in found.items()}


def _activation(activation: Any) -> str:
    name = _ACTIVATIONS.get(activation) or _ACTIVATION_MODULES.get(type(activation))
    if name is None or (isinstance(activation, nn.GELU) and activation.approximate != "none"):
        raise ConfigError(
            f"activation {activation!r} is not one of 'relu', 'gelu' (exact), 'silu'."
        )
    return name
