"""Eager PyTorch to compare with: the original mathematics, uncached and in float32.

For a stock checkpoint that is ``torch.nn.Transformer`` itself; for the other known layouts it is
their formulas, written out on the checkpoint's tensors under their own names. Nothing of
``model_src``'s modules takes part in them. A layout names the module of its original, or says why
the project's own modules are all that can be run.
"""

from importlib import import_module

from tfexport.errors import ExportError
from tfexport.export.reference.module import ModuleReference
from tfexport.export.reference.original import Original, Reference
from tfexport.export.reference.stock import StockReference
from tfexport.model_src.checkpoint.layout import Layout
from tfexport.model_src.checkpoint.layouts import LAYOUTS
from tfexport.model_src.checkpoint.read import Checkpoint
from tfexport.model_src.transformer import Transformer


def find_original(layout: Layout) -> Original | None:
    """The original of a layout; None if it has none."""
    if layout.reference is None:
        return None
    dotted = "." in layout.reference
    module = import_module(layout.reference if dotted else f"{__name__}.{layout.reference}")
    original: Original = module.ORIGINAL
    return original


def build_reference(checkpoint: Checkpoint, model: Transformer) -> Reference:
    """The nearest thing to the original that a checkpoint allows.

    A config can ask for what the original cannot be; then, and for layouts without an original, it
    is the modules themselves, and the reference says why.

    Raises:
        ExportError: the original cannot be rebuilt from the checkpoint's tensors.
    """
    layout = LAYOUTS.get(checkpoint.layout)
    if layout is None:
        return ModuleReference(model, f"no layout {checkpoint.layout!r} is registered")
    original = find_original(layout)
    if original is None:
        return ModuleReference(model, layout.no_reference)
    if not original.covers(checkpoint.config):
        return ModuleReference(
            model, f"that of the layout {layout.name!r} cannot have the settings of this config"
        )
    try:
        return original.build(checkpoint)
    except (RuntimeError, KeyError) as error:
        raise ExportError(
            f"{checkpoint.name}: {layout.name} cannot be rebuilt from it: {error}"
        ) from error


__all__ = ["ModuleReference", "Original", "Reference", "StockReference", "build_reference"]
