"""Writing a subject as a bundle, comparing the bundle with the original, and quantising it."""

import tempfile
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from tfexport.bundle import Manifest, new_bundle, write_manifest
from tfexport.errors import ConfigError, Message, Option
from tfexport.export.artifacts.option_rules import BUNDLE, Output
from tfexport.export.artifacts.results import ExportResult
from tfexport.export.forms import bundle_forms, export_forms
from tfexport.export.parity.bundle import compare_bundle
from tfexport.export.parity.text import add_expected, near_tie_of
from tfexport.export.passes.weights import record_weights, share_weights
from tfexport.export.quantization.bundle import quantize_bundle
from tfexport.export.report import ParityReport
from tfexport.export.subject import Subject, describe
from tfexport.runtime.text.codec import NO_LANGUAGES
from tfexport.typing import Progress


def write_bundle(subject: Subject, output: Output) -> ExportResult:
    """Export all graphs, write the bundle and compare it with the original; see ``export``.

    Quantised weights are those of a float32 bundle that passed.
    """
    if output.weights is not None:
        return _write_quantized(subject, output, output.weights)
    report = None
    with new_bundle(output.path, output.force) as folder:
        graphs = export_forms(subject, output.progress)
        output.progress("writing", 0, 1)
        share_weights(list(graphs.values()), folder)
        if weights := subject.weights():
            arrays = {name: tensor.numpy() for name, tensor in weights.items()}
            record_weights(list(graphs.values()), folder, arrays)
        manifest = describe(subject, graphs, subject.tokenizers.copy(folder))
        for name, filename in manifest.graphs.items():
            ir.save(graphs[name], folder / filename)
        manifest = write_manifest(folder, manifest)
        if subject.level:
            report = check_bundle(subject, folder, manifest, output.progress)
            report.require(str(output.path))
            manifest = write_manifest(folder, replace(manifest, parity=report.summary()))
    files = subject.tokenizers.paths
    return ExportResult(output.path, BUNDLE, report, manifest, subject.layout, files, subject.notes)


def check_bundle(
    subject: Subject, folder: Path, manifest: Manifest, progress: Progress
) -> ParityReport:
    """Compare a bundle with the original, and its texts with those that are expected."""
    plan, eager = subject.plan(folder, manifest, progress), subject.eager
    comparisons = {form.name: form.compare for form in bundle_forms()}
    report = compare_bundle(eager, folder, manifest, comparisons, plan)
    if subject.expect is None:
        return report
    near_tie, pair = near_tie_of(eager, report), subject.language_pair
    return add_expected(report, folder, subject.expect, near_tie, progress, pair)


def _write_quantized(subject: Subject, output: Output, weights: str) -> ExportResult:
    """Write and compare a float32 bundle in a temporary folder, and quantise it."""
    samples = subject.samples
    if output.accept_loss and samples is None and subject.preprocessing is None:
        raise ConfigError(Message(
            Option("accept_loss"), " requires ", Option("samples"),
            ": without them the quantised weights are not compared.",
        ))  # fmt: skip
    if samples is not None:
        subject.check_languages(translates=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / output.path.name
        exact = write_bundle(subject, replace(output, path=path, weights=None, force=False))
        quantized = quantize_bundle(
            exact.path, output.path, weights, samples=samples,
            language_pair=NO_LANGUAGES if samples is None else subject.language_pair,
            accept_loss=output.accept_loss, force=output.force, progress=output.progress,
        )  # fmt: skip
    return replace(
        exact,
        path=output.path,
        bundle_manifest=quantized.manifest,
        weights=weights,
        quality=quantized.quality,
        kept=quantized.kept,
        float32_size=exact.size,
    )
