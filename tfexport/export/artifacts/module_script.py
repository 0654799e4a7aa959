"""Writing a user's own module as TorchScript, if its methods can be scripted."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import torch
from torch import nn

from tfexport.atomic import new_file
from tfexport.errors import ExportError
from tfexport.export.artifacts.info import ArtifactInfo
from tfexport.export.artifacts.option_rules import TORCHSCRIPT, Output
from tfexport.export.artifacts.results import ExportResult
from tfexport.export.artifacts.torch_file import write_archive
from tfexport.export.incremental.scripted import METHODS as STEP_METHODS
from tfexport.export.incremental.scripted import script_steps
from tfexport.export.module_subject import ModuleSubject
from tfexport.export.modules.contract import ByForward
from tfexport.export.modules.source_locations import export_failure
from tfexport.export.parity.module import compare_module_script
from tfexport.export.quiet import quiet

_METHODS = ("encode", "start", "step", "decode")


def write_script(subject: ModuleSubject, output: Output) -> ExportResult:
    """Script a module's methods into a file that ``torch.jit.load`` reads; see ``export``.

    The file has ``encode`` and ``decode``, or ``encode``, ``start`` and ``step``, as the module has
    them, or as they were found in its forward; the loop over steps is the caller's.
    """
    subject.refuse_limits(output.path)
    progress, probe, model = output.progress, subject.probe, subject.probe.module.code
    methods = [name for name in _METHODS if callable(getattr(model, name, None))]
    progress(f"exporting to {TORCHSCRIPT}", 0, 1)
    try:
        with quiet(), torch.no_grad():
            if isinstance(probe.module.model, ByForward):
                methods = list(STEP_METHODS)
                scripted = script_steps(probe.module.model)
            else:
                with _marked(type(model), methods):
                    scripted = torch.jit.script(copy.deepcopy(model))
            made = torch.jit.freeze(scripted, preserved_attrs=methods)
    except ExportError as error:
        raise ExportError(
            f"{output.path}: {error}. Write a bundle, or "
            'graph="generate", which needs no TorchScript.'
        ) from error
    except Exception as error:
        reason = export_failure(model, methods, error)
        raise ExportError(f"{output.path}: cannot be scripted: {reason}") from error
    config = {
        **asdict(subject.special_ids),
        "max_length": subject.max_length,
        "module": probe.io.to_dict(),
    }
    with new_file(output.path, output.force) as path:
        report = None
        info = ArtifactInfo(TORCHSCRIPT, config, written_with={"torch": torch.__version__})
        write_archive(made, path, info)
        if subject.level:
            with quiet():
                loaded = torch.jit.load(path)
            report = compare_module_script(subject.eager, loaded, subject.plan_file(progress))
            report.require(str(output.path))
            summary = report.summary()
            info = ArtifactInfo(TORCHSCRIPT, config, summary, written_with=info.written_with)
            write_archive(made, path, info)
    return ExportResult(output.path, TORCHSCRIPT, report, notes=subject.notes)


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
