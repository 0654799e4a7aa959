"""A native engine for encoder-decoder Transformers; ``tfexport`` uses it where it is installed."""

from tfexport_native.arrays import Tensor
from tfexport_native.library import (
    CancelledError,
    NativeError,
    NoTokenError,
    PackedFileError,
    instruction_sets,
)
from tfexport_native.model import Batch, Candidates, Model, PackedFile, Read, Run, Trace

__all__ = [
    "Batch",
    "CancelledError",
    "Candidates",
    "Model",
    "NativeError",
    "NoTokenError",
    "PackedFile",
    "PackedFileError",
    "Read",
    "Run",
    "Tensor",
    "Trace",
    "instruction_sets",
]
