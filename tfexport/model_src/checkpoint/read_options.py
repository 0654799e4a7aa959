"""Options for reading a checkpoint from a path, a module, or a ``Checkpoint``."""

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn import functional as F

from tfexport.errors import ConfigError, Message, Option, join_problems
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.checkpoint.files import CheckpointFiles
from tfexport.model_src.checkpoint.layouts import native
from tfexport.model_src.checkpoint.overrides import SETTINGS, Source, parse_settings, read_json
from tfexport.model_src.checkpoint.read import examine, load_checkpoint
from tfexport.model_src.checkpoint.rename_tables import Rename, table_source
from tfexport.model_src.checkpoint.state_dict import StateDict, flatten
from tfexport.model_src.checkpoint.unsupported import with_lines
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
    rename: Rename | None = None,
) -> Checkpoint:
    """Read a module in memory as ``load_checkpoint`` reads a file.

    Values that a state dict does not hold come from the ``nn.Transformer`` inside, if there is one,
    from the ``config`` that a model of transformers has, and from ``config``, which overrides them.

    Raises:
        CheckpointError, ConfigError: as ``load_checkpoint``.
    """
    name = type(model).__name__
    if isinstance(model, Transformer):
        values, layout = model.config.to_dict(), native.LAYOUT.name
    else:
        values = _read_module(model, name)
    own = _own_config(model)
    sources = [
        *([Source(f"{name}.config", own, optional=True)] if own else []),
        Source("module", values),
        Source("config", config or {}),
        Source(SETTINGS, parse_settings(settings)),
        *([table_source(rename)] if rename is not None else []),
    ]
    flat = flatten(model.state_dict(), Path(name))
    # Cloned, so that further training does not change the checkpoint.
    tensors = {key: tensor.detach().cpu().clone() for key, tensor in flat.tensors.items()}
    raw = StateDict(Path(name), tensors, flat.others)
    with with_lines():
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
    """The values that transformers writes to a file: those other than the defaults, as JSON."""
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


# Decoder ids start with the start token, and rows are never padded.
_OF_REFERENCE = ("pad_id", "bos_id")
CheckpointLike = str | os.PathLike[str] | nn.Module | Checkpoint


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading a checkpoint.

    Attributes:
        config: config values, or a JSON file of them; they override ``config.json`` next to the
            checkpoint.
        settings: ``key=value`` strings; they override both.
        layout: the name of the layout; None to detect it.
        reference: the user's own code to compare with; see ``Checkpoint``.
        rename: a table of keys to names, or a JSON file of one.
    """

    config: str | os.PathLike[str] | Mapping[str, Any] | None = None
    settings: Iterable[str] = ()
    layout: str | None = None
    reference: Callable[..., Any] | None = None
    rename: Rename | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", tuple(self.settings))

    def read(
        self,
        checkpoint: CheckpointLike,
        require: Iterable[str] = (),
        defaults: Mapping[str, Any] | None = None,
    ) -> Checkpoint:
        """Read a file or a module in memory; a ``Checkpoint`` is returned unchanged.

        Args:
            checkpoint: path of a file or folder, a module, or a ``Checkpoint``.
            require: config keys that must have a value although the model could do without.
            defaults: values for keys that neither the checkpoint nor the options give.

        Raises:
            CheckpointError: the file or its weights are unusable; every reason is given.
            ConfigError: the config is contradictory or incomplete, or there are options for a
                ``Checkpoint``, which has been read.
        """
        if self.reference is not None:
            require = (*require, *(key for key in _OF_REFERENCE if key not in require))
        found = self._read(checkpoint, tuple(require), defaults)
        if self.reference is None:
            return found
        return dataclasses.replace(found, reference=self.reference)

    def _read(
        self,
        checkpoint: CheckpointLike,
        require: tuple[str, ...],
        defaults: Mapping[str, Any] | None,
    ) -> Checkpoint:
        if isinstance(checkpoint, Checkpoint):
            self._refuse_options(checkpoint)
            checkpoint.require(require)
            return checkpoint
        if isinstance(checkpoint, nn.Module):
            found = checkpoint_of(
                checkpoint, self._config_values(), self.settings, require, self.layout, defaults,
                self.rename,
            )  # fmt: skip
            return dataclasses.replace(found, module=checkpoint)
        return load_checkpoint(
            checkpoint, self.config, self.settings, self.layout, require, defaults, self.rename
        )

    def _config_values(self) -> Mapping[str, Any] | None:
        if self.config is None or isinstance(self.config, Mapping):
            return self.config
        return read_json(Path(self.config))

    def _refuse_options(self, checkpoint: Checkpoint) -> None:
        given = [
            Message(Option(name), " controls reading a checkpoint, but this one was already read")
            for name in ("config", "settings", "layout", "rename")
            if getattr(self, name)
        ]
        if given:
            raise ConfigError(
                join_problems(checkpoint.name, given, "Set it where the checkpoint is loaded.")
            )


def files_of(checkpoint: CheckpointLike) -> CheckpointFiles | None:
    """The files of a checkpoint, among which its tokenizer is looked for; None for a module."""
    if isinstance(checkpoint, nn.Module):
        return None
    path = checkpoint.path if isinstance(checkpoint, Checkpoint) else checkpoint
    return None if path is None else CheckpointFiles.of(path)
