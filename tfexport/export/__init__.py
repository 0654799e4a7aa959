"""Module to files, and the proof that they say the same (torch, onnx)."""

from tfexport.export.graph_file import GraphResult, export_graph, verify_graph
from tfexport.export.parity import ParityReport
from tfexport.export.pipeline import ExportResult, export_bundle, verify_bundle
from tfexport.export.torchscript import TorchResult, export_torchscript, verify_torchscript
from tfexport.export.verify import describe_file, verify_artifact

__all__ = [
    "ExportResult",
    "GraphResult",
    "ParityReport",
    "TorchResult",
    "describe_file",
    "export_bundle",
    "export_graph",
    "export_torchscript",
    "verify_artifact",
    "verify_bundle",
    "verify_graph",
    "verify_torchscript",
]
