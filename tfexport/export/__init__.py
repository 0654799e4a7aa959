"""Module to files, and the proof that they say the same (torch, onnx)."""

from tfexport.export.graph_file import GraphResult, export_graph, verify_graph
from tfexport.export.parity import ParityReport
from tfexport.export.pipeline import ExportResult, export_bundle, verify_bundle

__all__ = [
    "ExportResult",
    "GraphResult",
    "ParityReport",
    "export_bundle",
    "export_graph",
    "verify_bundle",
    "verify_graph",
]
