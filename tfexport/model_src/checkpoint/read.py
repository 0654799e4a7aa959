"""A checkpoint to (config, weights), with an account of every key."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from tfexport.bundle import SpecialIds
from tfexport.errors import CheckpointError, ConfigError, Message, Option, join_problems
from tfexport.model_src.attention import Attention
from tfexport.model_src.build import build_transformer
from tfexport.model_src.checkpoint.account import (
    bad_values,
    expected_shapes,
    listed,
    upcast,
    wrong_weights,
)
from tfexport.model_src.checkpoint.complete import complete_config, needed
from tfexport.model_src.checkpoint.foreign import describe_config, is_ours
from tfexport.model_src.checkpoint.keymap import convert_weights
from tfexport.model_src.checkpoint.layouts import detect_layout, native, require_layout_name
from tfexport.model_src.checkpoint.overrides import (
    SETTINGS,
    Given,
    Text,
    merge,
    parse_settings,
    rename_keys,
)
from tfexport.model_src.checkpoint.shapes import computed_tables, share_tied_tables
from tfexport.model_src.checkpoint.state_dict import load_state_dict, read_json
from tfexport.model_src.checkpoint.wrappers import StateDict
from tfexport.model_src.config import BUNDLE_IDS as BUNDLE_IDS
from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.transformer import Transformer


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint, understood.

    Attributes:
        name: the file, or the module's class, for messages.
        path: the file; None for a module in memory.
        layout: the name of its layout.
        config: what the model computes.
        origins: config key to where its value came from: "weights", "assumed", or a source.
        weights: float32, under the model's own names.
        state_dict: the tensors as they were, under the layout's names (after ``rename``).
        fates: every key of the file to the weights that it became; empty if it was ignored.
    """

    name: str
    path: Path | None
    layout: str
    config: TransformerConfig
    origins: dict[str, str]
    weights: dict[str, Tensor]
    state_dict: dict[str, Tensor]
    fates: dict[str, tuple[str, ...]]

    @property
    def special_ids(self) -> SpecialIds:
        """The ids with a meaning; see ``TransformerConfig.special_ids``."""
        return self.config.special_ids

    def require(self, keys: Iterable[str]) -> None:
        """Insist on config values that the model could do without.

        Raises:
            ConfigError: naming all that are None.
        """
        missing = [key for key in keys if getattr(self.config, key) is None]
        if missing:
            raise ConfigError(join_problems(self.name, [needed(missing)]))

    def build(self, attention: type[Attention] = Attention) -> Transformer:
        """The model with these weights, in eval mode; see ``build_transformer``."""
        model = build_transformer(self.config, attention=attention)
        drawn = model.state_dict()
        computed = computed_tables(drawn, self.weights, self.config)
        # Strict: a weight that is neither in the file nor computed would stay as it was drawn.
        model.load_state_dict({**{name: drawn[name] for name in computed}, **self.weights})
        return model.eval().requires_grad_(False)


@dataclass(frozen=True)
class Examination:
    """A checkpoint as far as it can be understood, and what stands in the way of using it.

    Attributes:
        checkpoint: with stand-ins where the config is incomplete (origin "missing").
        problems: of the file and its weights.
        config_problems: of what was said, or not said, about it.
        remedy: what to do about the problems.
        notes: decisions of the reading that are worth knowing.
    """

    checkpoint: Checkpoint
    problems: list[Text]
    config_problems: list[Text]
    remedy: Text
    notes: list[Text]

    def require_usable(self) -> Checkpoint:
        """The checkpoint, if nothing stands in the way.

        Raises:
            CheckpointError: for problems of the file, and then of the config too.
            ConfigError: for problems of the config alone.
        """
        name = self.checkpoint.name
        notes = Message(*(Message("\nNote: ", note, ".") for note in self.notes))
        if self.problems:
            problems = self.problems + self.config_problems
            raise CheckpointError(Message(join_problems(name, problems, self.remedy), notes))
        if self.config_problems:
            raise ConfigError(Message(join_problems(name, self.config_problems), notes))
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
    foreign: Mapping[str, Any] = {}
    if native.METADATA_KEY in raw.metadata:
        sources.append((raw.path.name, native.read_config(raw.metadata, raw.path)))
    if beside.is_file():
        values = read_json(beside)
        if is_ours(values):
            sources.append((beside.name, values))
        else:
            foreign = values
    if isinstance(config, Mapping):
        sources.append(("config", config))
    elif config is not None:
        sources.append((Path(config).name, _read_named_config(Path(config))))
    sources.append((SETTINGS, parse_settings(settings)))
    return examine(raw, merge(sources), layout, require, defaults, foreign)


