"""Comparisons of every artifact with eager PyTorch, stage by stage."""

from tfexport.export.parity.bundle import compare_bundle
from tfexport.export.parity.forward import compare_forward, compare_program, compare_torchscript
from tfexport.export.parity.search import compare_generate
from tfexport.export.parity.text import compare_text
from tfexport.export.report import (
    STAGES,
    TOKEN_STAGES,
    Comparison,
    ParityReport,
)

__all__ = [
    "STAGES",
    "TOKEN_STAGES",
    "Comparison",
    "ParityReport",
    "compare_bundle",
    "compare_forward",
    "compare_generate",
    "compare_program",
    "compare_text",
    "compare_torchscript",
]
