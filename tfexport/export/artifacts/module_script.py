"""Export of a user's own module to TorchScript, if its methods can be scripted."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from tfexport.atomic import check_new_file, new_file
from tfexport.bundle import SpecialIds
from tfexport.errors import ExportError
from tfexport.export.artifacts.info import TORCHSCRIPT, ArtifactInfo
from tfexport.export.artifacts.keywords import check_keywords
from tfexport.export.artifacts.module import ModuleResult
from tfexport.export.artifacts.module_source import ModuleKeywords, check_arguments, read_module
from tfexport.export.artifacts.torch_file import write_archive
from tfexport.export.modules.contract import in_eval
from tfexport.export.modules.inputs import Input
from tfexport.export.modules.source_locations import export_failure
from tfexport.export.parity.module import compare_module_script
from tfexport.export.quiet import quiet
from tfexport.export.rounding import suited_threads
from tfexport.typing import PathLike, Unpack, silent

_METHODS = ("encode", "start", "step", "decode")


def export_module_torchscript(
    model: nn.Module,
    output: PathLike,
    *,
    inputs: Sequence[Input],
    pad_id: int,
    bos_id: int,
    eos_id: int,
    max_length: int,
    **options: Unpack[ModuleKeywords],
) -> ModuleResult:
    """Script a module's own methods into a file that ``torch.jit.load`` reads without tfexport.

    The file has ``encode`` and ``decode``, or ``encode``, ``start`` and ``step``, as the module has
    them; the loop over steps is the caller's.

    Args:
        model: as for ``export_module``, like the other arguments.
        output: the file.
        inputs: of ``encode``.
        pad_id: see ``export_module``.
        bos_id: see ``export_module``.
        eos_id: see ``export_module``.
        max_length: see ``export_module``.
        **options: of ``ModuleKeywords``: ``examples``, ``verify``, ``force`` and ``progress``.

    Raises:
        ExportError: torch cannot script a method; the message has its reason and the line.
        TfexportError: as ``export_module``.
    """
    check_keywords("export_module_torchscript", options, ModuleKeywords)
    check_new_file(output, options.get("force", False))
    ids = SpecialIds(pad_id, bos_id, eos_id, options.get("unk_id"))
    check_arguments(model, ids, max_length)
    with in_eval(model), suited_threads(model):
        return _export(model, Path(output), inputs, ids, max_length, options)


def _export(
    model: nn.Module,
    output: Path,
    inputs: Sequence[Input],
    ids: SpecialIds,
    max_length: int,
    options: ModuleKeywords,
) -> ModuleResult:
    """``export_module_torchscript`` of a module in eval mode."""
    force, tell = options.get("force", False), options.get("progress") or silent
    contents = read_module(model, inputs, ids, max_length, options, tell)
    found = contents.build.found
    methods = [name for name in _METHODS if callable(getattr(model, name, None))]
    tell(f"exporting to {TORCHSCRIPT}", 0, 1)
    try:
        with quiet(), torch.no_grad(), _marked(type(model), methods):
            scripted = torch.jit.script(copy.deepcopy(model))
            made = torch.jit.freeze(scripted, preserved_attrs=methods)
    except Exception as error:
        reason = export_failure(model, methods, error)
        raise ExportError(f"{output}: cannot be scripted: {reason}") from error
    config = {**asdict(ids), "max_length": max_length, "module": found.io.to_dict()}
    with new_file(output, force) as path:
        report = None
        info = ArtifactInfo(TORCHSCRIPT, config, written_with={"torch": torch.__version__})
        write_archive(made, path, info)
        if contents.level:
            with quiet():
                loaded = torch.jit.load(path)
            report = compare_module_script(contents.eager, loaded, contents.examples, tell)
            report.require(str(output))
            summary = report.summary()
            info = ArtifactInfo(TORCHSCRIPT, config, summary, written_with=info.written_with)
            write_archive(made, path, info)
    return ModuleResult(output, report)


@contextlib.contextmanager
def _marked(kind: type[nn.Module], methods: Sequence[str]) -> Iterator[None]:
    """Mark the methods of a class for scripting, inside the block."""
    own = [getattr(kind, name) for name in methods]
    unmarked = [method for method in own if not hasattr(method, "_torchscript_modifier")]
    for method in unmarked:
        torch.jit.export(method)
    try:
        yield
    finally:
        for method in unmarked:
            vars(method).pop("_torchscript_modifier", None)
