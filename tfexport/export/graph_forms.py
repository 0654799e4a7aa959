"""The registry of graph forms: which graphs a bundle holds, and which are exported as one file.

A form's torch modules, spec and export function are in its file of ``graphs``, its comparison with
eager PyTorch in ``parity``. An entry here joins them; export, manifest and comparison read only
this registry.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from tfexport import graph_io
from tfexport.errors import ConfigError, ExportError, Message, Problem
from tfexport.export.graph_options import GraphOptions
from tfexport.export.graphs.beam import export_beam
from tfexport.export.graphs.exporter import cache_shape
from tfexport.export.graphs.fused_attention import beam_attention
from tfexport.export.graphs.greedy import export_generate
from tfexport.export.graphs.slot_step import SlotAttention, export_slot_step
from tfexport.export.graphs.step_model import GreedyRules
from tfexport.export.graphs.transformer_graphs import (
    export_decoder,
    export_encoder,
    export_forward,
    make_shortlist,
)
from tfexport.export.graphs.transformer_steps import TransformerSteps
from tfexport.export.parity import compare_forward, compare_generate
from tfexport.export.parity.bundle import CompareGraph
from tfexport.export.parity.plan import Plan
from tfexport.export.parity.search import compare_beam, compare_generate_in_bundle
from tfexport.export.parity.steps import (
    compare_decoder,
    compare_encoder,
    compare_native,
    compare_shortlist,
    compare_slots,
)
from tfexport.export.report import NATIVE, ParityReport
from tfexport.graph_io import GraphSpec
from tfexport.model_src.attention import Attention
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.relative import RelativeVectors
from tfexport.model_src.transformer import Transformer
from tfexport.typing import Progress


class GraphBuild:
    """A checkpoint to export; builds each model once.

    Attributes:
        checkpoint: what is exported.
        options: the options of the graphs.
        opset: the opset version of the standard operators.
        rules: the rules of the model that are part of its greedy search.
    """

    def __init__(self, checkpoint: Checkpoint, options: GraphOptions) -> None:
        self.checkpoint, self.options, self.opset = checkpoint, options, options.opset
        self.rules = GreedyRules.of(checkpoint.read_generation().defaults)
        self._models: dict[type[Attention], Transformer] = {}

    def model(self, attention_class: type[Attention] | None = None) -> Transformer:
        """Build the model with a class of attention; by default the one of the options."""
        chosen = attention_class or self.options.attention_class
        if chosen not in self._models:
            self._models[chosen] = self.checkpoint.build(chosen)
        return self._models[chosen]


@dataclass(frozen=True)
class BundleForm:
    """A graph that new bundles contain.

    Attributes:
        name: the role of the graph in the manifest.
        export: returns the graph; called with the build and the graphs of ``needs``, in order.
        compare: compares the graph of a bundle with eager PyTorch.
        needs: names of the forms whose graphs this one is made from; these are exported first.
        is_there: whether the graph exists for a build.
    """

    name: str
    export: Callable[..., ir.Model]
    compare: CompareGraph
    needs: tuple[str, ...] = ()
    is_there: Callable[[GraphBuild], bool] = lambda build: True

    @property
    def filename(self) -> str:
        """The file name of the graph in a bundle."""
        return f"{self.name}.onnx"


@dataclass(frozen=True)
class Extras:
    """Optional inputs and outputs of a graph file.

    Attributes:
        output_attentions: an output, the cross-attention weights.
        attention_biases: three inputs, added to the attention scores.
        log_probs: an output, the log-softmax of the logits.
    """

    output_attentions: bool = False
    attention_biases: bool = False
    log_probs: bool = False

    @classmethod
    def of(cls, names: Collection[str]) -> "Extras":
        """Find the extras of a file from the names of its inputs and outputs."""
        return cls(
            graph_io.CROSS_ATTENTIONS in names,
            "cross_attention_bias" in names,
            graph_io.LOG_PROBS in names,
        )


@dataclass(frozen=True)
class FileForm:
    """A graph that is exported as one self-contained file.

    Attributes:
        name: the name in the option ``graph`` and in the file's metadata.
        decodes: whether it returns tokens. If so, the model needs special tokens and embeddings,
            and the file can have text inputs and outputs, and quantised weights.
        spec: the inputs and outputs of the graph.
        export: returns the graph.
        compare: returns a report; called with the file, its spec, the checkpoint and a plan.
    """

    name: str
    decodes: bool
    spec: Callable[[TransformerConfig, Extras], GraphSpec]
    export: Callable[[GraphBuild, Extras], ir.Model]
    compare: Callable[[Path, GraphSpec, Checkpoint, Plan | None], ParityReport]


def _export_encoder(build: GraphBuild) -> ir.Model:
    return export_encoder(build.model(), build.opset)


def _export_decoder(build: GraphBuild) -> ir.Model:
    # Programs that step by hand may ask for the weights, and on the CPU they cost nothing.
    model = build.model(build.options.with_attentions().attention_class)
    return export_decoder(model, build.opset)


def _export_shortlist(_build: GraphBuild, decoder: ir.Model) -> ir.Model:
    return make_shortlist(decoder)


def _export_generate(build: GraphBuild, encoder: ir.Model) -> ir.Model:
    steps = TransformerSteps(build.model(), build.rules)
    attention = steps.cache if build.options.output_attentions else None
    return export_generate(steps, build.opset, encoder, attention, can_skip_scores=True)


def _export_beam(build: GraphBuild, encoder: ir.Model) -> ir.Model:
    model = build.model(beam_attention(build.options.portable))
    return export_beam(TransformerSteps(model), build.opset, encoder)


def _export_step(build: GraphBuild) -> ir.Model:
    return export_slot_step(TransformerSteps(build.model(SlotAttention), build.rules), build.opset)


def _has_step(build: GraphBuild) -> bool:
    vectors = any(isinstance(part, RelativeVectors) for part in build.model().decoder.modules())
    return not build.options.portable and not vectors


def _generate_spec(config: TransformerConfig, extras: Extras) -> GraphSpec:
    return graph_io.generate_graph(cache_shape(config) if extras.output_attentions else None)


def _export_generate_file(build: GraphBuild, extras: Extras) -> ir.Model:
    steps = TransformerSteps(build.model(), build.rules)
    attention = steps.cache if extras.output_attentions else None
    return export_generate(steps, build.opset, _export_encoder(build), attention)


def _forward_spec(config: TransformerConfig, extras: Extras) -> GraphSpec:
    vocab_size = config.target_vocab_size
    return graph_io.forward_graph(
        config.d_model, config.num_heads, vocab_size, extras.attention_biases, extras.log_probs,
        config.decoder.num_heads,
    )  # fmt: skip


def _export_forward(build: GraphBuild, extras: Extras) -> ir.Model:
    return export_forward(build.model(), build.opset, extras.attention_biases, extras.log_probs)


# In the order of export and comparison: a form comes after those that it needs.
BUNDLE_FORMS: tuple[BundleForm, ...] = (
    BundleForm("encoder", _export_encoder, compare_encoder),
    BundleForm("decoder", _export_decoder, compare_decoder),
    BundleForm("shortlist", _export_shortlist, compare_shortlist, needs=("decoder",)),
    BundleForm("generate", _export_generate, compare_generate_in_bundle, needs=("encoder",)),
    BundleForm("beam", _export_beam, compare_beam, needs=("encoder",)),
    BundleForm("step", _export_step, compare_slots, is_there=_has_step),
)

FILE_FORMS: tuple[FileForm, ...] = (
    FileForm("generate", True, _generate_spec, _export_generate_file, compare_generate),
    FileForm("forward", False, _forward_spec, _export_forward, compare_forward),
)


def export_bundle_forms(build: GraphBuild, progress: Progress) -> dict[BundleForm, ir.Model]:
    """Export every graph of a bundle, in memory.

    Raises:
        ExportError: torch's exporter failed, or a form is listed before one that it needs.
    """
    graphs: dict[BundleForm, ir.Model] = {}
    by_name: dict[str, ir.Model] = {}
    forms = [form for form in BUNDLE_FORMS if form.is_there(build)]
    for done, form in enumerate(forms):
        progress(f"exporting {form.filename}", done, len(forms))
        if missing := [name for name in form.needs if name not in by_name]:
            raise ExportError(
                f"{form.filename}: is made from {', '.join(missing)}, which comes later in "
                "graph_forms.BUNDLE_FORMS, or is missing."
            )
        graphs[form] = form.export(build, *(by_name[name] for name in form.needs))
        by_name[form.name] = graphs[form]
    return graphs


def bundle_comparisons() -> dict[str, CompareGraph]:
    """Role in a manifest to the comparison of that graph, in order; the native engine's last."""
    return {form.name: form.compare for form in BUNDLE_FORMS} | {NATIVE: compare_native}


def file_forms() -> tuple[str, ...]:
    """The names of the forms that are exported as one file."""
    return tuple(form.name for form in FILE_FORMS)


def file_form(name: str) -> FileForm:
    """A form that is exported as one file, by its name.

    Raises:
        ConfigError: there is no such form.
    """
    for form in FILE_FORMS:
        if form.name == name:
            return form
    known = ", ".join(map(repr, file_forms()))
    raise ConfigError(Message(Problem("graph", f"{name!r} is not one of {known}")))
