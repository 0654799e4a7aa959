"""Comparisons of every artifact with eager PyTorch, stage by stage."""

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
]
