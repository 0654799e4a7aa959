"""A user's module as a subject."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
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
from tfexport.export.named_code import one_line
from tfexport.export.parity.module import EagerUserModule
from tfexport.export.parity.plan import ComparisonPlan, are_arrays, read_arrays
from tfexport.export.recognition.decoder import RecognisedDecoder
from tfexport.export.report import EXAMPLES
from tfexport.export.subject import DECODER, LAYERS, Form, Subject
from tfexport.graph_io import GraphSpec, tensor_to_dict
from tfexport.module_rows import Array
from tfexport.typing import Progress

_OF_STEPS = ("decoder", graph_io.GENERATE, graph_io.BEAM)  # which the methods of a step are in


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
        """See ``Subject``: of the source ids all heads, of speech those that follow its words."""
        if (attention := self.attention) is not None:
            return [*product(range(attention.layers), range(attention.heads))]
        speech = self.generation.speech
        if self.decoder is None or speech is None:
            return ()
        return speech.alignment_heads or ()

    def without_attention(self, error: Exception) -> "ModuleSubject":
        """The subject with a note, in place of its attention, of what went wrong with it."""
        note = f"it gives no attention: {one_line(error)}"
        return replace(self, attention=None, notes=(*self.notes, note))

    @property
    def native(self) -> str | None:
        """See ``Subject``."""
        if self.decoder is None:
            return None
        return DECODER if self.decoder.layers is None else LAYERS

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
    def eager(self) -> EagerUserModule:
        """See ``Subject``."""
        return EagerUserModule(self.probe, self.special_ids, self.max_length, self.rules)

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
            "speech": self.generation.speech,
            "module": probe.io.to_dict() | self._steps_in_forward() | self.tensors(),
            "parameters": {} if self.decoder is None else self.decoder.parameters,
        }

    def tensors(self) -> dict[str, Any]:
        """For the manifest: inputs, memory and state, and those of a decoder that is recognised."""
        tensors = self.probe.io.to_dict()
        if self.attention is not None:
            sizes = {"layers": self.attention.layers, "heads": self.attention.heads}
            tensors["attention"] = sizes
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

    def plan(self, folder: Path, manifest: Manifest, progress: Progress) -> ComparisonPlan:
        """See ``Subject``."""
        plan = self.plan_file(progress)
        rows: Sequence[Any] = ()
        if are_arrays(self.samples):
            rows = read_arrays(self.samples, manifest)
        elif self.probe.io.takes_ids:
            rows = super().plan(folder, manifest, progress).rows
        return replace(plan, rows=[*plan.rows, *rows])

    def plan_file(self, progress: Progress) -> ComparisonPlan:
        """What is compared of a single file."""
        return ComparisonPlan(self.level, self.examples, EXAMPLES, progress)

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

    def export_encoder(self) -> ir.Model:
        """See ``Subject``."""
        return export_module_encoder(self.probe, self.opset)

    def export_decoder(self) -> ir.Model:
        """See ``Subject``."""
        return export_module_decoder(self.probe, self.opset)

    def export_generate(self, encoder: ir.Model | None = None) -> ir.Model:
        """See ``Subject``."""
        return export_generate(self.steps, self.opset, encoder or self.export_encoder())

    def export_beam(self, encoder: ir.Model) -> ir.Model:
        """See ``Subject``."""
        return export_beam(self.steps, self.opset, encoder)

    def export_states(self) -> ir.Model:
        """Export what a recognised decoder attends to."""
        assert self.decoder is not None
        of = self.decoder
        return export_module_states(self.probe, of.encoder, of.outputs, self.opset)

    def export_embeddings(self) -> ir.Model:
        """Export what the recognised layers of the encoder take."""
        assert self.decoder is not None
        of = self.decoder.layers
        assert of is not None
        return export_module_embeddings(self.probe, of.embed, of.embeddings, self.opset)

    def export_alignment(self) -> ir.Model:
        """Export the attention to the source ids, or that which gives words their times."""
        heads, attention, of = len(self.alignment_heads), self.attention, self.decoder
        if attention is not None:
            length = self.probe.io.inputs[0].axes[1]
            whole = AlignmentOfForward(self.probe, attention.module)
            return export_alignment(self.probe, whole, heads, length, self.opset)
        assert of is not None
        states = StatesEncoder(self.probe, of.encoder)
        module = AlignmentHeads(states, of.model, self.alignment_heads)
        return export_alignment(self.probe, module, heads, of.outputs[0].axes[1], self.opset)

    @property
    def generate_spec(self) -> GraphSpec:
        """See ``Subject``."""
        return graph_io.generate_graph(inputs=self.probe.io.inputs)
