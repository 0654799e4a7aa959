"""The comparison of any exported artifact with its checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfexport.export.artifacts.bundle import verify_bundle
from tfexport.export.artifacts.info import read_info
from tfexport.export.artifacts.keywords import VerifyKeywords, check_keywords
from tfexport.export.artifacts.onnx_file import verify_graph
from tfexport.export.artifacts.torch_file import verify_torchscript
from tfexport.export.parity import ParityReport
from tfexport.model_src.checkpoint.read_options import CheckpointLike
from tfexport.typing import PathLike, Progress, Unpack


def verify_artifact(
    path: PathLike,
    checkpoint: CheckpointLike,
    *,
    progress: Progress | None = None,
    **options: Unpack[VerifyKeywords],
) -> ParityReport:
    """Compare a bundle, a single graph or a torch file with the checkpoint it was exported from.

    A config value that is given neither by the checkpoint and its config files nor by the caller
    is taken from the artifact.

    Args:
        path: a bundle's folder, or a file.
        checkpoint: a path, a module or a ``Checkpoint``, as for ``export_bundle``.
        progress: called at every step; see ``tfexport.typing``.
        **options: how the checkpoint is read, and what is compared; see ``VerifyKeywords``.

    Raises:
        TfexportError: the artifact or the checkpoint cannot be read. Differences raise nothing;
            they are in the report.
    """
    check_keywords("verify_artifact", options, VerifyKeywords)
    path = Path(path)
    if path.suffix == ".onnx":
        return verify_graph(path, checkpoint, progress=progress, **options)
    if path.is_file():
        return verify_torchscript(path, checkpoint, progress=progress, **options)
    return verify_bundle(path, checkpoint, progress=progress, **options)


def describe_file(path: PathLike) -> dict[str, Any] | None:
    """Read the metadata of a single file that tfexport wrote.

    Returns:
        kind, tfexport_version, config, parity and the other entries of its kind; None if tfexport
        did not write the file.
    """
    info = read_info(path)
    return None if info is None else info.to_dict()
