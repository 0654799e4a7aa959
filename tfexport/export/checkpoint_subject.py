"""A checkpoint as a subject."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
from torch import Tensor

from tfexport import graph_io
from tfexport.bundle import Limits
from tfexport.export.graphs.beam import export_beam
from tfexport.export.graphs.exporter import cache_shape
from tfexport.export.graphs.fused_attention import beam_attention
from tfexport.export.graphs.greedy import export_generate
from tfexport.export.graphs.slot_step import SlotAttention, export_slot_step
from tfexport.export.graphs.transformer_graphs import (
    export_decoder,
    export_encoder,
    export_forward,
)
from tfexport.export.graphs.transformer_steps import TransformerSteps
from tfexport.export.parity.checkpoint import EagerCheckpoint
from tfexport.export.subject import WHOLE, Subject
from tfexport.graph_io import GraphSpec
from tfexport.model_src.attention import Attention
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.config import BUNDLE_IDS
from tfexport.model_src.relative import RelativeVectors
from tfexport.model_src.transformer import Transformer


@dataclass(frozen=True)
class Extras:
    """Optional inputs and outputs of a graph file.

    Attributes:
        text: a text as the input and as the output, in place of ids.
        output_attentions: an output, the cross-attention weights.
        attention_biases: three inputs, added to the attention scores.
        log_probs: an output, the log-softmax of the logits.
    """

    output_attentions: bool = False
    attention_biases: bool = False
    log_probs: bool = False
    text: bool = False

    @classmethod
    def of(cls, names: Collection[str]) -> "Extras":
        """Find the extras of a file from the names of its inputs and outputs."""
        return cls(
            graph_io.CROSS_ATTENTIONS in names,
            "cross_attention_bias" in names,
            graph_io.LOG_PROBS in names,
        )


@dataclass(frozen=True, kw_only=True)
class CheckpointSubject(Subject):
    """A checkpoint, or a module that is recognised as one of this project's own Transformers.

    Attributes:
        checkpoint: a model; for a bundle, with special ids and embeddings.
        extras: optional inputs and outputs of a graph file.
        max_target_length: tokens of a row, if that is less than the model's own limit.
        parameters: of a recognised module; see ``Manifest``.
    """

    checkpoint: Checkpoint
    extras: Extras = Extras()
    max_target_length: int | None = None
    parameters: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, checkpoint: Checkpoint, **fields: Any) -> "CheckpointSubject":
        """A checkpoint with the special ids and the decoding defaults of its files.

        Args:
            checkpoint: a model.
            **fields: the others of the class.
        """
        config, generation = checkpoint.config, checkpoint.read_generation()
        decodes = all(getattr(config, key) is not None for key in BUNDLE_IDS)
        ids = config.special_ids if decodes else None
        return cls(checkpoint=checkpoint, special_ids=ids, generation=generation, **fields)

    @property
    def layout(self) -> str:
        """See ``Subject``."""
        return self.checkpoint.layout

    @property
    def notes(self) -> tuple[str, ...]:
        """See ``Subject``."""
        return self.generation.notes

    def model(self, attention_class: type[Attention] | None = None) -> Transformer:
        """The model with a class of attention, by default that of the options."""
        return self.checkpoint.model(attention_class or self.options.attention_class)

    def weights(self) -> Mapping[str, Tensor]:
        """See ``Subject``."""
        return self.model().state_dict()

    def facts(self) -> dict[str, Any]:
        """See ``Subject``."""
        config, generation = self.checkpoint.config, self.generation
        assert config.source_vocab_size is not None
        assert config.target_vocab_size is not None
        longest = config.longest if self.max_target_length is None else self.max_target_length
        sizes = config.source_vocab_size, config.target_vocab_size
        return {
            "config": config.to_dict(),
            "special_ids": self.special_ids,
            "limits": Limits(*sizes, config.longest, longest),
            "generation": dict(generation.defaults),
            "origins": {**self.checkpoint.unseen, **generation.origins},
            "parameters": self.parameters,
        }

    @property
    def eager(self) -> EagerCheckpoint:
        """See ``Subject``."""
        return EagerCheckpoint(self.checkpoint)

    @property
    def native(self) -> str:
        """See ``Subject``."""
        return WHOLE

    @property
    def has_step(self) -> bool:
        """See ``Subject``."""
        decoder = self.model().decoder
        vectors = any(isinstance(part, RelativeVectors) for part in decoder.modules())
        return not self.options.portable and not vectors

    def export_encoder(self) -> ir.Model:
        """See ``Subject``."""
        return export_encoder(self.model(), self.opset)

    def export_decoder(self) -> ir.Model:
        """See ``Subject``."""
        # Programs that step by hand may ask for the weights, and on the CPU they cost nothing.
        model = self.model(self.options.with_attentions().attention_class)
        return export_decoder(model, self.opset)

    def export_generate(self, encoder: ir.Model | None = None) -> ir.Model:
        """See ``Subject``."""
        steps = TransformerSteps(self.model(), self.rules)
        attention = steps.cache if self.options.output_attentions else None
        return export_generate(
            steps, self.opset, encoder or self.export_encoder(), attention,
            can_skip_scores=encoder is not None,
        )  # fmt: skip

    def export_beam(self, encoder: ir.Model) -> ir.Model:
        """See ``Subject``."""
        model = self.model(beam_attention(self.options.portable))
        return export_beam(TransformerSteps(model), self.opset, encoder)

    def export_step(self) -> ir.Model:
        """Export a step of rows that are at different positions."""
        steps = TransformerSteps(self.model(SlotAttention), self.rules)
        return export_slot_step(steps, self.opset)

    def export_forward(self) -> ir.Model:
        """Export the forward of training, a file by itself."""
        biases, log_probs = self.extras.attention_biases, self.extras.log_probs
        return export_forward(self.model(), self.opset, biases, log_probs)

    @property
    def generate_spec(self) -> GraphSpec:
        """See ``Subject``."""
        config = self.checkpoint.config
        attention = cache_shape(config) if self.extras.output_attentions else None
        return graph_io.generate_graph(attention)

    @property
    def forward_spec(self) -> GraphSpec:
        """The inputs and outputs of a file with the forward."""
        config, extras = self.checkpoint.config, self.extras
        return graph_io.forward_graph(
            config.d_model, config.num_heads, config.target_vocab_size, extras.attention_biases,
            extras.log_probs, config.decoder.num_heads,
        )  # fmt: skip
