"""Export of models to files, and their comparison with eager PyTorch; needs torch and onnx.

Names are imported when they are first used, so that quantising needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tfexport.errors import missing_dependency

if TYPE_CHECKING:
    from tfexport.export.artifacts.bundle import export_bundle, verify_bundle
    from tfexport.export.artifacts.info import ArtifactInfo, read_info
    from tfexport.export.artifacts.module import ModuleResult, export_module, verify_module
    from tfexport.export.artifacts.module_script import export_module_torchscript
    from tfexport.export.artifacts.onnx_file import export_graph, verify_graph
    from tfexport.export.artifacts.quantized import export_quantized_bundle, export_quantized_graph
    from tfexport.export.artifacts.results import ExportResult
    from tfexport.export.artifacts.torch_file import export_torchscript, verify_torchscript
    from tfexport.export.artifacts.verify import describe_file, verify_artifact
    from tfexport.export.modules.inputs import Input
    from tfexport.export.parity import ParityReport
    from tfexport.export.quantization.bundle import QuantizeResult, quantize_bundle

__all__ = [
    "ArtifactInfo",
    "ExportResult",
    "Input",
    "ModuleResult",
    "ParityReport",
    "QuantizeResult",
    "describe_file",
    "export_bundle",
    "export_graph",
    "export_module",
    "export_module_torchscript",
    "export_quantized_bundle",
    "export_quantized_graph",
    "export_torchscript",
    "quantize_bundle",
    "read_info",
    "verify_artifact",
    "verify_bundle",
    "verify_graph",
    "verify_module",
    "verify_torchscript",
]

_WHERE = {
    "artifacts.bundle": ("export_bundle", "verify_bundle"),
    "artifacts.info": ("ArtifactInfo", "read_info"),
    "artifacts.module": ("ModuleResult", "export_module", "verify_module"),
    "artifacts.module_script": ("export_module_torchscript",),
    "artifacts.onnx_file": ("export_graph", "verify_graph"),
    "artifacts.quantized": ("export_quantized_bundle", "export_quantized_graph"),
    "artifacts.results": ("ExportResult",),
    "artifacts.torch_file": ("export_torchscript", "verify_torchscript"),
    "artifacts.verify": ("describe_file", "verify_artifact"),
    "modules.inputs": ("Input",),
    "parity": ("ParityReport",),
    "quantize.bundle": ("QuantizeResult", "quantize_bundle"),
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
