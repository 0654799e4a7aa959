"""The result of an export."""

from dataclasses import dataclass
from pathlib import Path

from tfexport.bundle import Manifest
from tfexport.export.parity import ParityReport
from tfexport.model_src.checkpoint.read import Checkpoint


@dataclass(frozen=True)
class ExportResult:
    """A bundle or a single file that was exported.

    Attributes:
        path: the bundle's folder, or the file.
        checkpoint: the checkpoint as it was read.
        report: of the comparison with eager PyTorch; None if it was not asked for.
        tokenizers: the tokenizer files that were taken in; none for a file of ids.
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
