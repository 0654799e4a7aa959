"""Module to files, and the proof that they say the same (torch, onnx)."""

from tfexport.export.parity import ParityReport
from tfexport.export.pipeline import ExportResult, export_bundle, verify_bundle

__all__ = ["ExportResult", "ParityReport", "export_bundle", "verify_bundle"]
