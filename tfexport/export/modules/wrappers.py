"""What people wrap round a module: the module inside is exported, or the way to it is named."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from tfexport.errors import ExportError
from tfexport.export.modules.source_locations import where

_HOLDERS = (nn.DataParallel, nn.parallel.DistributedDataParallel, AveragedModel)
_COMPILED = "_orig_mod"  # the child of what torch.compile returns
_INT8_OF_TORCH = ("torch.ao.nn.quantized", "torch.nn.quantized")
_SCRIPTED = (
    "TorchScript, of which torch.export reads no line; export the module without torch.jit.script "
    "and torch.jit.trace, or set PYTORCH_JIT=0 in the environment before Python starts, which "
    "leaves ScriptModules and scripted functions as Python code"
)
_QUANTIZED = (
    "weights that torch quantised to int8, which ONNX has no operators for; export the float "
    "module, and quantise it with quantize='int8'"
)


def unwrapped(model: nn.Module, called_by_user: bool = False) -> nn.Module:
    """The module inside of ``torch.compile``, ``nn.DataParallel`` and the like.

    Args:
        model: as it is handed over.
        called_by_user: a function of the user's calls it, which may name ``model.module``.
    """
    while True:
        kind = type(model)
        if kind in _HOLDERS and not called_by_user:
            model = model.get_submodule("module")
        elif kind.__module__.startswith("torch.") and model._modules.get(_COMPILED) is not None:
            model = model.get_submodule(_COMPILED)
        else:
            return model


def refuse_closed_parts(model: nn.Module) -> None:
    """Refuse parts that are no longer Python code over tensors of floats.

    Raises:
        ExportError: naming the first part of each kind, and the line of the module that holds it.
    """
    problems: dict[str, str] = {}
    for path, part in model.named_modules():
        if _is_scripted(part):
            kind = _SCRIPTED
        elif type(part).__module__.startswith(_INT8_OF_TORCH):
            kind = _QUANTIZED
        else:
            continue
        name = f"its part {path} ({type(part).__name__})" if path else "it"
        problems.setdefault(kind, f"{where(_holder(model, path), 'forward')}: {name} is {kind}")
    if problems:
        raise ExportError("; ".join(problems.values()) + ".")


def _holder(model: nn.Module, path: str) -> nn.Module:
    """The innermost module around a part that the user wrote."""
    holders = [model]
    for name in path.split(".")[:-1]:
        holders.append(holders[-1].get_submodule(name))
    return next((each for each in reversed(holders) if _is_users(each)), model)


def _is_users(part: nn.Module) -> bool:
    """Whether the user wrote a part, so that it has a line of the user's."""
    return not _is_scripted(part) and not type(part).__module__.startswith("torch.")


def _is_scripted(part: nn.Module) -> bool:
    """Whether a part is TorchScript; with PYTORCH_JIT=0 no ScriptModule is."""
    return isinstance(part, torch.jit.ScriptModule) and hasattr(part, "_c")
