"""Checkpoints that have been read, and partly read ones with their problems."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tfexport.bundle import SpecialIds
from tfexport.errors import CheckpointError, ConfigError, Message, Option, join_problems, shown
from tfexport.model_src.attention import Attention
from tfexport.model_src.build import build_transformer, with_attention
from tfexport.model_src.checkpoint.generation_config import Generation
from tfexport.model_src.checkpoint.layout import Layout
from tfexport.model_src.checkpoint.layouts import LAYOUTS
from tfexport.model_src.checkpoint.overrides import SETTINGS, Overrides, Text, fold, name_origin
from tfexport.model_src.config import TransformerConfig, choices
from tfexport.model_src.transformer import Transformer

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
    """Replace tables that the config ties by one tensor, under all of their names."""
    pairs = [(SOURCE_TABLE, TARGET_TABLE)] if config.get("tie_embeddings") else []
    pairs += [(TARGET_TABLE, OUTPUT_TABLE)] if config.get("tie_output") else []
    for first, second in [*pairs, *reversed(pairs)]:
        if first in weights and second not in weights:
            weights[second] = weights[first]
        elif second in weights and first not in weights:
            weights[first] = weights[second]


ASSUMED, FROM_BUNDLE, FROM_WEIGHTS, MISSING = "assumed", "bundle", "weights", "missing"
_EMBEDDINGS = {
    SOURCE_TABLE: ("source_vocab_size", "source"),
    TARGET_TABLE: ("target_vocab_size", "target"),
}


@dataclass(frozen=True)
class Completion:
    """A config, completed as far as possible.

    Attributes:
        config: the config, with placeholder values for missing or contradictory ones.
        origins: config key to "assumed", "bundle", "weights", "missing", or a source's origin.
        problems: the problems, one sentence each.
    """

    config: TransformerConfig
    origins: dict[str, str]
    problems: list[Text]


def complete_config(
    layout: Layout,
    weights: Mapping[str, Tensor],
    num_heads: int | None,
    overrides: Overrides,
    require: Iterable[str],
    defaults: Mapping[str, Any],
    from_tensors: Mapping[str, Any] | None = None,
) -> Completion:
    """Merge config values; shapes of the weights override values that contradict them.

    Args:
        layout: the layout, which has the defaults of its family.
        weights: the weights by the model's names; tied tables have both of their names.
        num_heads: the number of heads, if the names of the weights number them.
        overrides: config values from files, the module and the caller.
        require: keys that must have a value although the model could do without.
        defaults: values for keys that neither file nor caller gives.
        from_tensors: values that the layout found in the tensors.
    """
    stated = stated_values(layout, defaults, overrides)
    heads = stated.get("num_heads") if num_heads is None else num_heads
    heads = heads if isinstance(heads, int) and not isinstance(heads, bool) else None
    inferred = _infer(weights, heads, num_heads is not None, stated) | dict(from_tensors or {})
    by_precedence = [
        (ASSUMED, layout.defaults),
        (FROM_BUNDLE, defaults),
        (FROM_WEIGHTS, inferred),
        *overrides.layers,
    ]
    values, origins = fold(by_precedence)
    problems = _contradictions(values, inferred, overrides)
    rows = size_of(weights, QUERY, 0)
    uneven = heads is not None and heads > 0 and rows is not None and rows % heads != 0
    if uneven:
        problems.append(f"num_heads: {shown(heads)} heads do not divide the {rows} query rows")
    problems += _half_embeddings(layout, weights, values)
    if SOURCE_TABLE not in weights and TARGET_TABLE not in weights:
        require = ()  # special ids mean nothing to a model that takes vectors
    missing = [key for key in (*layout.required, *require) if values.get(key) is None]
    origins |= dict.fromkeys(missing, MISSING)
    if missing:
        problems.append(needed(missing))
    if "num_heads" in missing and "head_dim" not in values:
        origins["head_dim"] = MISSING  # it follows from the heads
    if uneven or rows is None:
        values.pop("num_heads", None)
    return Completion(_build(values, problems, rows), origins, problems)


def stated_values(
    layout: Layout, defaults: Mapping[str, Any], overrides: Overrides
) -> dict[str, Any]:
    """Config values that do not depend on the weights."""
    return fold([(ASSUMED, layout.defaults), (FROM_BUNDLE, defaults), *overrides.layers])[0]


def _infer(
    weights: Mapping[str, Tensor],
    heads: int | None,
    heads_are_counted: bool,
    stated: Mapping[str, Any],
) -> dict[str, Any]:
    inferred = read_shapes(weights, heads)
    if heads_are_counted:
        inferred["num_heads"] = heads
    for stack in ("encoder", "decoder"):
        if stated.get(f"share_{stack}_layers"):  # one layer is stored, however often it is applied
            inferred.pop(f"num_{stack}_layers", None)
        else:  # without layers in the file, nothing would check the number in its config
            inferred.setdefault(f"num_{stack}_layers", 1)
    return inferred


def needed(keys: Iterable[str]) -> Message:
    """A sentence about config keys that need a value, and how to set it."""
    keys = list(keys)
    words = Option(SETTINGS, [f"{key}=…" for key in keys])
    named = (f"{key} ({values})" if (values := _describe_values(key)) else key for key in keys)
    return Message(f"required, but not in the file: {', '.join(named)}; set ", words)


def _describe_values(key: str) -> str:
    """The values that a config key may have, if they are few."""
    values = choices(key)
    return f"{', '.join(values[:-1])} or {values[-1]}" if values else ""


def _contradictions(
    values: dict[str, Any], inferred: Mapping[str, Any], overrides: Overrides
) -> list[Text]:
    problems: list[Text] = []
    for key, value in overrides.values.items():
        if (
            key in inferred
            and value != inferred[key]
            and not (key.startswith("tie_") and not value)
        ):
            problems.append(
                Message(
                    f"{key} is {shown(value)} in ",
                    name_origin(overrides.origins[key]),
                    f", but the weights have {inferred[key]!r}",
                )
            )
            values[key] = inferred[key]
    return problems


def _half_embeddings(
    layout: Layout, weights: Mapping[str, Tensor], values: dict[str, Any]
) -> list[Text]:
    """Report an embedding table that is missing; the other one's size is used for it."""
    present = [name for name in _EMBEDDINGS if name in weights]
    if len(present) != 1:
        return []
    (there,) = present
    (absent,) = set(_EMBEDDINGS) - {there}
    size, side = _EMBEDDINGS[absent]
    key, _ = layout.table.origin_of(absent, ())
    values[size] = size_of(weights, there, 0)
    missing = f"{key}, the {side} embedding, is missing"
    one_table = Option(SETTINGS, ["tie_embeddings=true"])
    words = size_of(weights, OUTPUT_TABLE, 0) if absent == TARGET_TABLE else None
    if words is None:
        return [Message(f"{missing}; if both sides share one table, set ", one_table)]
    output, _ = layout.table.origin_of(OUTPUT_TABLE, ())
    as_output = Option(SETTINGS, ["tie_output=true"])
    fits = words == values[size]
    values[size] = words
    if not fits:
        return [
            Message(f"{missing}; if {output}, the output layer, serves as it, give ", as_output)
        ]
    source, _ = layout.table.origin_of(SOURCE_TABLE, ())
    return [
        Message(
            f"{missing}. Two tables fit, and only the model's code shows which is used: for "
            f"{output}, the output layer, give ",
            as_output,
            f"; for {source}, the source embedding, give ",
            one_table,
        )
    ]


