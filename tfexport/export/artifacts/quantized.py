"""Export of a checkpoint or module to quantised files.

The float32 export is compared with eager PyTorch before it is quantised.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, cast

from tfexport.atomic import check_new_file, new_file
from tfexport.bundle import check_output
from tfexport.export.artifacts import bundle, onnx_file
from tfexport.export.artifacts.bundle import BundleContents, write_bundle
from tfexport.export.artifacts.keywords import (
    GraphKeywords,
    QuantizedGraphKeywords,
    WholeBundleKeywords,
    check_keywords,
    graph_options,
    language_pair_of,
    tokenizer_files,
)
from tfexport.export.artifacts.option_rules import GENERATE, check_options
from tfexport.export.artifacts.results import ExportResult
from tfexport.export.parity.plan import read_level
from tfexport.export.quantize.bundle import QuantizeResult, check_weights, quantize_bundle
from tfexport.export.quantize.graphs import quantize_graphs
from tfexport.model_src.checkpoint.read_options import CheckpointLike, folder_of
from tfexport.runtime.language_tokens import NO_LANGUAGES
from tfexport.typing import PathLike, Progress, Unpack, silent


def export_quantized_bundle(
    checkpoint: CheckpointLike,
    output: PathLike,
    weights: str,
    *,
    verify: bool | str = True,
    force: bool = False,
    progress: Progress | None = None,
    **options: Unpack[WholeBundleKeywords],
) -> tuple[ExportResult, QuantizeResult]:
    """``export_bundle``, and then ``quantize_bundle``.

    Args:
        checkpoint: see ``export_bundle``.
        output: the quantised bundle's folder.
        weights: "int8" or "int4".
        verify: compare with eager PyTorch before quantising, and fail if they differ.
        force: replace a bundle that exists.
        progress: called at every step; see ``tfexport.typing``.
        **options: of ``export_bundle``; ``samples`` and their languages are also those of
            ``quantize_bundle``.

    Returns:
        The export with float32 weights, whose files are deleted, and the quantised bundle.
    """
    check_keywords("export_quantized_bundle", options, WholeBundleKeywords)
    check_weights(weights)
    of_graphs = graph_options(options)
    check_output(output, force)
    tell = progress or silent
    level, samples = read_level(verify), options.get("samples")
    contents = bundle.read_contents(checkpoint, of_graphs, options, level, tell)
    if samples is not None:
        contents.check_languages(translates=True)
    with tempfile.TemporaryDirectory() as folder:
        exact = Path(folder) / Path(output).name
        exported = write_bundle(contents, exact, force=False, tell=tell)
        language_pair = NO_LANGUAGES if samples is None else contents.language_pair
        made = quantize_bundle(
            exact, output, weights, samples=samples, source_language=language_pair.source,
            target_language=language_pair.target, force=force, progress=progress,
        )  # fmt: skip
    return exported, made


def export_quantized_graph(
    checkpoint: CheckpointLike,
    output: PathLike,
    weights: str,
    *,
    samples: PathLike | None = None,
    verify: bool | str = True,
    force: bool = False,
    progress: Progress | None = None,
    **options: Unpack[QuantizedGraphKeywords],
) -> tuple[ExportResult, QuantizeResult | None]:
    """``export_graph`` of "generate" with the weights that ``quantize_bundle`` would give it.

    The quality gate decodes the samples with a temporary bundle.

    Args:
        checkpoint: see ``export_bundle``.
        output: the .onnx file.
        weights: "int8" or "int4".
        samples: see ``quantize_bundle``.
        verify: compare with eager PyTorch before quantising, and fail if they differ.
        force: replace a file that exists.
        progress: called at every step; see ``tfexport.typing``.
        **options: how the checkpoint is read and the graph is written; see
            ``QuantizedGraphKeywords`` and ``BundleKeywords``.

    Returns:
        The file, and the result of quantising the bundle; None without samples.
    """
    check_keywords("export_quantized_graph", options, QuantizedGraphKeywords)
    check_weights(weights)
    check_options(GENERATE, {**options, "quantize": weights})
    language_pair = language_pair_of({**options, "samples": samples}, "export_quantized_graph")
    wanted = cast(GraphKeywords, options)
    of_graph = onnx_file.check_graph(GENERATE, wanted)
    check_new_file(output, force)
    tell = progress or silent
    level = read_level(verify)
    contents = onnx_file.read_contents(checkpoint, GENERATE, of_graph, wanted, level, tell)
    gate_bundle = None
    if samples is not None:
        tokenizers = tokenizer_files(options, folder_of(checkpoint))
        tokenizers.check(contents.checkpoint.config)
        gate_bundle = BundleContents(
            contents.checkpoint, of_graph, tokenizers, level="", language_pair=language_pair
        )
        gate_bundle.check_languages(translates=True)

    exact = onnx_file.build_graph(contents, tell)
    quantized = exact.clone()
    onnx_file.join_weights(exact, GENERATE)
    with new_file(output, force) as path:
        report = None
        if level:
            report = onnx_file.compare_graph(contents, exact, path, output, tell)
        judged = None
        record: dict[str, Any] = {"weights": weights, "kept": [], "gate": "not gated"}
        if gate_bundle is not None and samples is not None:
            judged = _judge(gate_bundle, weights, samples, tell)
            record = judged.manifest.quantization or record
        tell("quantising", 0, 1)
        quantize_graphs([quantized], weights, record["kept"])
        onnx_file.join_weights(quantized, GENERATE)
        onnx_file.save_graph(contents, quantized, path, report, record)
    files = contents.tokenizers.paths if contents.tokenizers is not None else ()
    return ExportResult(Path(output), contents.checkpoint, report, files), judged


def _judge(
    contents: BundleContents, weights: str, samples: PathLike, tell: Progress
) -> QuantizeResult:
    """Run the quality gate on a temporary bundle; it decides which parameters stay float32."""
    with tempfile.TemporaryDirectory() as folder:
        exact = Path(folder) / "exact.bundle"
        write_bundle(contents, exact, force=False, tell=tell)
        quantized = Path(folder) / "judged.bundle"
        language_pair = contents.language_pair
        return quantize_bundle(
            exact, quantized, weights, samples=samples, source_language=language_pair.source,
            target_language=language_pair.target, progress=tell,
        )  # fmt: skip
