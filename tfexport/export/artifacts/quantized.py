"""Export of a checkpoint to quantised files.

The float32 export is compared with eager PyTorch before it is quantised.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from tfexport.atomic import new_file
from tfexport.export.artifacts import bundle, onnx_file
from tfexport.export.artifacts.bundle import BundleContents, write_bundle
from tfexport.export.artifacts.keywords import (
    ExportKeywords,
    graph_options,
    language_pair_of,
    tokenizer_files,
)
from tfexport.export.artifacts.option_rules import Output
from tfexport.export.artifacts.results import ExportResult
from tfexport.export.quantization.bundle import QuantizedBundle, quantize_bundle
from tfexport.export.quantization.graphs import quantize_graphs
from tfexport.model_src.checkpoint.read_options import CheckpointLike, folder_of
from tfexport.runtime.text.codec import NO_LANGUAGES
from tfexport.typing import PathLike


def export_quantized_bundle(
    checkpoint: CheckpointLike, output: Output, options: ExportKeywords
) -> ExportResult:
    """``export_bundle`` to a temporary folder, and then ``quantize_bundle``; see ``export``."""
    of_graphs = graph_options(options)
    contents = bundle.read_contents(checkpoint, of_graphs, options, output.level, output.progress)
    return write_quantized(contents, output)


def write_quantized(contents: BundleContents, output: Output) -> ExportResult:
    """Write and compare a float32 bundle in a temporary folder, and quantise it."""
    assert output.weights is not None
    samples = contents.samples
    if samples is not None:
        contents.check_languages(translates=True)
    with tempfile.TemporaryDirectory() as folder:
        exact = Path(folder) / output.path.name
        exported = write_bundle(contents, exact, force=False, progress=output.progress)
        language_pair = NO_LANGUAGES if samples is None else contents.language_pair
        made = quantize_bundle(
            exact, output.path, output.weights, samples=samples, language_pair=language_pair,
            accept_loss=output.accept_loss, force=output.force, progress=output.progress,
        )  # fmt: skip
    return quantized_result(exported, made, output)


def quantized_result(exported: ExportResult, made: QuantizedBundle, output: Output) -> ExportResult:
    """The result of an export to a bundle that was quantised."""
    assert output.weights is not None
    return dataclasses.replace(
        exported,
        path=output.path,
        bundle_manifest=made.manifest,
        weights=output.weights,
        quality=made.quality,
        kept=made.kept,
        float32_size=exported.size,
    )


def export_quantized_graph(
    checkpoint: CheckpointLike, output: Output, options: ExportKeywords
) -> ExportResult:
    """``export_graph`` of "generate" with the weights that a quantised bundle would have.

    The quality is measured with a temporary bundle, which decodes the samples.
    """
    weights, progress = output.weights, output.progress
    assert weights is not None
    samples = options.get("samples")
    language_pair = language_pair_of(options, "export")
    # Without the reference translations.
    lines = [line.partition("\t")[0] for line in onnx_file.read_lines(options)]
    contents = onnx_file.read_contents(checkpoint, output, options, lines)
    judged_bundle = None
    if samples is not None:
        tokenizers = tokenizer_files(options, folder_of(checkpoint))
        tokenizers.check(contents.checkpoint.config)
        judged_bundle = BundleContents(
            contents.checkpoint, contents.options, tokenizers, level="", language_pair=language_pair
        )
        judged_bundle.check_languages(translates=True)

    exact = onnx_file.build_graph(contents, progress)
    quantized = exact.clone()
    onnx_file.join_weights(exact, output.kind)
    with new_file(output.path, output.force) as path:
        report = None
        if output.level:
            report = onnx_file.compare_graph(contents, exact, path, output)
        judged = None
        record: dict[str, Any] = {"weights": weights, "kept": [], "gate": "not gated"}
        if judged_bundle is not None and samples is not None:
            judged = _judge(judged_bundle, samples, output)
            record = judged.manifest.quantization or record
        progress("quantising", 0, 1)
        quantize_graphs([quantized], weights, record["kept"])
        onnx_file.join_weights(quantized, output.kind)
        onnx_file.save_graph(contents, quantized, path, report, record)
    return dataclasses.replace(
        onnx_file.result_of(contents, output, report),
        weights=weights,
        quality=None if judged is None else judged.quality,
        kept=() if judged is None else judged.kept,
    )


def _judge(contents: BundleContents, samples: PathLike, output: Output) -> QuantizedBundle:
    """Measure the quality with a temporary bundle; it decides which parameters stay float32."""
    assert output.weights is not None
    with tempfile.TemporaryDirectory() as folder:
        exact = Path(folder) / "exact.bundle"
        write_bundle(contents, exact, force=False, progress=output.progress)
        return quantize_bundle(
            exact, Path(folder) / "judged.bundle", output.weights, samples=samples,
            language_pair=contents.language_pair, accept_loss=output.accept_loss,
            progress=output.progress,
        )  # fmt: skip