def _read_named_config(path: Path) -> dict[str, Any]:
    values = read_json(path)
    if (foreign := describe_config(values)) is not None:
        raise ConfigError(f"{path}: the config of {foreign}")
    return values


def examine(
    raw: StateDict,
    given: Given,
    layout_name: str | None = None,
    require: Iterable[str] = (),
    defaults: Mapping[str, Any] | None = None,
    foreign_config: Mapping[str, Any] | None = None,
) -> Examination:
    """Understand a flat state dict and what was said about it."""
    require_layout_name(layout_name)
    names = rename_keys((*raw.tensors, *raw.others), given)
    renamed = {key: name for key in raw.tensors if (name := names[key]) is not None}
    detected = detect_layout(raw, renamed.values(), layout_name, foreign_config)
    layout = detected.layout
    notes: list[Text] = [*raw.notes, *_notes(detected.prefix, foreign_config)]
    renamed = {key: name.removeprefix(detected.prefix) for key, name in renamed.items()}
    tensors = {name: raw.tensors[key] for key, name in renamed.items()}

    converted = convert_weights(layout, {name: upcast(it) for name, it in tensors.items()})
    weights, fates = converted.weights, converted.fates
    problems: list[Text] = [*converted.problems]
    problems += [f"{key} is not a tensor" for key in raw.others if names[key] is not None]
    unread = [
        key if key == name else f"{key} (renamed to {name})"
        for key, name in renamed.items()
        if name not in fates
    ]
    problems += listed("was not read", "keys were not read", unread)
    problems += bad_values({name: tensors[name] for name in fates})

    share_tied_tables(weights, {**layout.defaults, **(defaults or {}), **given.values})
    completion = complete_config(
        layout, weights, converted.num_heads, given, require, defaults or {}
    )
    expected = expected_shapes(completion.config)
    problems += wrong_weights(layout, weights, fates, expected, completion.config)
    remedy = Message(f"Read as {layout.title} (", Option("layout", layout.name), ").")
    if unread:
        remedy = Message(
            remedy,
            " A weight that is not read is one that the model computes with and this layout does "
            "not: an export without it would be another model. Where it goes by another name, map "
            "it with the config's 'rename'; only a weight that takes no part in the forward pass "
            "may be left out, with 'ignore'.",
        )
    checkpoint = Checkpoint(
        name=str(raw.path),
        path=raw.path,
        layout=layout.name,
        config=completion.config,
        origins=completion.origins,
        weights=weights,
        state_dict=tensors,
        fates={
            **{key: fates.get(name, ()) for key, name in renamed.items()},
            **{key: () for key, name in names.items() if name is None},
        },
    )
    return Examination(checkpoint, problems, completion.problems, remedy, notes)


def _notes(prefix: str, foreign_config: Mapping[str, Any] | None) -> list[Text]:
    notes: list[Text] = []
    if prefix:
        notes.append(f"every key starts with {prefix!r}, which was taken off")
    if foreign_config:
        kind = "is of Hugging Face" if describe_config(foreign_config) else "is not of tfexport"
        skipped = f"config.json beside it {kind} and was skipped; "
        notes.append(Message(skipped, Option("config", "FILE"), " names one"))
    return notes
