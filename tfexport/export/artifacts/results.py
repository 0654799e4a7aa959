"""The result of an export."""

from dataclasses import dataclass
from pathlib import Path

from tfexport.bundle import Manifest
from tfexport.export.parity import ParityReport
from tfexport.model_src.checkpoint.checkpoint import Checkpoint


@dataclass(frozen=True)
class ExportResult:
    """A bundle or a single file that was exported.

    Attributes:
        path: the bundle's folder, or the file.
        checkpoint: the checkpoint as it was read.
        report: of the comparison with eager PyTorch; None with ``verify=False``.
        tokenizers: the tokenizer files that were exported with it; empty if it takes ids.
        bundle_manifest: None for a single file.
    """

    path: Path
    checkpoint: Checkpoint
    report: ParityReport | None
    tokenizers: tuple[Path, ...] = ()
    bundle_manifest: Manifest | None = None

    @property
    def manifest(self) -> Manifest:
        """The manifest of the bundle.

        Raises:
            AttributeError: a single file was exported, which has none.
        """
        if self.bundle_manifest is None:
            raise AttributeError(f"{self.path}: a single file, which has no manifest.")
        return self.bundle_manifest
