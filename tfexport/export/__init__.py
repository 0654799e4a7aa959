"""Export of models to files, and their comparison with eager PyTorch; needs torch and onnx.

Names are imported when they are first used, so that quantising needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tfexport.errors import missing_dependency

if TYPE_CHECKING:
    from tfexport.export.artifacts.export import export, verify
    from tfexport.export.artifacts.info import ArtifactInfo, read_info
    from tfexport.export.artifacts.keywords import ExportKeywords, VerifyKeywords
    from tfexport.export.artifacts.quantize import quantize
    from tfexport.export.artifacts.results import ExportResult
    from tfexport.export.modules.inputs import Input
    from tfexport.export.report import ParityReport

__all__ = [
    "ArtifactInfo",
    "ExportKeywords",
    "ExportResult",
    "Input",
    "ParityReport",
    "VerifyKeywords",
    "export",
    "quantize",
    "read_info",
    "verify",
]

_WHERE = {
    "artifacts.export": ("export", "verify"),
    "artifacts.info": ("ArtifactInfo", "read_info"),
    "artifacts.keywords": ("ExportKeywords", "VerifyKeywords"),
    "artifacts.quantize": ("quantize",),
    "artifacts.results": ("ExportResult",),
    "modules.inputs": ("Input",),
    "report": ("ParityReport",),
}


def __getattr__(name: str) -> Any:
    for module, names in _WHERE.items():
        if name in names:
            try:
                return getattr(import_module(f"{__name__}.{module}"), name)
            except ImportError as error:
                if error.name is None or error.name.partition(".")[0] == "tfexport":
                    raise
                need = f"tfexport.export.{name} needs {error.name}, which is not installed"
                raise missing_dependency(need, "export") from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
