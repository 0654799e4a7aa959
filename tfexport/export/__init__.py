"""Module to files, and the proof that they say the same (torch, onnx).

Names are imported when they are first used: quantising needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfexport.export.artifacts.bundle import ExportResult, export_bundle, verify_bundle
    from tfexport.export.artifacts.onnx_file import GraphResult, export_graph, verify_graph
    from tfexport.export.artifacts.quantized import export_quantized_bundle, export_quantized_graph
    from tfexport.export.artifacts.torch_file import (
        TorchResult,
        export_torchscript,
        verify_torchscript,
    )
    from tfexport.export.artifacts.verify import describe_file, verify_artifact
    from tfexport.export.parity import ParityReport
    from tfexport.export.quantize.bundle import QuantizeResult, quantize_bundle

__all__ = [
    "ExportResult",
    "GraphResult",
    "ParityReport",
    "QuantizeResult",
    "TorchResult",
    "describe_file",
    "export_bundle",
    "export_graph",
    "export_quantized_bundle",
    "export_quantized_graph",
    "export_torchscript",
    "quantize_bundle",
    "verify_artifact",
    "verify_bundle",
    "verify_graph",
    "verify_torchscript",
]

_WHERE = {
    "artifacts.onnx_file": ("GraphResult", "export_graph", "verify_graph"),
    "parity": ("ParityReport",),
    "artifacts.bundle": ("ExportResult", "export_bundle", "verify_bundle"),
    "quantize.bundle": ("QuantizeResult", "quantize_bundle"),
    "artifacts.quantized": ("export_quantized_bundle", "export_quantized_graph"),
    "artifacts.torch_file": ("TorchResult", "export_torchscript", "verify_torchscript"),
    "artifacts.verify": ("describe_file", "verify_artifact"),
}


def __getattr__(name: str) -> Any:
    for module, names in _WHERE.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
