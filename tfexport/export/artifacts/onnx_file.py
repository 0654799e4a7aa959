"""Export of a checkpoint or module to one self-contained .onnx file, and its verification."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from tfexport.export.artifacts.bundle import write_bundle
from tfexport.export.artifacts.checkpoint_source import check_greedy_file, read_for_decoding
from tfexport.export.artifacts.info import describe_export, read_graph_info
from tfexport.export.artifacts.keywords import (
    ExportKeywords,
    VerifyKeywords,
    graph_options,
    language_pair_of,
    read_options,
    refuse_expected,
    tokenizer_files,
)
from tfexport.export.artifacts.option_rules import Output
from tfexport.export.artifacts.results import ExportResult
from tfexport.export.checkpoint_subject import CheckpointSubject, Extras
from tfexport.export.forms import file_form
from tfexport.export.graph_options import GraphOptions
from tfexport.export.parity.bundle import compare_file
from tfexport.export.parity.plan import FULL, ComparisonPlan, plan_file, read_pairs
from tfexport.export.parity.text import compare_text
from tfexport.export.passes import BEFORE_SAVE
from tfexport.export.passes.weights import share_transposed
from tfexport.export.quantization.graphs import quantize_graphs
from tfexport.export.quiet import quiet
from tfexport.export.report import ParityReport
from tfexport.export.subject import Form
from tfexport.export.text.text_graphs import OLDEST_OPSET, TEXTS, add_text, check_reproduced
from tfexport.export.text.tokenizer_files import TokenizerFiles, choose_tokenizers
from tfexport.model_src.checkpoint.read_options import CheckpointLike, folder_of
from tfexport.typing import Progress

_MAX_FILE_BYTES = 2**31 - 1  # protobuf's limit for one message


@dataclass(frozen=True)
class GraphContents:
    """The inputs of the export of one graph.

    Attributes:
        form: the form of the graph.
        subject: the model, with the tokenizers to merge into the graph; none for a graph of ids.
        lines: texts on which the tokenizers' operators are compared.
        folder: of the checkpoint; None if it is not of a file.
    """

    form: Form
    subject: CheckpointSubject
    lines: tuple[str, ...]
    folder: Path | None


def export_graph(
    checkpoint: CheckpointLike, output: Output, options: ExportKeywords
) -> ExportResult:
    """Export one graph, compare it with eager PyTorch, and write the file; see ``export``.

    Quantised weights are those of a float32 graph that passed.
    """
    contents = read_contents(checkpoint, output, options)
    subject, report = contents.subject, None
    judged_subject = None if output.weights is None else _judged(contents, options)
    graph = build_graph(contents, output.progress)
    quantized = None if output.weights is None else graph.clone()
    join_weights(graph, output.kind)
    with new_file(output.path, output.force) as path:
        if output.level:
            report = compare_graph(contents, graph, path, output)
        tokenizers = subject.tokenizers.paths
        notes = subject.notes if contents.form.decodes else ()
        result = ExportResult(
            output.path, output.kind, report, layout=subject.layout, tokenizers=tokenizers,
            notes=notes,
        )  # fmt: skip
        if quantized is None:
            save_graph(contents, graph, path, report)
            return result
        return _save_quantized(contents, quantized, path, judged_subject, output, result)


def _lines(options: ExportKeywords, references: bool) -> list[str]:
    """The lines of a file of samples, on which a tokenizer is compared.

    Args:
        options: of ``export``.
        references: whether a line may have a reference after a tab, which is left out.

    Raises:
        InputError: the file is not UTF-8.
    """
    samples = options.get("samples")
    if samples is None or not options.get("text"):
        return []
    try:
        lines = Path(samples).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise InputError(f"{samples}: not UTF-8 text.") from None
    return [line.partition("\t")[0] for line in lines] if references else lines


def read_contents(
    checkpoint: CheckpointLike, output: Output, options: ExportKeywords
) -> GraphContents:
    """Read the checkpoint and, for text, compare its tokenizers with their ONNX operators.

    Args:
        checkpoint: see ``export``.
        output: the file.
        options: the options of ``export``.
    """
    form, of_graph = file_form(output.kind), graph_options(options)
    if options.get("text") and of_graph.opset < OLDEST_OPSET:
        problem = f"text needs {OLDEST_OPSET} or more, not {of_graph.opset}"
        raise ConfigError(Message(Problem("opset", problem)))
    lines = tuple(_lines(options, output.weights is not None))
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
    tokenizers = TokenizerFiles()
    if options.get("text"):
        progress("comparing the tokenizer", 0, 1)
        tokenizers = tokenizer_files(options, folder_of(checkpoint))
        check_reproduced(tokenizers, found.config, lines)
    subject = CheckpointSubject.of(
        found, options=of_graph, tokenizers=tokenizers, level=level, extras=extras
    )
    return GraphContents(form, subject, lines, folder_of(checkpoint))


def build_graph(contents: GraphContents, progress: Progress) -> ir.Model:
    """Export the graph without tokenizers, with the same names of weights as in a bundle."""
    progress(f"exporting {contents.form.filename}", 0, 1)
    model = contents.subject.export(contents.form)
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
    subject, form, progress = contents.subject, contents.form, output.progress
    tokenizers, eager = subject.tokenizers, subject.eager
    ir.save(model, path)
    assert form.spec is not None
    plan = ComparisonPlan(subject.level or FULL, progress=progress)
    report = compare_file(eager, path, form.spec(subject), form.compare, plan, form.decodes)
    report.require(str(output.path))
    if tokenizers:
        onnx.save_model(add_text(model, tokenizers, subject.checkpoint.config), path)
        of_text = compare_text(path, tokenizers, eager, contents.lines, progress)
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
    subject = contents.subject
    config = subject.checkpoint.config
    if subject.tokenizers:
        proto = add_text(model, subject.tokenizers, config)
    else:
        proto = ir.to_proto(model)
    info = describe_export(
        contents.form.name,
        config,
        report,
        needs={"onnxruntime": subject.options.minimum_onnxruntime},
        quantization=quantization,
    )
    onnx.helper.set_model_props(proto, info.to_metadata())
    onnx.save_model(proto, path)


def _judged(contents: GraphContents, options: ExportKeywords) -> CheckpointSubject | None:
    """The subject of a bundle that decodes the samples in the graph's place; None without samples.

    Raises:
        ConfigError: the samples need other languages.
    """
    language_pair, samples = language_pair_of(options, "export"), options.get("samples")
    if samples is None:
        return None
    checkpoint = contents.subject.checkpoint
    tokenizers = tokenizer_files(options, contents.folder)
    tokenizers.check(checkpoint.config)
    subject = CheckpointSubject.of(
        checkpoint, options=contents.subject.options, tokenizers=tokenizers, level="",
        samples=samples, language_pair=language_pair,
    )  # fmt: skip
    subject.check_languages(translates=True)
    return subject


def _save_quantized(
    contents: GraphContents,
    graph: ir.Model,
    path: Path,
    judged_subject: CheckpointSubject | None,
    output: Output,
    result: ExportResult,
) -> ExportResult:
    """Quantise a graph, and write it; a temporary bundle decides which parameters stay float32."""
    weights = output.weights
    assert weights is not None
    judged = None
    record: dict[str, Any] = {"weights": weights, "kept": [], "gate": "not gated"}
    if judged_subject is not None:
        with tempfile.TemporaryDirectory() as folder:
            bundle = replace(output, path=Path(folder) / "judged.bundle", force=False)
            judged = write_bundle(judged_subject, bundle)
        record = judged.manifest.quantization or record
    output.progress("quantising", 0, 1)
    quantize_graphs([graph], weights, record["kept"])
    join_weights(graph, output.kind)
    save_graph(contents, graph, path, result.report, record)
    return replace(
        result,
        weights=weights,
        quality=None if judged is None else judged.quality,
        kept=() if judged is None else judged.kept,
    )


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
    subject = CheckpointSubject.of(found, options=GraphOptions(), extras=Extras.of(names))
    if TEXTS in info.inputs:
        tokenizers = choose_tokenizers(folder=folder_of(checkpoint))
        texts = [] if samples is None else [text for text, _ in read_pairs(samples, "samples")]
        return info.note_own_code(compare_text(path, tokenizers, subject.eager, texts, progress))
    assert form.spec is not None
    spec = form.spec(subject)
    if names != {tensor.name for tensor in (*spec.inputs, *spec.outputs)}:
        raise BundleError(f"{path}: its inputs and outputs do not match this checkpoint.")
    plan = plan_file(path.name, found.config, level, samples, progress)
    report = compare_file(subject.eager, path, spec, form.compare, plan, form.decodes)
    return info.note_own_code(report)
