"""A checkpoint as a subject, and the registry of its graphs.

A form's torch modules, spec and export function are in its file of ``graphs``, its comparison with
eager PyTorch in ``parity``. An entry here joins them; export, manifest and comparison read only
this registry.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir
from torch import Tensor

from tfexport import graph_io
from tfexport.bundle import Limits, Manifest
from tfexport.errors import ConfigError, Message, Problem
from tfexport.export.graphs.beam import export_beam
from tfexport.export.graphs.exporter import cache_shape
from tfexport.export.graphs.fused_attention import beam_attention
from tfexport.export.graphs.greedy import export_generate
from tfexport.export.graphs.slot_step import SlotAttention, export_slot_step
from tfexport.export.graphs.transformer_graphs import (
    export_decoder,
    export_encoder,
    export_forward,
    make_shortlist,
)
from tfexport.export.graphs.transformer_steps import TransformerSteps
from tfexport.export.parity import compare_bundle, compare_forward, compare_generate
from tfexport.export.parity.plan import plan_bundle
from tfexport.export.parity.search import compare_beam, compare_generate_in_bundle
from tfexport.export.parity.steps import (
    compare_decoder,
    compare_encoder,
    compare_native,
    compare_shortlist,
    compare_slots,
)
from tfexport.export.parity.text import NearTie, near_tie_of
from tfexport.export.report import NATIVE, ParityReport
from tfexport.export.subject import Form, Subject
from tfexport.graph_io import GraphSpec
from tfexport.model_src.attention import Attention
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.config import BUNDLE_IDS, TransformerConfig
from tfexport.model_src.relative import RelativeVectors
from tfexport.model_src.transformer import Transformer
from tfexport.typing import Progress


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

    @property
    def forms(self) -> tuple[Form, ...]:
        """See ``Subject``."""
        return tuple(form for form in BUNDLE_FORMS if form.exists_for(self))

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

    def compare(self, folder: Path, manifest: Manifest, progress: Progress) -> ParityReport:
        """See ``Subject``."""
        plan = plan_bundle(folder, manifest, self.level, self.samples, progress, self.language_pair)
        stages = {form.name: form.compare for form in BUNDLE_FORMS} | {NATIVE: compare_native}
        return compare_bundle(folder, manifest, self.checkpoint, stages, plan)

    def near_tie(self, report: ParityReport) -> NearTie:
        """See ``Subject``."""
        return near_tie_of(self.checkpoint, report)


def _export_encoder(subject: CheckpointSubject) -> ir.Model:
    return export_encoder(subject.model(), subject.opset)


def _export_decoder(subject: CheckpointSubject) -> ir.Model:
    # Programs that step by hand may ask for the weights, and on the CPU they cost nothing.
    model = subject.model(subject.options.with_attentions().attention_class)
    return export_decoder(model, subject.opset)


def _export_shortlist(_subject: CheckpointSubject, decoder: ir.Model) -> ir.Model:
    return make_shortlist(decoder)


def _export_generate(subject: CheckpointSubject, encoder: ir.Model) -> ir.Model:
    steps = TransformerSteps(subject.model(), subject.rules)
    attention = steps.cache if subject.options.output_attentions else None
    return export_generate(steps, subject.opset, encoder, attention, can_skip_scores=True)


def _export_beam(subject: CheckpointSubject, encoder: ir.Model) -> ir.Model:
    model = subject.model(beam_attention(subject.options.portable))
    return export_beam(TransformerSteps(model), subject.opset, encoder)


def _export_step(subject: CheckpointSubject) -> ir.Model:
    return export_slot_step(
        TransformerSteps(subject.model(SlotAttention), subject.rules), subject.opset
    )


def _has_step(subject: CheckpointSubject) -> bool:
    vectors = any(isinstance(part, RelativeVectors) for part in subject.model().decoder.modules())
    return not subject.options.portable and not vectors


def _generate_spec(config: TransformerConfig, extras: Extras) -> GraphSpec:
    return graph_io.generate_graph(cache_shape(config) if extras.output_attentions else None)


def _export_generate_file(subject: CheckpointSubject) -> ir.Model:
    steps = TransformerSteps(subject.model(), subject.rules)
    attention = steps.cache if subject.extras.output_attentions else None
    return export_generate(steps, subject.opset, _export_encoder(subject), attention)


def _forward_spec(config: TransformerConfig, extras: Extras) -> GraphSpec:
    vocab_size = config.target_vocab_size
    return graph_io.forward_graph(
        config.d_model, config.num_heads, vocab_size, extras.attention_biases, extras.log_probs,
        config.decoder.num_heads,
    )  # fmt: skip


def _export_forward(subject: CheckpointSubject) -> ir.Model:
    biases, log_probs = subject.extras.attention_biases, subject.extras.log_probs
    return export_forward(subject.model(), subject.opset, biases, log_probs)


# In the order of export and comparison: a form comes after those that it needs.
BUNDLE_FORMS: tuple[Form, ...] = (
    Form("encoder", _export_encoder, compare_encoder),
    Form("decoder", _export_decoder, compare_decoder),
    Form("shortlist", _export_shortlist, compare_shortlist, needs=("decoder",)),
    Form("generate", _export_generate, compare_generate_in_bundle, needs=("encoder",)),
    Form("beam", _export_beam, compare_beam, needs=("encoder",)),
    Form("step", _export_step, compare_slots, exists_for=_has_step),
)

FILE_FORMS: tuple[Form, ...] = (
    Form("generate", _export_generate_file, compare_generate, spec=_generate_spec),
    Form("forward", _export_forward, compare_forward, spec=_forward_spec, decodes=False),
)


def file_forms() -> tuple[str, ...]:
    """The names of the forms that are exported as one file."""
    return tuple(form.name for form in FILE_FORMS)


def file_form(name: str) -> Form:
    """A form that is exported as one file, by its name.

    Raises:
        ConfigError: there is no such form.
    """
    for form in FILE_FORMS:
        if form.name == name:
            return form
    known = ", ".join(map(repr, file_forms()))
    raise ConfigError(Message(Problem("graph", f"{name!r} is not one of {known}")))
