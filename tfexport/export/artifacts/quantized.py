"""Checkpoint or live module to quantised files: sequencing only.

What is exported is compared with eager PyTorch as it is; then it is quantised.
"""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tfexport.bundle import check_output
from tfexport.export.artifacts.bundle import ExportResult, export_bundle
from tfexport.export.artifacts.checkpoint_source import Source
from tfexport.export.artifacts.onnx_file import GraphResult, export_graph
from tfexport.export.parity import Progress
from tfexport.export.quantize.bundle import QuantizeResult, check_weights, quantize_bundle


def export_quantized_bundle(
    source: Source,
    output: str | os.PathLike[str],
    weights: str,
    *,
    samples: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> tuple[ExportResult, QuantizeResult]:
    """``export_bundle``, and then ``quantize_bundle``.

    Args:
        source: see ``export_bundle``.
        output: the quantised bundle's folder.
        weights: "int8" or "int4".
        samples: see ``quantize_bundle``.
        force: replace a bundle that exists.
        progress: told what is being done, and how far it is.
        **options: of ``export_bundle``.
    """
    check_weights(weights)
    check_output(output, force)
    with tempfile.TemporaryDirectory() as folder:
        exact = Path(folder) / Path(output).name
        exported = export_bundle(source, exact, progress=progress, **options)
        made = quantize_bundle(
            exact, output, weights, samples=samples, force=force, progress=progress
        )
    return exported, made


def export_quantized_graph(
    source: Source,
    output: str | os.PathLike[str],
    weights: str,
    *,
    samples: str | os.PathLike[str] | None = None,
    text: bool = False,
    text_samples: Iterable[str] = (),
    verify: bool = True,
    force: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> tuple[GraphResult, QuantizeResult | None]:
    """``export_graph`` of "generate" with the weights that ``quantize_bundle`` would give it.

    The samples are decoded with a bundle, which is thrown away.

    Args:
        source: see ``export_graph``.
        output: the .onnx file.
        weights: "int8" or "int4".
        samples: see ``quantize_bundle``.
        text: see ``export_graph``.
        text_samples: on which the tokenizer is compared; see ``export_graph``.
        verify: see ``export_graph``.
        force: replace a file that exists.
        progress: told what is being done, and how far it is.
        **options: that ``export_graph`` and ``export_bundle`` have in common.

    Returns:
        What was written, and what the comparison with the float32 weights gave; None without
        samples.
    """
    check_weights(weights)
    judged: list[QuantizeResult] = []

    def judge() -> dict[str, Any]:
        if samples is None:
            return {"weights": weights, "kept": [], "gate": "not gated"}
        with tempfile.TemporaryDirectory() as folder:
            _, made = export_quantized_bundle(
                source, Path(folder) / "judged.bundle", weights,
                samples=samples, verify=False, progress=progress, **options,
            )  # fmt: skip
        judged.append(made)
        assert made.manifest.quantization is not None
        return made.manifest.quantization

    # A graph of ids holds no tokenizer; only the samples may need one.
    shared = {name: value for name, value in options.items() if text or "tokenizer" not in name}
    written = export_graph(
        source, output, "generate", text=text, samples=text_samples, quantization=judge,
        verify=verify, force=force, progress=progress, **shared,
    )  # fmt: skip
    return written, judged[0] if judged else None
