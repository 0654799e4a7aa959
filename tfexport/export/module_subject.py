"""A user's module as a subject, and its graphs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir
from torch import Tensor

from tfexport import graph_io
from tfexport.bundle import Limits, Manifest, SpecialIds
from tfexport.errors import ExportError
from tfexport.export.graphs.beam import export_beam
from tfexport.export.graphs.exporter import LARGEST_SIZES, CaptureError
from tfexport.export.graphs.greedy import export_generate
from tfexport.export.graphs.module_graphs import (
    AlignmentHeads,
    AlignmentOfForward,
    HeadSteps,
    ModuleSteps,
    StatesEncoder,
    export_alignment,
    export_module_decoder,
    export_module_embeddings,
    export_module_encoder,
    export_module_states,
)
from tfexport.export.incremental.cross_attention import CrossAttention
from tfexport.export.incremental.step_graphs import FoundSteps, WholeForward, describe
from tfexport.export.modules.contract import ModuleError
from tfexport.export.modules.examine import ModuleProbe, check_sizes
from tfexport.export.modules.source_locations import export_failure
from tfexport.export.modules.wrappers import refuse_closed_parts
from tfexport.export.parity.module import EagerModule
from tfexport.export.parity.module_bundle import (
    compare_alignment,
    compare_memory,
    compare_module_beam,
    compare_module_bundle,
    compare_module_generate,
    compare_states,
    compare_steps,
)
from tfexport.export.parity.plan import are_arrays, plan_bundle, read_arrays
from tfexport.export.parity.text import NearTie
from tfexport.export.recognition.decoder import RecognisedDecoder
from tfexport.export.report import ParityReport
from tfexport.export.subject import Form, Subject
from tfexport.graph_io import tensor_to_dict
from tfexport.module_rows import Array
from tfexport.typing import Progress


@dataclass(frozen=True, kw_only=True)
class ModuleSubject(Subject):
    """A user's module, examined.

    Attributes:
        probe: the module, and what was found by running it.
        max_length: the maximum number of tokens of a row.
        framing: for the manifest's config: the special tokens around texts.
        examples: rows of real inputs.
        decoder: its decoder, if that is recognised.
        attention: its attention to the source ids; None if it is not known.
        notes: remarks for the user.
        layout: None; see ``Subject``.
    """

    special_ids: SpecialIds
    probe: ModuleProbe
    max_length: int
    framing: dict[str, bool]
    examples: Sequence[Mapping[str, Array]] = ()
    decoder: RecognisedDecoder | None = None
    attention: CrossAttention | None = None
    notes: tuple[str, ...] = ()
    layout: str | None = None

    @property
    def alignment_heads(self) -> Sequence[Sequence[int]]:
        """Layer and head of the attention of a recognised decoder that follows words of speech."""
        speech = self.generation.speech
        if self.decoder is None or speech is None:
            return ()
        return speech.alignment_heads or ()

    @property
    def forms(self) -> tuple[Form, ...]:
        """See ``Subject``."""
        forms = list(MODULE_FORMS)
        if self.decoder is not None:
            forms.append(_STATES if self.decoder.layers is None else _EMBEDDINGS)
        if self.alignment_heads or self.attention is not None:
            forms.append(_ALIGNMENT)
        return tuple(forms)

    @property
    def sides(self) -> tuple[str, ...]:
        """See ``Subject``."""
        return ("source", "target") if self.probe.io.takes_ids else ("target",)

    @property
    def steps(self) -> ModuleSteps:
        """The module as a ``StepModel``."""
        kind = ModuleSteps if self.probe.module.head is None else HeadSteps
        return kind(self.probe, self.special_ids, self.max_length, self.rules)

    @property
    def eager(self) -> EagerModule:
        """The module in eager PyTorch."""
        ids, length = self.special_ids, self.max_length
        return EagerModule(self.probe, ids, length, self.level, self.rules)

    def weights(self) -> Mapping[str, Tensor]:
        """See ``Subject``."""
        return {} if self.decoder is None else self.decoder.weights

    def facts(self) -> dict[str, Any]:
        """See ``Subject``."""
        probe = self.probe
        source = int(probe.below.get(graph_io.INPUT_IDS, 1))
        longest = probe.longest_source
        return {
            "config": self.framing,
            "special_ids": self.special_ids,
            "limits": Limits(source, probe.vocab_size, longest, self.max_length),
            "generation": dict(self.generation.defaults),
            "origins": dict(self.generation.origins),
            "preprocessing": self.preprocessing,
            "speech": self.generation.speech,
            "module": probe.io.to_dict() | self._steps_in_forward() | self.tensors(),
            "parameters": {} if self.decoder is None else self.decoder.parameters,
        }

    def tensors(self) -> dict[str, Any]:
        """For the manifest: inputs, memory and state, and those of a decoder that is recognised."""
        tensors = self.probe.io.to_dict()
        if self.attention is not None:
            tensors["attention"] = {
                "layers": len(self.attention.nodes), "heads": self.attention.heads
            }  # fmt: skip
        if self.decoder is None:
            return tensors
        outputs = map(tensor_to_dict, self.decoder.outputs)
        decoder = {"config": self.decoder.config.to_dict()}
        decoder |= dict(zip(("states", "kept"), outputs, strict=False))
        if (layers := self.decoder.layers) is not None:
            embeddings = tensor_to_dict(layers.embeddings)
            decoder["encoder"] = {"config": layers.config.to_dict(), "embeddings": embeddings}
        return tensors | {"decoder": decoder}

    def _steps_in_forward(self) -> dict[str, Any]:
        """For the manifest: what was found in the module's forward."""
        model = self.probe.module.model
        if not isinstance(model, FoundSteps | WholeForward):
            return {}
        return {"found": {**describe(model), "portable": self.options.portable}}

    def compare(self, folder: Path, manifest: Manifest, progress: Progress) -> ParityReport:
        """See ``Subject``."""
        stages, eager = [form.compare for form in self.forms], self.eager
        rows = list(self.examples)
        if are_arrays(self.samples):
            rows += read_arrays(self.samples, manifest)
        elif self.probe.io.takes_ids:
            plan = plan_bundle(
                folder, manifest, self.level, self.samples, progress, self.language_pair
            )
            rows += [eager.row_of(row) for row in plan.rows]
        return compare_module_bundle(eager, (folder, manifest), stages, rows, progress)

    def near_tie(self, report: ParityReport) -> NearTie:
        """See ``Subject``."""
        return self.eager.near_tie(report)

    def refuse_limits(self, path: Path) -> None:
        """Refuse a single file of a module whose inputs are bounded: nothing would check them.

        Raises:
            ExportError: naming the axes.
        """
        limits = self.probe.io.longest.items()
        if limits:
            named = " and ".join(f"{axis} exceeds {most}" for axis, most in limits)
            raise ExportError(
                f"{path}: {self.probe.module.name} takes another branch if {named}. A file "
                "cannot refuse such inputs; write a bundle, which does, or use a mask."
            )

    def export(self, form: Form, *graphs: ir.Model) -> ir.Model:
        """Export one graph; see ``Subject``.

        Raises:
            ExportError: torch's exporter failed; the message names the method and the line.
        """
        module = self.probe.module
        try:
            graph = form.export(self, *graphs)
            check_sizes(self.probe, graph.meta.get(LARGEST_SIZES, {}), self.max_length)
            return graph
        except ModuleError:
            raise
        except ExportError as error:
            refuse_closed_parts(module.code)
            # torch's reason, or that of a layer without an equal form
            cause = (error.__cause__ or error) if isinstance(error, CaptureError) else error
            # A search graph contains the encoder, too; the form's own methods come first.
            of_encoder = ("encode",) if module.recomputes else ("encode", "start")
            of_step = ("decode",) if module.recomputes else ("step",)
            names = (*of_step, *of_encoder) if form.name in _OF_STEPS else of_encoder
            reason = export_failure(module.code, [*map(module.method, names)], cause)
            raise ExportError(f"{form.filename}: {reason}") from error


