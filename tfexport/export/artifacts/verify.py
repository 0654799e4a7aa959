"""Any artifact: what it says about itself, and which comparison with its checkpoint it takes."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tfexport.errors import BundleError
from tfexport.export.artifacts.bundle import verify_bundle
from tfexport.export.artifacts.checkpoint_source import Source
from tfexport.export.artifacts.onnx_file import read_graph_facts, verify_graph
from tfexport.export.artifacts.torch_file import read_torch_facts, verify_torchscript
from tfexport.export.parity import ParityReport, Progress


def verify_artifact(
    path: str | os.PathLike[str],
    source: Source,
    *,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    settings: Iterable[str] = (),
    layout: str | None = None,
    progress: Progress | None = None,
) -> ParityReport:
    """Compare a bundle, a graph or a torch file with the checkpoint that it came from.

    Config values that neither the checkpoint nor its config files nor the caller give are taken
    from the artifact.

    Raises:
        TfexportError: the artifact or the checkpoint is unusable. A difference is not raised: it is
            in the report.
    """
    path = Path(path)
    options: dict[str, Any] = {
        "config": config,
        "settings": settings,
        "layout": layout,
        "progress": progress,
    }
    if path.suffix == ".onnx":
        return verify_graph(path, source, **options)
    if path.is_file():
        return verify_torchscript(path, source, **options)
    return verify_bundle(path, source, **options)


def describe_file(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """What a single file of this project says about itself; None if it is none of them.

    Returns:
        kind, tfexport_version, config, parity, and what else its format tells.
    """
    path = Path(path)
    try:
        return read_graph_facts(path) if path.suffix == ".onnx" else read_torch_facts(path)
    except BundleError:
        return None
