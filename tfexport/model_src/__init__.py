"""The model: its mathematics, and reading it from checkpoints (torch)."""

from tfexport.errors import missing_dependency

try:
    import torch  # noqa: F401
except ImportError as error:
    raise missing_dependency("tfexport.model_src needs torch", "export") from error

from tfexport.model_src.build import build_transformer
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.checkpoint.keymap import KeyTable
from tfexport.model_src.checkpoint.layout import Layout
from tfexport.model_src.checkpoint.layouts import register_layout
from tfexport.model_src.checkpoint.layouts.native import save_checkpoint
from tfexport.model_src.checkpoint.read import load_checkpoint
from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.original_signatures import (
    AnnotatedTransformer,
    MultiheadAttention,
    RMSNormTransformer,
    TorchTransformer,
)
from tfexport.model_src.transformer import Transformer

__all__ = [
    "AnnotatedTransformer",
    "Checkpoint",
    "KeyTable",
    "Layout",
    "MultiheadAttention",
    "RMSNormTransformer",
    "TorchTransformer",
    "Transformer",
    "TransformerConfig",
    "build_transformer",
    "load_checkpoint",
    "register_layout",
    "save_checkpoint",
]