def _build(
    values: dict[str, Any], problems: list[Text], query_rows: int | None
) -> TransformerConfig:
    # Missing and contradictory values are reported as problems; placeholders only let the other
    # checks continue.
    complete = {"d_model": 1, "d_ff": 1, "num_encoder_layers": 1, "num_decoder_layers": 1}
    complete |= {key: value for key, value in values.items() if value is not None}
    if "num_heads" not in complete:
        complete |= {"num_heads": 1, "head_dim": query_rows or 1}
    try:
        return TransformerConfig.from_dict(complete)
    except ConfigError as error:
        if not problems:
            raise
        lines = [Message("\n", problem) for problem in problems]
        raise ConfigError(Message(error.message, *lines)) from None


# Settings of the forward pass that the weights do not show.
_UNSEEN = (
    "num_heads", "norm_placement", "norm_eps", "activation", "scale_embeddings", "positions",
    "mask_fill", "tie_embeddings", "tie_output", "pad_id", "bos_id", "eos_id", "add_source_bos",
    "add_source_eos",
)  # fmt: skip
# The same for settings that few models have.
_SELDOM = (
    "decoder_num_heads", "decoder_norm_placement", "scale_target_embeddings", "scale_scores",
    "first_position", "padding_has_position", "residual_scale", "relative_positions",
    "relative_max_distance", "start_id", "unk_id",
)  # fmt: skip


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
            A recognised module has none.
        own_config: values of the model's own kind of config.json; empty if there is none.
        generation_config: the values of the generation_config.json next to it.
        module: the live module that it was read from, to compare with; None for a file.
        reference: the user's own code that computes the same, to compare with instead: source
            ids (B, S) and decoder ids (B, T) to logits (B, T, V); None if they gave none.
        generation: the decoding defaults, if they are in no file.
    """

    name: str
    path: Path | None
    layout: str
    config: TransformerConfig
    origins: dict[str, str]
    weights: dict[str, Tensor]
    state_dict: dict[str, Tensor]
    key_report: dict[str, tuple[str, ...]]
    own_config: Mapping[str, Any] = field(default_factory=dict)
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    module: nn.Module | None = field(default=None, repr=False, compare=False)
    reference: Callable[..., Any] | None = field(default=None, repr=False, compare=False)
    generation: Generation | None = None
    _models: dict[type[Attention], Transformer] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def special_ids(self) -> SpecialIds:
        """The ids with a meaning; see ``TransformerConfig.special_ids``."""
        return self.config.special_ids

    def read_generation(self) -> Generation:
        """Defaults of decoding in the model's own files; nothing if its layout has no such files.

        Raises:
            ConfigError: settings are not supported; all are listed.
        """
        if self.generation is not None:
            return self.generation
        read = LAYOUTS[self.layout].generation if self.layout in LAYOUTS else None
        if read is None or not self.own_config:
            return Generation(start_id=self.config.start_id)
        return read(self.own_config, self.generation_config)

    @property
    def reads_texts(self) -> bool:
        """Whether the model reads texts of several sentences, by its family or its config.json."""
        tasks = self.own_config.get("task_specific_params")
        names = tasks if isinstance(tasks, dict) else ()
        family = self.layout in LAYOUTS and LAYOUTS[self.layout].reads_texts
        return family or any(str(name).startswith("summarization") for name in names)

    @property
    def unseen(self) -> dict[str, str]:
        """Settings that the weights do not show, and where each comes from; see ``origins``.

        Defaults of parts that the model does not have are left out.
        """
        usual = TransformerConfig(1, 1, 1, 1, 1).to_dict()
        values = self.config.to_dict()
        found = {key: self.origins.get(key, ASSUMED) for key in (*_UNSEEN, *_SELDOM)}
        return {
            key: origin
            for key, origin in found.items()
            if origin != FROM_WEIGHTS
            and not (
                key in _SELDOM and origin in (ASSUMED, FROM_BUNDLE) and values[key] == usual[key]
            )
        }

    def require(self, keys: Iterable[str]) -> None:
        """Require config values that the model could do without.

        A model without embeddings has no tokens and needs no special ids.

        Raises:
            ConfigError: required values are None; all are listed.
        """
        if not self.config.has_embeddings:
            return
        missing = [key for key in keys if getattr(self.config, key) is None]
        if missing:
            raise ConfigError(join_problems(self.name, [needed(missing)]))

    def build(self, attention_class: type[Attention] = Attention) -> Transformer:
        """The model with these weights, in eval mode; see ``build_transformer``."""
        model = build_transformer(self.config, attention_class=attention_class)
        drawn = model.state_dict()
        computed = computed_tables(drawn, self.weights, self.config)
        # Strict: a weight that is neither in the file nor computed would keep random values.
        model.load_state_dict({**{name: drawn[name] for name in computed}, **self.weights})
        return model.eval().requires_grad_(False)

    def model(self, attention_class: type[Attention] = Attention) -> Transformer:
        """The model of ``build``, built once: those of all classes have the same parameters.

        It is not to be changed.
        """
        models = self._models
        if Attention not in models:
            models[Attention] = self.build()
        if attention_class not in models:
            models[attention_class] = with_attention(models[Attention], attention_class)
        return models[attention_class]


@dataclass(frozen=True)
class Examination:
    """A checkpoint as far as it could be read, and all problems found in it.

    Attributes:
        checkpoint: the checkpoint, with placeholders for missing config values (origin "missing").
        problems: problems of the file and its weights.
        config_problems: contradictory or missing config values.
        remedy: advice on the problems.
        notes: remarks for the user on how the file was read.
        inside: see ``StateDict``.
    """

    checkpoint: Checkpoint
    problems: list[Text]
    config_problems: list[Text]
    remedy: Text
    notes: list[Text]
    inside: tuple[Any, ...] | None = None

    def require_usable(self) -> Checkpoint:
        """The checkpoint, if it has no problems.

        Raises:
            CheckpointError: for problems of the file, and then of the config too.
            ConfigError: for problems of the config only.
        """
        name = self.checkpoint.name
        notes = Message(*(Message("\nNote: ", note, ".") for note in self.notes))
        if self.problems:
            problems = self.problems + self.config_problems
            raise CheckpointError(Message(join_problems(name, problems, self.remedy), notes))
        if self.config_problems:
            raise ConfigError(Message(join_problems(name, self.config_problems), notes))
        return self.checkpoint
