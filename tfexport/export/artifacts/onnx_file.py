"""Writing a checkpoint as one self-contained .onnx file, and its verification."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from tfexport.atomic import new_file
from tfexport.errors import (
    BundleError,
    ExportError,
    InputError,
)
from tfexport.export.artifacts.bundle import write_bundle
from tfexport.export.artifacts.checkpoint_source import read_for
from tfexport.export.artifacts.info import describe_export, read_graph_info
from tfexport.export.artifacts.keywords import (
    VerifyKeywords,
    read_options,
    refuse_expected,
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
from tfexport.export.text.text_graphs import TEXTS, add_text, check_reproduced
from tfexport.export.text.tokenizer_files import TokenizerFiles, choose_tokenizers
from tfexport.model_src.checkpoint.read_options import CheckpointLike, files_of
from tfexport.typing import Progress

_MAX_FILE_BYTES = 2**31 - 1  # protobuf's limit for one message


def write_graph(subject: CheckpointSubject, output: Output) -> ExportResult:
    """Export one graph, compare it with eager PyTorch, and write the file; see ``export``.

    Quantised weights are those of a float32 graph that passed.

    Raises:
        ConfigError: the samples need other languages.
    """
    form, report, progress = file_form(output.kind), None, output.progress
    lines, tokenizers = [], TokenizerFiles()
    if subject.extras.text:
        progress("comparing the tokenizer", 0, 1)
        lines, tokenizers = _lines(subject, output.weights is not None), subject.tokenizers
        check_reproduced(tokenizers, subject.checkpoint.config, lines)
    if output.weights is not None and subject.samples is not None:
        subject.tokenizers.check(subject.checkpoint.config)
        subject.check_languages(translates=True)
    progress(f"exporting {form.filename}", 0, 1)
    graph = subject.export(form)  # with the same names of weights as in a bundle
    share_transposed([graph])
    quantized = None if output.weights is None else graph.clone()
    join_weights(graph, output.kind)
    with new_file(output.path, output.force) as path:
        if output.level:
            report = _compare(subject, output, graph, path, lines)
        result = ExportResult(
            output.path, output.kind, report, layout=subject.layout, tokenizers=tokenizers.paths,
            notes=subject.notes if form.decodes else (),
        )  # fmt: skip
        if quantized is None:
            _save(subject, output, graph, path, report)
            return result
        return _save_quantized(subject, output, quantized, path, result)


def _lines(subject: CheckpointSubject, references: bool) -> list[str]:
    """The lines of the file of samples, on which a tokenizer is compared.

    Args:
        subject: with the samples.
        references: whether a line may have a reference after a tab, which is left out.

    Raises:
        InputError: the file is not UTF-8.
    """
    if subject.samples is None:
        return []
    try:
        lines = Path(subject.samples).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise InputError(f"{subject.samples}: not UTF-8 text.") from None
    return [line.partition("\t")[0] for line in lines] if references else lines


def _compare(
    subject: CheckpointSubject, output: Output, model: ir.Model, path: Path, lines: Sequence[str]
) -> ParityReport:
    """Write a graph and compare it with eager PyTorch, then again with its tokenizers, if any.

    Args:
        subject: the model.
        output: the final file.
        model: the graph.
        path: a temporary file.
        lines: texts on which the tokenizers' operators are compared.

    Raises:
        ParityError: they differ.
    """
    progress, form, eager = output.progress, file_form(output.kind), subject.eager
    ir.save(model, path)
    assert form.spec is not None
    plan = ComparisonPlan(subject.level or FULL, progress=progress)
    report = compare_file(eager, path, form.spec(subject), form.compare, plan, form.decodes)
    report.require(str(output.path))
    if subject.extras.text:
        onnx.save_model(add_text(model, subject.tokenizers, subject.checkpoint.config), path)
        of_text = compare_text(path, subject.tokenizers, eager, lines, progress)
        report.comparisons.extend(of_text.comparisons)
        report.require(str(output.path))
    return report


def _save(
    subject: CheckpointSubject,
    output: Output,
    model: ir.Model,
    path: Path,
    report: ParityReport | None,
    quantization: Mapping[str, Any] | None = None,
) -> None:
    """Write the final file, with its metadata."""
    config = subject.checkpoint.config
    if subject.extras.text:
        proto = add_text(model, subject.tokenizers, config)
    else:
        proto = ir.to_proto(model)
    info = describe_export(
        output.kind,
        config,
        report,
        needs={"onnxruntime": subject.options.minimum_onnxruntime},
        quantization=quantization,
    )
    onnx.helper.set_model_props(proto, info.to_metadata())
    onnx.save_model(proto, path)


def _save_quantized(
    subject: CheckpointSubject, output: Output, graph: ir.Model, path: Path, result: ExportResult
) -> ExportResult:
    """Quantise a graph, and write it; a temporary bundle decides which parameters stay float32."""
    weights = output.weights
    assert weights is not None
    judged = None
    record: dict[str, Any] = {"weights": weights, "kept": [], "gate": "not gated"}
    if subject.samples is not None:
        with tempfile.TemporaryDirectory() as folder:
            bundle = replace(output, path=Path(folder) / "judged.bundle", force=False)
            judged = write_bundle(replace(subject, level=""), bundle)
        record = judged.manifest.quantization or record
    output.progress("quantising", 0, 1)
    quantize_graphs([graph], weights, record["kept"])
    join_weights(graph, output.kind)
    _save(subject, output, graph, path, result.report, record)
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
    found = read_for(info.kind, checkpoint, read, info.config)
    info.require_same_model(path, found.config)
    subject = CheckpointSubject.of(found, options=GraphOptions(), extras=Extras.of(names))
    if TEXTS in info.inputs:
        tokenizers = choose_tokenizers(folder=files_of(checkpoint))
        texts = [] if samples is None else [text for text, _ in read_pairs(samples, "samples")]
        return info.note_own_code(compare_text(path, tokenizers, subject.eager, texts, progress))
    assert form.spec is not None
    spec = form.spec(subject)
    if names != {tensor.name for tensor in (*spec.inputs, *spec.outputs)}:
        raise BundleError(f"{path}: its inputs and outputs do not match this checkpoint.")
    plan = plan_file(path.name, found.config, level, samples, progress)
    report = compare_file(subject.eager, path, spec, form.compare, plan, form.decodes)
    return info.note_own_code(report)
