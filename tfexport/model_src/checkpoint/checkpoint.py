"""A checkpoint that has been read, or as far as it could be."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tfexport.bundle import SpecialIds
from tfexport.errors import CheckpointError, ConfigError, Message, join_problems
from tfexport.model_src.attention import Attention
from tfexport.model_src.build import build_transformer
from tfexport.model_src.checkpoint.complete import ASSUMED, FROM_BUNDLE, FROM_WEIGHTS, needed
from tfexport.model_src.checkpoint.generation import Generation
from tfexport.model_src.checkpoint.layouts import LAYOUTS
from tfexport.model_src.checkpoint.overrides import Text
from tfexport.model_src.checkpoint.shapes import computed_tables
from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.transformer import Transformer

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
        generation_config: those of the generation_config.json beside it.
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
    own_config: Mapping[str, Any] = field(default_factory=dict)
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    module: nn.Module | None = field(default=None, repr=False, compare=False)
    reference: Callable[..., Any] | None = field(default=None, repr=False, compare=False)

    @property
    def special_ids(self) -> SpecialIds:
        """The ids with a meaning; see ``TransformerConfig.special_ids``."""
        return self.config.special_ids

    def read_generation(self) -> Generation:
        """How the model's own files say that it decodes; nothing if its layout has no such files.

        Raises:
            ConfigError: naming everything that cannot be honoured.
        """
        read = LAYOUTS[self.layout].generation if self.layout in LAYOUTS else None
        if read is None or not self.own_config:
            return Generation(start_id=self.config.start_id)
        return read(self.own_config, self.generation_config)

    @property
    def reads_texts(self) -> bool:
        """Whether the model reads whole texts, as its family does or its config.json says."""
        tasks = self.own_config.get("task_specific_params")
        names = tasks if isinstance(tasks, dict) else ()
        family = self.layout in LAYOUTS and LAYOUTS[self.layout].reads_texts
        return family or any(str(name).startswith("summarization") for name in names)

    @property
    def unseen(self) -> dict[str, str]:
        """Settings that the weights do not show, and where each comes from; see ``origins``.

        Those of parts that the model has not, which nothing but a default speaks of, are left out.
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

        A model without embeddings has no tokens, and needs nothing that says what they mean.

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
