"""Eager PyTorch to compare with: the user's own code or, without any, the original mathematics.

The user's own code is a function that they pass, or the ``forward`` of a live module whose
signature is known. The originals are uncached and in float32. For a stock checkpoint that is
``torch.nn.Transformer`` itself; for the other known layouts it is their formulas, computed on the
checkpoint's tensors under their own names. None of ``model_src``'s modules is used. A layout names
its original, or has a reason for running the project's own modules instead. Of a Hugging Face
folder the class of transformers is the original, and its formulas stand in where that cannot run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from torch import nn

from tfexport.errors import ConfigError, ExportError
from tfexport.export.reference.library_class import ClassReference, find_class_reference
from tfexport.export.reference.live_module import LiveModule, PlainModule
from tfexport.export.reference.nn_transformer import StockReference
from tfexport.export.reference.original import ModuleReference, Original, Reference
from tfexport.export.reference.own_code import OwnCode, OwnCodeReference
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.checkpoint.layout import Layout
from tfexport.model_src.checkpoint.layouts import LAYOUTS
from tfexport.model_src.transformer import Transformer


def find_original(layout: Layout) -> Original | None:
    """The original of a layout; None if it has none."""
    if layout.reference is None:
        return None
    name = layout.reference if ":" in layout.reference else f"{layout.reference}:ORIGINAL"
    original: Original = resolve_name(name)
    return original


@dataclass(frozen=True)
class ChosenReference:
    """The eager code that a checkpoint is compared with.

    Attributes:
        reference: the eager model to run.
        not_run: why it is not the user's own code, as a phrase, or ""; None if it is.
    """

    reference: Reference
    not_run: str | None = None


def find_reference(checkpoint: Checkpoint, model: Transformer) -> ChosenReference:
    """The user's own code, if there is any that can be run, else what ``build_reference`` builds.

    Of a Hugging Face folder that is the class of transformers, where the library is installed.

    Args:
        checkpoint: the checkpoint, with the user's reference or the module that it was read from.
        model: the project's modules with the checkpoint's weights.

    Raises:
        ConfigError: the user's code does not return logits.
        ExportError: see ``build_reference``.
    """
    given, module = checkpoint.reference, checkpoint.module
    if given is not None:
        return ChosenReference(OwnCodeReference(_handed_in(given, checkpoint), model))
    if type(module) is Transformer:  # whose forward is that of ``model``
        return ChosenReference(build_reference(checkpoint, model))
    not_run = ""
    if module is not None:
        try:
            live = LiveModule(module, checkpoint)
            return ChosenReference(OwnCodeReference(OwnCode(live.title, live), model))
        except ConfigError as error:
            not_run = str(error).rstrip(".")
    judge = find_class_reference(checkpoint)
    if isinstance(judge, ClassReference):
        return ChosenReference(judge)
    return ChosenReference(build_reference(checkpoint, model), not_run or judge)


def _handed_in(given: Callable[..., Any], checkpoint: Checkpoint) -> OwnCode:
    if isinstance(given, OwnCode):
        return given
    if not isinstance(given, nn.Module):
        name = getattr(given, "__qualname__", type(given).__name__).rpartition("<locals>.")[2]
        return OwnCode(f"your {name}", given, "reference")
    try:
        live = LiveModule(given, checkpoint)
        return OwnCode(live.title, live, "reference")
    except ConfigError:  # then it takes ids alone
        return OwnCode(f"your {type(given).__name__}.forward", PlainModule(given), "reference")


def build_reference(checkpoint: Checkpoint, model: Transformer) -> Reference:
    """The original of a checkpoint's layout, or else the project's own modules.

    The modules are taken for layouts without an original, and for a config that the original cannot
    have; the reference has the reason.

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


__all__ = [
    "ChosenReference",
    "ModuleReference",
    "Original",
    "OwnCodeReference",
    "Reference",
    "StockReference",
    "build_reference",
    "find_reference",
]
