"""Any ONNX export: a bundle or a single graph, with float32 or quantised weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfexport.errors import InputError
from tfexport.export.artifacts.bundle import export_bundle
from tfexport.export.artifacts.keywords import (
    BundleKeywords,
    WholeBundleKeywords,
    check_keywords,
)
from tfexport.export.artifacts.onnx_file import export_graph
from tfexport.export.artifacts.option_rules import LANGUAGES, check_onnx_export
from tfexport.export.artifacts.quantized import export_quantized_bundle, export_quantized_graph
from tfexport.export.artifacts.results import ExportResult
from tfexport.export.quantization.bundle import QuantizeResult
from tfexport.model_src.checkpoint.read_options import CheckpointLike
from tfexport.typing import PathLike, Progress, Unpack


class OnnxKeywords(WholeBundleKeywords, total=False):
    """Keyword arguments of ``export_onnx``.

    Attributes:
        graph: "generate" or "forward" for a file of that graph; None for a bundle.
        quantize: "int8" or "int4"; None for float32.
        samples: a text file. A bundle is compared on its lines besides drawn ids, and with
            ``text`` the tokenizer; with ``quantize``, they are also the samples of the quality
            gate.
        attention_biases: see ``export_graph``.
        log_probs: see ``export_graph``.
        text: see ``export_graph``.
    """

    graph: str | None
    quantize: str | None
    attention_biases: bool
    log_probs: bool
    text: bool


@dataclass(frozen=True)
class OnnxExport:
    """The result of ``export_onnx``.

    Attributes:
        exported: with float32 weights, as compared with eager PyTorch.
        size: of the output, in bytes.
        quantized: the result of quantising; None for float32, and for a file without samples.
    """

    exported: ExportResult
    size: int
    quantized: QuantizeResult | None = None


def export_onnx(
    checkpoint: CheckpointLike,
    output: PathLike,
    *,
    verify: bool | str = True,
    force: bool = False,
    progress: Progress | None = None,
    **options: Unpack[OnnxKeywords],
) -> OnnxExport:
    """Export a bundle or a single graph; see ``export_bundle`` and ``export_graph``.

    Raises:
        TfexportError: as ``export_bundle``, and ``QualityError``.
        InputError: samples that are not UTF-8 text.
    """
    check_keywords("export_onnx", options, OnnxKeywords)
    check_onnx_export(output, force, options)
    graph, kind = options.get("graph"), options.get("quantize")
    text, samples = options.get("text", False), options.get("samples")
    lines = _read_lines(Path(samples)) if samples is not None and text else []
    shared: Any = {k: v for k, v in options.items() if k in BundleKeywords.__annotations__}
    languages: Any = {name: options.get(name) for name in LANGUAGES}
    shared |= {"verify": verify, "force": force, "progress": progress}
    if graph is None:
        of_bundle: Any = {"samples": samples, "expect": options.get("expect"), **languages}
        if kind is None:
            exported = export_bundle(checkpoint, output, **of_bundle, **shared)
            return OnnxExport(exported, exported.manifest.size)
        exported, made = export_quantized_bundle(checkpoint, output, kind, **of_bundle, **shared)
        return OnnxExport(exported, made.size, made)
    judged = None
    if kind is None:
        exported = export_graph(
            checkpoint, output, graph, text=text, text_samples=lines,
            attention_biases=options.get("attention_biases", False),
            log_probs=options.get("log_probs", False), **shared,
        )  # fmt: skip
    else:
        texts = [line.partition("\t")[0] for line in lines]  # without the reference translation
        exported, judged = export_quantized_graph(
            checkpoint, output, kind, samples=samples, text=text, text_samples=texts,
            **languages, **shared,
        )  # fmt: skip
    return OnnxExport(exported, Path(output).stat().st_size, judged)


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text.") from None
