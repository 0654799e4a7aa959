"""A checkpoint that has been read, or as far as it could be."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tfexport.bundle import SpecialIds
from tfexport.errors import CheckpointError, ConfigError, Message, Option, join_problems, shown
from tfexport.model_src.attention import Attention
from tfexport.model_src.build import build_transformer
from tfexport.model_src.checkpoint.generation_config import Generation
from tfexport.model_src.checkpoint.layout import Layout
from tfexport.model_src.checkpoint.layouts import LAYOUTS
from tfexport.model_src.checkpoint.overrides import SETTINGS, Overrides, Text, fold, name_origin
from tfexport.model_src.checkpoint.shapes import (
    OUTPUT_TABLE,
    QUERY,
    SOURCE_TABLE,
    TARGET_TABLE,
    computed_tables,
    read_shapes,
    size_of,
)
from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.transformer import Transformer

ASSUMED, FROM_BUNDLE, FROM_WEIGHTS, MISSING = "assumed", "bundle", "weights", "missing"
_EMBEDDINGS = {
    SOURCE_TABLE: ("source_vocab_size", "source"),
    TARGET_TABLE: ("target_vocab_size", "target"),
}


@dataclass(frozen=True)
class Completion:
    """A config, as far as it can be completed.

    Attributes:
        config: with placeholder values where there are problems.
        origins: config key to "assumed", "bundle", "weights", "missing", or a source's origin.
        problems: sentences.
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
        layout: has the defaults of its family.
        weights: by the model's names, tied tables under both of theirs.
        num_heads: if the names of the weights number the heads.
        overrides: values of files, module and caller.
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
    """Config values before the weights are looked at."""
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
        else:  # of a file without layers, the number in its config would go unchecked
            inferred.setdefault(f"num_{stack}_layers", 1)
    return inferred


def needed(keys: Iterable[str]) -> Message:
    """A sentence about config keys that need a value, with the words that give it."""
    keys = list(keys)
    words = Option(SETTINGS, [f"{key}=…" for key in keys])
    return Message(f"needed, and not in the file: {', '.join(keys)}; give ", words)


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
        return [Message(f"{missing}; if one table serves both sides, give ", one_table)]
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


# What a forward does with the weights, and the weights do not show.
_UNSEEN = (
    "num_heads", "norm_placement", "norm_eps", "activation", "scale_embeddings", "positions",
    "mask_fill", "tie_embeddings", "tie_output", "pad_id", "bos_id", "eos_id", "add_source_bos",
    "add_source_eos",
)  # fmt: skip
# The same of what few models have.
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
        own_config: values of the model's own kind of config.json; empty if there is none.
        generation_config: those of the generation_config.json next to it.
        module: the live module that it was read from, to compare with; None for a file.
        reference: the user's own code that computes the same, to compare with instead: source
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
    own_config: Mapping[str, Any] = field(default_factory=dict)
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    module: nn.Module | None = field(default=None, repr=False, compare=False)
    reference: Callable[..., Any] | None = field(default=None, repr=False, compare=False)

    @property
    def special_ids(self) -> SpecialIds:
        """The ids with a meaning; see ``TransformerConfig.special_ids``."""
        return self.config.special_ids

    def read_generation(self) -> Generation:
        """Defaults of decoding in the model's own files; nothing if its layout has no such files.

        Raises:
            ConfigError: naming everything that cannot be honoured.
        """
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
            ConfigError: naming all that are None.
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
