"""Eager PyTorch to compare with: the original mathematics, uncached and in float32.

For a stock checkpoint that is ``torch.nn.Transformer`` itself; for the other known layouts it is
their formulas, written out on the checkpoint's tensors under their own names. Nothing of
``model_src``'s modules takes part in them. A layout is in ``ORIGINALS``, or in ``NO_ORIGINAL`` with
the reason why the project's own modules are all that can be run.
"""

from collections.abc import Callable
from dataclasses import dataclass
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
    """An encoder-decoder without a cache.

    Attributes:
        title: for people.
        no_original: why this is not the original mathematics; None if it is.
    """

    title: str
    no_original: str | None

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


@dataclass(frozen=True)
class Original:
    """The original mathematics of a layout.

    Attributes:
        build: gives it the tensors of a checkpoint of the layout.
        covers: whether the original can have the settings of a config.
    """

    build: Callable[[Checkpoint], Reference]
    covers: Callable[[TransformerConfig], bool]


# Every layout is in one of the two.
ORIGINALS: dict[str, Original] = {
    "nn-transformer": Original(StockReference, is_stock),
    "nn-transformer-rebuilt": Original(RebuiltReference, is_rebuilt),
    "annotated": Original(AnnotatedReference, is_annotated),
    "rmsnorm": Original(RMSNormReference, is_rmsnorm),
}
NO_ORIGINAL: dict[str, str] = {
    "native": "the layout 'native' is that of tfexport's own modules",
}


def build_reference(checkpoint: Checkpoint, model: Transformer) -> Reference:
    """The nearest thing to the original that a checkpoint allows.

    A config can ask for what the original cannot be; then, and for layouts without an original, it
    is the modules themselves, and the reference says why.

    Raises:
        ExportError: the original cannot be rebuilt from the checkpoint's tensors.
    """
    layout = checkpoint.layout
    if layout not in ORIGINALS:
        unknown = f"tfexport knows none of the layout {layout!r}"
        return ModuleReference(model, NO_ORIGINAL.get(layout, unknown))
    original = ORIGINALS[layout]
    if not original.covers(checkpoint.config):
        return ModuleReference(
            model, f"that of the layout {layout!r} cannot have the settings of this config"
        )
    try:
        return original.build(checkpoint)
    except (RuntimeError, KeyError) as error:
        raise ExportError(
            f"{checkpoint.name}: {layout} cannot be rebuilt from it: {error}"
        ) from error


__all__ = [
    "NO_ORIGINAL",
    "ORIGINALS",
    "ModuleReference",
    "Original",
    "Reference",
    "StockReference",
    "build_reference",
]
