"""Writing a checkpoint as a file that torch loads without tfexport, and its verification.

That is TorchScript, or a program of ``torch.export``, its successor.
"""

from __future__ import annotations

import io
from pathlib import Path

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from tfexport.atomic import new_file
from tfexport.errors import BundleError, ExportError
from tfexport.export import torch_names
from tfexport.export.artifacts.checkpoint_source import read_for
from tfexport.export.artifacts.info import (
    METADATA,
    ArtifactInfo,
    describe_export,
    read_torch_info,
)
from tfexport.export.artifacts.keywords import (
    VerifyKeywords,
    read_options,
    refuse_expected,
)
from tfexport.export.artifacts.option_rules import TORCH_EXPORT, Output
from tfexport.export.artifacts.results import ExportResult
from tfexport.export.artifacts.torch_programs import GreedyModule, GreedyProgram, TransformerModule
from tfexport.export.checkpoint_subject import CheckpointSubject
from tfexport.export.graphs.step_model import GreedyRules
from tfexport.export.parity.checkpoint import EagerCheckpoint
from tfexport.export.parity.forward import compare_program, compare_torchscript
from tfexport.export.parity.plan import ComparisonPlan, plan_file
from tfexport.export.quiet import quiet
from tfexport.export.report import ParityReport
from tfexport.model_src.build import copy_sharing
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.checkpoint.read_options import CheckpointLike
from tfexport.model_src.transformer import Transformer
from tfexport.typing import Progress

# The archive of a torch file, written without debug records of local paths.


def write_archive(
    made: torch.jit.ScriptModule | ExportedProgram, path: Path, info: ArtifactInfo
) -> None:
    """Write a scripted module or a program, with its metadata as an extra file."""
    extra = {METADATA: info.to_json()}
    # In memory first: where a disk is full, torch's writer ends the process.
    buffer = io.BytesIO()
    with quiet():
        if isinstance(made, ExportedProgram):
            torch.export.save(made, buffer, extra_files=extra)
        else:
            torch.jit.save(made, buffer, _extra_files=extra)
            buffer = _without_sources(buffer)
    path.write_bytes(buffer.getbuffer())


def _without_sources(script: io.BytesIO) -> io.BytesIO:
    """Copy a TorchScript archive without its debug records, which contain local paths."""
    script.seek(0)
    reader = torch_names.need(torch_names.READ_ARCHIVE, "TorchScript")(script)
    copy = io.BytesIO()
    writer = torch_names.need(torch_names.WRITE_ARCHIVE, "TorchScript")(copy)
    own = {"version", "byteorder", ".data/serialization_id"}  # the writer adds these itself
    for name in reader.get_all_records():
        if name not in own and not name.endswith(".debug_pkl"):
            content = reader.get_record(name)
            writer.write_record(name, content, len(content))
    writer.write_end_of_file()
    return copy


def write_torch_file(subject: CheckpointSubject, output: Output) -> ExportResult:
    """Write one file that ``torch.jit.load`` or ``torch.export.load`` reads; see ``export``."""
    level, kind, progress, found = output.level, output.kind, output.progress, subject.checkpoint
    model = found.model()
    progress(f"exporting to {kind}", 0, 1)
    try:
        with quiet(), torch.no_grad():
            export = _program if kind == TORCH_EXPORT else _script
            made = export(model, subject.rules)
    except Exception as error:
        raise ExportError(f"{output.path}: {kind} failed: {error}") from error
    with new_file(output.path, output.force) as path:
        report = None
        if level:
            _save(made, path, kind, found, None)
            report = _compare(path, kind, found, ComparisonPlan(level, progress=progress))
            report.require(str(output.path))
        _save(made, path, kind, found, report)
    return ExportResult(output.path, kind, report, layout=subject.layout, notes=subject.notes)


def verify_torch_file(
    path: Path, checkpoint: CheckpointLike, level: str, options: VerifyKeywords, progress: Progress
) -> ParityReport:
    """Compare a torch file with the checkpoint that it was exported from; see ``verify``."""
    refuse_expected(options, path)
    info = read_torch_info(path)
    found = read_for(info.kind, checkpoint, read_options(options), info.config)
    info.require_same_model(path, found.config)
    plan = plan_file(path.name, found.config, level, options.get("samples"), progress)
    return info.note_own_code(_compare(path, info.kind, found, plan))


def _script(model: Transformer, rules: GreedyRules) -> torch.jit.ScriptModule:
    decodes = model.config.has_embeddings
    module = GreedyModule(model, rules) if decodes else TransformerModule(model)
    module.eval()
    kept = ["encode", "step", "max_positions"]  # freezing drops everything else but forward
    if decodes:
        kept += ["generate", "bos_id", "eos_id", "pad_id"]
    frozen: torch.jit.ScriptModule = torch.jit.freeze(
        torch.jit.script(module), preserved_attrs=kept
    )
    return frozen


def _program(model: Transformer, rules: GreedyRules) -> ExportedProgram:
    model = copy_sharing(model)
    _share_buffers(model)
    _drop_dropout(model)
    ids = torch.ones((2, 5), dtype=torch.int64)
    axes = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}
    program = torch.export.export(
        GreedyProgram(model, rules).eval(),
        (ids, torch.ones_like(ids), 3),
        dynamic_shapes=(axes, axes, Dim.DYNAMIC),
    )
    # Where in the source each node came from: ten times the graph, and paths of this machine.
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                for key in ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn"):
                    node.meta.pop(key, None)
    return program


def _share_buffers(model: Transformer) -> None:
    """Let equal position tables be one tensor, so that they are stored once."""
    seen: list[torch.Tensor] = []
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            same = next((other for other in seen if torch.equal(other, buffer)), None)
            if same is None:
                seen.append(buffer)
            else:
                setattr(module, name, same)


def _drop_dropout(model: Transformer) -> None:
    """Leave out dropout, which does nothing in a trained model but would stand in the program."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Dropout):
                setattr(module, name, nn.Identity())


def _save(
    made: torch.jit.ScriptModule | ExportedProgram,
    path: Path,
    kind: str,
    checkpoint: Checkpoint,
    report: ParityReport | None,
) -> None:
    written_with = {"torch": torch.__version__.partition("+")[0]}
    info = describe_export(kind, checkpoint.config, report, written_with=written_with)
    write_archive(made, path, info)


def _compare(path: Path, kind: str, checkpoint: Checkpoint, plan: ComparisonPlan) -> ParityReport:
    """Load the file as its users will, and compare."""
    with quiet():
        try:
            eager = EagerCheckpoint(checkpoint)
            if kind == TORCH_EXPORT:
                return compare_program(torch.export.load(path).module(), eager, plan)
            return compare_torchscript(torch.jit.load(path), eager, plan)
        except (RuntimeError, AssertionError, IndexError, torch.jit.Error) as error:
            raise BundleError(f"{path}: torch cannot run it: {error}") from error
