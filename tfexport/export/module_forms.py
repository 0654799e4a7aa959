"""The graphs of a user's module, each with its export and its comparison."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from tfexport import graph_io
from tfexport.bundle import SpecialIds
from tfexport.errors import ExportError
from tfexport.export.graphs.beam import export_beam
from tfexport.export.graphs.exporter import LARGEST_SIZES, CaptureError
from tfexport.export.graphs.greedy import export_generate
from tfexport.export.graphs.module_graphs import (
    AlignmentHeads,
    HeadSteps,
    ModuleSteps,
    StatesEncoder,
    export_alignment,
    export_module_decoder,
    export_module_embeddings,
    export_module_encoder,
    export_module_states,
)
from tfexport.export.graphs.step_model import NO_RULES, GreedyRules
from tfexport.export.modules.contract import ModuleError
from tfexport.export.modules.examine import Examination, check_sizes
from tfexport.export.modules.source_locations import export_failure
from tfexport.export.modules.wrappers import refuse_closed_parts
from tfexport.export.parity.module_bundle import (
    CompareModule,
    compare_alignment,
    compare_memory,
    compare_module_beam,
    compare_module_generate,
    compare_states,
    compare_steps,
)
from tfexport.export.recognition.decoder import RecognisedDecoder
from tfexport.typing import Progress


@dataclass(frozen=True)
class ModuleBuild:
    """A user's module to export.

    Attributes:
        found: the module, examined.
        special_ids: the special ids of the vocabularies.
        max_length: the maximum number of tokens of a row.
        opset: the opset version of the standard operators.
        rules: the rules of the model that are part of its greedy search.
        decoder: its decoder, if that is recognised.
        alignment_heads: layer and head of attention that follows the words of speech.
    """

    found: Examination
    special_ids: SpecialIds
    max_length: int
    opset: int
    rules: GreedyRules = NO_RULES
    decoder: RecognisedDecoder | None = None
    alignment_heads: Sequence[Sequence[int]] = ()

    @property
    def forms(self) -> "tuple[ModuleForm, ...]":
        """The graphs of its bundle, in the order of export."""
        if self.decoder is None:
            return MODULE_FORMS
        of_encoder = _STATES if self.decoder.layers is None else _EMBEDDINGS
        return (*MODULE_FORMS, of_encoder, *([_ALIGNMENT] if self.alignment_heads else ()))

    @property
    def steps(self) -> ModuleSteps:
        """The module as a ``StepModel``."""
        kind = ModuleSteps if self.found.module.head is None else HeadSteps
        return kind(self.found, self.special_ids, self.max_length, self.rules)


@dataclass(frozen=True)
class ModuleForm:
    """A graph of a user's module.

    Attributes:
        name: the role of the graph in the manifest.
        methods: the methods of the module that it contains, for messages.
        export: returns the graph; called with the build and, if it exists, the encoder graph.
        compare: compares it with the module's own code.
    """

    name: str
    methods: Callable[[ModuleBuild], tuple[str, ...]]
    export: Callable[[ModuleBuild, ir.Model | None], ir.Model]
    compare: CompareModule

    @property
    def filename(self) -> str:
        """The file name of the graph in a bundle."""
        return f"{self.name}.onnx"


def _encoder_methods(build: ModuleBuild) -> tuple[str, ...]:
    return ("encode",) if build.found.module.recomputes else ("encode", "start")


def _step_methods(build: ModuleBuild) -> tuple[str, ...]:
    return ("decode",) if build.found.module.recomputes else ("step",)


def _export_encoder(build: ModuleBuild, _encoder: ir.Model | None) -> ir.Model:
    return export_module_encoder(build.found, build.opset)


def _export_decoder(build: ModuleBuild, _encoder: ir.Model | None) -> ir.Model:
    return export_module_decoder(build.found, build.opset)


def _export_generate(build: ModuleBuild, encoder: ir.Model | None) -> ir.Model:
    return export_generate(build.steps, build.opset, encoder or _export_encoder(build, None))


def _export_beam(build: ModuleBuild, encoder: ir.Model | None) -> ir.Model:
    return export_beam(build.steps, build.opset, encoder or _export_encoder(build, None))


# In the order of export, which is that of comparison; the encoder is part of the searches.
MODULE_FORMS = (
    ModuleForm("encoder", _encoder_methods, _export_encoder, compare_memory),
    ModuleForm("decoder", _step_methods, _export_decoder, compare_steps),
    ModuleForm(graph_io.GENERATE, _step_methods, _export_generate, compare_module_generate),
    ModuleForm(graph_io.BEAM, _step_methods, _export_beam, compare_module_beam),
)


def _export_states(build: ModuleBuild, _encoder: ir.Model | None) -> ir.Model:
    assert build.decoder is not None
    of = build.decoder
    return export_module_states(build.found, of.encoder, of.outputs, build.opset)


def _export_alignment(build: ModuleBuild, _encoder: ir.Model | None) -> ir.Model:
    assert build.decoder is not None
    of, found = build.decoder, build.found
    states = StatesEncoder(found, of.encoder)
    module = AlignmentHeads(states, of.model, build.alignment_heads)
    return export_alignment(found, module, of.outputs[0].axes[1], build.opset)


# What a recognised decoder gives: its input, for the native engine, and times of words.
_STATES = ModuleForm(graph_io.STATES, _encoder_methods, _export_states, compare_states)
_ALIGNMENT = ModuleForm(graph_io.ALIGNMENT, _encoder_methods, _export_alignment, compare_alignment)


def _export_embeddings(build: ModuleBuild, _encoder: ir.Model | None) -> ir.Model:
    assert build.decoder is not None
    of = build.decoder.layers
    assert of is not None
    return export_module_embeddings(build.found, of.embed, of.embeddings, build.opset)


# The same, if the layers of the encoder are recognised too.
_EMBEDDINGS = ModuleForm(graph_io.EMBEDDINGS, _encoder_methods, _export_embeddings, compare_states)


def export_module_forms(build: ModuleBuild, progress: Progress) -> dict[ModuleForm, ir.Model]:
    """Export every graph of a bundle, in memory.

    Raises:
        ExportError: torch's exporter failed; the message names the method and the line.
    """
    graphs: dict[ModuleForm, ir.Model] = {}
    encoder = None
    for done, form in enumerate(build.forms):
        progress(f"exporting {form.filename}", done, len(build.forms))
        graphs[form] = export_module_form(build, form, encoder)
        encoder = encoder or graphs[form]
    return graphs


def export_module_form(
    build: ModuleBuild, form: ModuleForm, encoder: ir.Model | None = None
) -> ir.Model:
    """Export one graph; see ``export_module_forms``."""
    try:
        graph = form.export(build, encoder)
        check_sizes(build.found, graph.meta.get(LARGEST_SIZES, {}), build.max_length)
        return graph
    except ModuleError:
        raise
    except ExportError as error:
        refuse_closed_parts(build.found.module.code)
        # torch's reason, or that of a layer without an equal form
        cause = (error.__cause__ or error) if isinstance(error, CaptureError) else error
        # A search graph contains the encoder, too; the form's own methods come first.
        module = build.found.module
        methods = [*map(module.method, (*form.methods(build), *_encoder_methods(build)))]
        reason = export_failure(module.code, methods, cause)
        raise ExportError(f"{form.filename}: {reason}") from error
