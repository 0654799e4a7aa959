"""The result of an export. Needs no torch."""

from dataclasses import dataclass
from pathlib import Path

from tfexport.bundle import Manifest
from tfexport.export.quantization.quality import Quality
from tfexport.export.report import ParityReport


@dataclass(frozen=True)
class ExportResult:
    """A bundle or a single file that was written.

    Attributes:
        path: the bundle's folder, or the file.
        kind: "bundle", "generate", "forward", "torchscript" or "torch.export".
        report: of the comparison with eager PyTorch, before quantising; None with
            ``verify=False``, and of ``quantize``.
        bundle_manifest: None for a single file.
        layout: name of the checkpoint's layout; None for a module of the user's own.
        tokenizers: the tokenizer files that were exported with it; empty if it takes ids.
        notes: remarks on what was read, left out or not compared.
        weights: "float32", "int8", "int4" or "bf16".
        quality: of quantised weights: the comparison with the float32 ones; None without samples.
        kept: parameters that stayed float32 so that the quality was good enough.
        float32_size: bytes of the float32 bundle from which a quantised one was made; None of
            single files, and with float32 weights.
    """

    path: Path
    kind: str
    report: ParityReport | None = None
    bundle_manifest: Manifest | None = None
    layout: str | None = None
    tokenizers: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()
    weights: str = "float32"
    quality: Quality | None = None
    kept: tuple[str, ...] = ()
    float32_size: int | None = None

    @property
    def manifest(self) -> Manifest:
        """The manifest of the bundle.

        Raises:
            AttributeError: a single file was written, which has none.
        """
        if self.bundle_manifest is None:
            raise AttributeError(f"{self.path}: a single file, which has no manifest.")
        return self.bundle_manifest

    @property
    def size(self) -> int:
        """Bytes of the bundle or file."""
        return self.path.stat().st_size if self.bundle_manifest is None else self.manifest.size
