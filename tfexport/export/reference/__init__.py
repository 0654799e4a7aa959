"""Eager PyTorch to compare with: the original mathematics, uncached and in float32.

For a stock checkpoint that is ``torch.nn.Transformer`` itself; for the other known layouts it is
their formulas, written out on the checkpoint's tensors under their own names. Nothing of
``model_src``'s modules takes part. The project's own format has no other original than its modules.
"""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from tfexport.errors import ExportError
from tfexport.export.reference.annotated import AnnotatedReference, is_annotated
from tfexport.export.reference.module import ModuleReference
from tfexport.export.reference.rebuilt import RebuiltReference, is_rebuilt
from tfexport.export.reference.rmsnorm import RMSNormReference, is_rmsnorm
from tfexport.export.reference.stock import StockReference, is_stock
from tfexport.model_src.checkpoint.read import Checkpoint
from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.transformer import Transformer


class Reference(Protocol):
    """An encoder-decoder without a cache."""

    title: str

    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(B, S) ids and mask, 1 = keep, to encoder states (B, S, E)."""

    def decode(
        self,
        hidden: Tensor,
        attention_mask: Tensor,
        decoder_input_ids: Tensor,
        last_only: bool = False,
    ) -> Tensor:
        """Encoder states (B, S, E), their mask, and a target prefix (B, T) to logits (B, T, V).

        With ``last_only`` the logits of the last position alone, (B, 1, V).
        """


_ORIGINALS: dict[
    str, tuple[Callable[[Checkpoint], Reference], Callable[[TransformerConfig], bool]]
] = {
    "nn-transformer": (StockReference, is_stock),
    "nn-transformer-rebuilt": (RebuiltReference, is_rebuilt),
    "annotated": (AnnotatedReference, is_annotated),
    "rmsnorm": (RMSNormReference, is_rmsnorm),
}


def build_reference(checkpoint: Checkpoint, model: Transformer) -> Reference:
    """The nearest thing to the original that a checkpoint allows.

    A config can ask for what the original cannot be; then, and for the project's own format, it is
    the modules themselves, and the report says so.

    Raises:
        ExportError: the original cannot be rebuilt from the checkpoint's tensors.
    """
    if checkpoint.layout not in _ORIGINALS:
        return ModuleReference(model)
    original, can_be = _ORIGINALS[checkpoint.layout]
    if not can_be(checkpoint.config):
        return ModuleReference(model)
    try:
        return original(checkpoint)
    except (RuntimeError, KeyError) as error:
        raise ExportError(
            f"{checkpoint.name}: {checkpoint.layout} cannot be rebuilt from it: {error}"
        ) from error


__all__ = ["ModuleReference", "Reference", "StockReference", "build_reference"]
