"""Reading of a checkpoint to a config and weights, with a report of every key."""

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tfexport.bundle import SpecialIds
from tfexport.deprecation import renamed_keywords
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
from tfexport.model_src.checkpoint.complete import complete_config, needed, stated_values
from tfexport.model_src.checkpoint.detect import Detected, detect_layout
from tfexport.model_src.checkpoint.json_values import read_json
from tfexport.model_src.checkpoint.keymap import convert_weights
from tfexport.model_src.checkpoint.layout import Layout, Prepared
from tfexport.model_src.checkpoint.layouts import native, require_layout_name
from tfexport.model_src.checkpoint.overrides import (
    SETTINGS,
    Source,
    Text,
    parse_settings,
    read_overrides,
)
from tfexport.model_src.checkpoint.rename_tables import (
    read_tables,
    rename_keys,
    unknown_config_keys,
)
from tfexport.model_src.checkpoint.shapes import computed_tables, share_tied_tables
from tfexport.model_src.checkpoint.state_dict import load_state_dict
from tfexport.model_src.checkpoint.wrappers import StateDict
from tfexport.model_src.config import BUNDLE_IDS as BUNDLE_IDS
from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.transformer import Transformer


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that has been read: its config and its weights.

    Attributes:
        name: the file, or the module's class, for messages.
        path: the file; None for a module in memory.
        layout: the name of its layout.
        config: what the model computes.
        origins: config key to where its value came from: "weights", "assumed", or a source.
        weights: float32, under the model's own names.
        state_dict: the tensors as they were, under the layout's names (after ``rename``).
        key_report: every key of the file to the weights that it became; empty if it was ignored.
        module: the live module that it was read from, to compare with; None for a file.
        reference: code of the user's own that computes the same, to compare with instead: source
            ids (B, S) and decoder ids (B, T) to logits (B, T, V); None if they gave none.
    """

    name: str
    path: Path | None
    layout: str
    config: TransformerConfig
    origins: dict[str, str]
    weights: dict[str, Tensor]
    state_dict: dict[str, Tensor]
    key_report: dict[str, tuple[str, ...]]
    module: nn.Module | None = field(default=None, repr=False, compare=False)
    reference: Callable[..., Any] | None = field(default=None, repr=False, compare=False)

    @property
    def special_ids(self) -> SpecialIds:
        """The ids with a meaning; see ``TransformerConfig.special_ids``."""
        return self.config.special_ids

    @property
    def fates(self) -> dict[str, tuple[str, ...]]:
        """The name of ``key_report`` before; for one release."""
        warnings.warn("Checkpoint.fates is now key_report.", DeprecationWarning, stacklevel=2)
        return self.key_report

    def require(self, keys: Iterable[str]) -> None:
        """Require config values that the model could do without.

        A model without embeddings has no tokens, and needs nothing that says what they mean.

        Raises:
            ConfigError: naming all that are None.
        """
        if not self.config.has_embeddings:
            return
        missing = [key for key in keys if getattr(self.config, key) is None]
        if missing:
            raise ConfigError(join_problems(self.name, [needed(missing)]))

    @renamed_keywords(attention="attention_class")
    def build(self, attention_class: type[Attention] = Attention) -> Transformer:
        """The model with these weights, in eval mode; see ``build_transformer``."""
        model = build_transformer(self.config, attention_class=attention_class)
        drawn = model.state_dict()
        computed = computed_tables(drawn, self.weights, self.config)
        # Strict: a weight that is neither in the file nor computed would keep random values.
        model.load_state_dict({**{name: drawn[name] for name in computed}, **self.weights})
        return model.eval().requires_grad_(False)


@dataclass(frozen=True)
class Examination:
    """A checkpoint as far as it could be read, and all problems found in it.

    Attributes:
        checkpoint: with placeholders where the config is incomplete (origin "missing").
        problems: of the file and its weights.
        config_problems: contradictory or missing config values.
        remedy: advice on the problems.
        notes: remarks for the user on how the file was read.
    """

    checkpoint: Checkpoint
    problems: list[Text]
    config_problems: list[Text]
    remedy: Text
    notes: list[Text]

    def require_usable(self) -> Checkpoint:
        """The checkpoint, if it has no problems.

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
        defaults: values for keys that neither file nor user gives.

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
    sources = []
    if native.METADATA_KEY in raw.metadata:
        sources.append(Source(raw.path.name, native.read_metadata(raw.metadata, raw.path)))
    beside = raw.path.with_name("config.json")
    if beside.is_file():
        sources.append(Source(beside.name, read_json(beside), beside, optional=True))
    if isinstance(config, Mapping):
        sources.append(Source("config", config))
    elif config is not None:
        sources.append(Source(Path(config).name, read_json(Path(config)), Path(config)))
    sources.append(Source(SETTINGS, parse_settings(settings)))
    return examine(raw, sources, layout, require, defaults)


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
    tensors = {name: raw.tensors[key] for key in raw.tensors if (name := names[key]) is not None}
    own = next((it.values for it in reversed(sources) if layout.claims(it.values)), {})
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
        key_report={
            **{
                key: read.get(name, ())
                for key, name in names.items()
                if key in raw.tensors and name is not None
            },
            **{key: () for key, name in names.items() if name is None},
        },
    )
    notes = [*raw.notes, *detected.notes, *skipped, *prepared.notes]
    return Examination(checkpoint, problems, completion.problems, _remedy(layout, unread), notes)


def _keys_read(
    prepared: Prepared, key_report: Mapping[str, tuple[str, ...]], tensors: Mapping[str, Tensor]
) -> dict[str, tuple[str, ...]]:
    """Every key of the file that was read, to the weights that it became."""
    found = {name: weights for name, weights in key_report.items() if name in tensors}
    for name, made in prepared.read.items():
        weights = tuple(weight for each in made for weight in key_report.get(each, ()))
        found[name] = (*found.get(name, ()), *weights)
    return found


def _find_layout(
    raw: StateDict, sources: Sequence[Source], layout_name: str | None
) -> tuple[dict[str, str | None], Detected]:
    """The layout, and every key of the file under the layout's name; None for ignored ones."""
    require_layout_name(layout_name)
    names = rename_keys((*raw.tensors, *raw.others), read_tables(sources))
    known = [name for key in raw.tensors if (name := names[key]) is not None]
    beside = next((source.values for source in sources if source.optional), None)
    try:
        detected = detect_layout(raw, known, layout_name, beside)
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
        " A weight that is not read is one that the model computes with and this layout does "
        "not: an export without it would be another model. Where it goes by another name, map "
        "it with the config's 'rename'; only a weight that takes no part in the forward pass "
        "may be left out, with 'ignore'.",
    )
