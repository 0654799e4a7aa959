"""Export of a checkpoint or module to one self-contained .onnx file, and its verification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from tfexport.atomic import new_file
from tfexport.errors import (
    BundleError,
    ConfigError,
    ExportError,
    InputError,
    Message,
    Option,
    Problem,
)
from tfexport.export.artifacts.checkpoint_source import check_greedy_file, read_for_decoding
from tfexport.export.artifacts.info import describe_export, read_graph_info
from tfexport.export.artifacts.keywords import (
    ExportKeywords,
    VerifyKeywords,
    graph_options,
    read_options,
    refuse_expected,
    tokenizer_files,
)
from tfexport.export.artifacts.option_rules import Output
from tfexport.export.artifacts.results import ExportResult
from tfexport.export.graph_forms import Extras, FileForm, GraphBuild, file_form
from tfexport.export.graph_options import GraphOptions
from tfexport.export.parity import ParityReport, compare_text
from tfexport.export.parity.plan import FULL, Plan, plan_file, read_pairs
from tfexport.export.passes import BEFORE_SAVE
from tfexport.export.passes.weights import share_transposed
from tfexport.export.quiet import quiet
from tfexport.export.text.text_graphs import OLDEST_OPSET, TEXTS, add_text, check_reproduced
from tfexport.export.text.tokenizer_files import TokenizerFiles, choose_tokenizers
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.checkpoint.read_options import CheckpointLike, folder_of
from tfexport.typing import Progress

_MAX_FILE_BYTES = 2**31 - 1  # protobuf's limit for one message


@dataclass(frozen=True)
class GraphContents:
    """The inputs of the export of one graph.

    Attributes:
        form: the form of the graph.
        checkpoint: the model.
        options: the options of the graph.
        extras: the optional inputs and outputs of the graph.
        tokenizers: tokenizers to merge into the graph; None for a graph of ids.
        samples: texts on which the tokenizers' operators are compared.
        level: how much is compared with eager PyTorch: "full", "quick", or "" for nothing.
    """

    form: FileForm
    checkpoint: Checkpoint
    options: GraphOptions
    extras: Extras
    tokenizers: TokenizerFiles | None = None
    samples: tuple[str, ...] = ()
    level: str = FULL


def export_graph(
    checkpoint: CheckpointLike, output: Output, options: ExportKeywords
) -> ExportResult:
    """Export one graph, compare it with eager PyTorch, and write the file; see ``export``."""
    contents = read_contents(checkpoint, output, options, read_lines(options))
    model = build_graph(contents, output.progress)
    join_weights(model, output.kind)
    with new_file(output.path, output.force) as path:
        report = compare_graph(contents, model, path, output) if output.level else None
        save_graph(contents, model, path, report)
    return result_of(contents, output, report)


def read_lines(options: ExportKeywords) -> list[str]:
    """The lines of a file of samples, on which a tokenizer is compared.

    Raises:
        InputError: the file is not UTF-8.
    """
    samples = options.get("samples")
    if samples is None or not options.get("text"):
        return []
    try:
        return Path(samples).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise InputError(f"{samples}: not UTF-8 text.") from None


def result_of(contents: GraphContents, output: Output, report: ParityReport | None) -> ExportResult:
    """The result of an export to one graph."""
    checkpoint, tokenizers = contents.checkpoint, contents.tokenizers
    return ExportResult(
        output.path,
        output.kind,
        report,
        layout=checkpoint.layout,
        tokenizers=() if tokenizers is None else tokenizers.paths,
        notes=checkpoint.read_generation().notes if contents.form.decodes else (),
    )


def read_contents(
    checkpoint: CheckpointLike, output: Output, options: ExportKeywords, lines: Sequence[str]
) -> GraphContents:
    """Read the checkpoint and, for text, compare its tokenizers with their ONNX operators.

    Args:
        checkpoint: see ``export``.
        output: the file.
        options: the options of ``export``.
        lines: texts on which the tokenizers are compared.
    """
    form, of_graph = file_form(output.kind), graph_options(options)
    if options.get("text") and of_graph.opset < OLDEST_OPSET:
        problem = f"text needs {OLDEST_OPSET} or more, not {of_graph.opset}"
        raise ConfigError(Message(Problem("opset", problem)))
    level, progress = output.level, output.progress
    progress("reading the checkpoint", 0, 1)
    read = read_options(options, bool(level))
    found = read_for_decoding(checkpoint, read) if form.decodes else read.read(checkpoint)
    if form.decodes:
        check_greedy_file(found)
    extras = Extras(
        of_graph.output_attentions,
        options.get("attention_biases", False),
        options.get("log_probs", False),
    )
    if extras.log_probs and not found.config.has_embeddings:
        raise ConfigError(
            Message(Option("log_probs"), " needs a vocabulary projection, but the model has none.")
        )
    tokenizers, samples = None, tuple(lines)
    if options.get("text"):
        progress("comparing the tokenizer", 0, 1)
        tokenizers = tokenizer_files(options, folder_of(checkpoint))
        check_reproduced(tokenizers, found.config, samples)
    return GraphContents(form, found, of_graph, extras, tokenizers, samples, level)


def build_graph(contents: GraphContents, progress: Progress) -> ir.Model:
    """Export the graph without tokenizers, with the same names of weights as in a bundle."""
    progress(f"exporting {contents.form.name}.onnx", 0, 1)
    build = GraphBuild(contents.checkpoint, contents.options)
    model = contents.form.export(build, contents.extras)
    share_transposed([model])
    return model


def compare_graph(
    contents: GraphContents, model: ir.Model, path: Path, output: Output
) -> ParityReport:
    """Write a graph and compare it with eager PyTorch, then again with its tokenizers, if any.

    Args:
        contents: the inputs of the export.
        model: the graph.
        path: a temporary file.
        output: the final file.

    Raises:
        ParityError: they differ.
    """
    checkpoint, progress = contents.checkpoint, output.progress
    ir.save(model, path)
    spec = contents.form.spec(checkpoint.config, contents.extras)
    plan = Plan(contents.level or FULL, progress=progress)
    report = contents.form.compare(path, spec, checkpoint, plan)
    report.require(str(output.path))
    if contents.tokenizers is not None:
        onnx.save_model(add_text(model, contents.tokenizers, checkpoint.config), path)
        of_text = compare_text(path, contents.tokenizers, checkpoint, contents.samples, progress)
        report.comparisons.extend(of_text.comparisons)
        report.require(str(output.path))
    return report


def save_graph(
    contents: GraphContents,
    model: ir.Model,
    path: Path,
    report: ParityReport | None,
    quantization: Mapping[str, Any] | None = None,
) -> None:
    """Write the final file, with its metadata."""
    config = contents.checkpoint.config
    if contents.tokenizers is not None:
        proto = add_text(model, contents.tokenizers, config)
    else:
        proto = ir.to_proto(model)
    info = describe_export(
        contents.form.name,
        config,
        report,
        needs={"onnxruntime": contents.options.minimum_onnxruntime},
        quantization=quantization,
    )
    onnx.helper.set_model_props(proto, info.to_metadata())
    onnx.save_model(proto, path)


def join_weights(model: ir.Model, name: str) -> None:
    """Store equal weights once, each in the (sub)graph where onnxruntime can prepack it.

    Raises:
        ExportError: the weights exceed the maximum size of a file.
    """
    with quiet():
        BEFORE_SAVE(model)
    values = (value for part in model.graphs() for value in part.initializers.values())
    size = sum(value.const_value.nbytes for value in values if value.const_value is not None)
    if size > _MAX_FILE_BYTES:
        raise ExportError(
            f"{name}.onnx: {size} bytes of weights do not fit into one file (2 GiB at most)."
        )


def verify_graph(
    path: Path, checkpoint: CheckpointLike, level: str, options: VerifyKeywords, progress: Progress
) -> ParityReport:
    """Compare an .onnx file with the checkpoint that it was exported from; see ``verify``."""
    refuse_expected(options, path)
    read, samples = read_options(options), options.get("samples")
    info = read_graph_info(path)
    info.refuse_quantized(path)
    form, names = file_form(info.kind), {*info.inputs, *info.outputs}
    if form.decodes:
        found = read_for_decoding(checkpoint, read, info.config)
    else:
        found = read.read(checkpoint, defaults=info.config)
    info.require_same_model(path, found.config)
    if TEXTS in info.inputs:
        tokenizers = choose_tokenizers(folder=folder_of(checkpoint))
        texts = [] if samples is None else [text for text, _ in read_pairs(samples, "samples")]
        return info.note_own_code(compare_text(path, tokenizers, found, texts, progress))
    spec = form.spec(found.config, Extras.of(names))
    if names != {tensor.name for tensor in (*spec.inputs, *spec.outputs)}:
        raise BundleError(f"{path}: its inputs and outputs do not match this checkpoint.")
    plan = plan_file(path.name, found.config, level, samples, progress)
    return info.note_own_code(form.compare(path, spec, found, plan))