def _export_encoder(subject: ModuleSubject) -> ir.Model:
    return export_module_encoder(subject.probe, subject.opset)


def _export_decoder(subject: ModuleSubject) -> ir.Model:
    return export_module_decoder(subject.probe, subject.opset)


def _export_generate(subject: ModuleSubject, encoder: ir.Model | None = None) -> ir.Model:
    return export_generate(subject.steps, subject.opset, encoder or _export_encoder(subject))


def _export_beam(subject: ModuleSubject, encoder: ir.Model | None = None) -> ir.Model:
    return export_beam(subject.steps, subject.opset, encoder or _export_encoder(subject))


# In the order of export, which is that of comparison; the encoder is part of the searches.
MODULE_FORMS = (
    Form("encoder", _export_encoder, compare_memory),
    Form("decoder", _export_decoder, compare_steps),
    Form(graph_io.GENERATE, _export_generate, compare_module_generate, needs=("encoder",)),
    Form(graph_io.BEAM, _export_beam, compare_module_beam, needs=("encoder",)),
)
_OF_STEPS = ("decoder", graph_io.GENERATE, graph_io.BEAM)  # which the methods of a step are in


def _export_states(subject: ModuleSubject) -> ir.Model:
    assert subject.decoder is not None
    of = subject.decoder
    return export_module_states(subject.probe, of.encoder, of.outputs, subject.opset)


def _export_alignment(subject: ModuleSubject) -> ir.Model:
    of, probe, attention = subject.decoder, subject.probe, subject.attention
    if attention is not None:
        heads, length = len(attention.nodes) * attention.heads, probe.io.inputs[0].axes[1]
        whole = AlignmentOfForward(probe, attention.module(not subject.options.portable))
        return export_alignment(probe, whole, heads, length, subject.opset)
    assert of is not None
    states = StatesEncoder(probe, of.encoder)
    module = AlignmentHeads(states, of.model, subject.alignment_heads)
    heads = len(subject.alignment_heads)
    return export_alignment(probe, module, heads, of.outputs[0].axes[1], subject.opset)


# What a recognised decoder gives: its input, for the native engine, and times of words.
_STATES = Form(graph_io.STATES, _export_states, compare_states)
_ALIGNMENT = Form(graph_io.ALIGNMENT, _export_alignment, compare_alignment)


def _export_embeddings(subject: ModuleSubject) -> ir.Model:
    assert subject.decoder is not None
    of = subject.decoder.layers
    assert of is not None
    return export_module_embeddings(subject.probe, of.embed, of.embeddings, subject.opset)


# The same, if the layers of the encoder are recognised too.
_EMBEDDINGS = Form(graph_io.EMBEDDINGS, _export_embeddings, compare_states)
