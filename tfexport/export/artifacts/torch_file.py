"""Export of a checkpoint or module to a file that torch loads without tfexport.

That is TorchScript, or a program of ``torch.export``, its successor.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from tfexport.atomic import check_new_file, new_file
from tfexport.errors import BundleError, ExportError
from tfexport.export import torch_names
from tfexport.export.artifacts.checkpoint_source import (
    check_greedy_file,
    read_for_decoding,
    start_as_files_say,
)
from tfexport.export.artifacts.info import (
    METADATA,
    TORCH_EXPORT,
    TORCHSCRIPT,
    ArtifactInfo,
    describe_export,
    read_torch_info,
)
from tfexport.export.artifacts.keywords import (
    ReadKeywords,
    VerifyKeywords,
    check_keywords,
    read_options,
    refuse_expected,
)
from tfexport.export.artifacts.results import ExportResult
from tfexport.export.artifacts.torch_programs import GreedyModule, GreedyProgram, TransformerModule
from tfexport.export.graphs.greedy_rules import GreedyRules
from tfexport.export.parity import ParityReport, compare_program, compare_torchscript
from tfexport.export.parity.plan import FULL, Plan, plan_file, read_level
from tfexport.export.quiet import quiet
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.checkpoint.read_options import CheckpointLike, ReadOptions
from tfexport.model_src.config import BUNDLE_IDS
from tfexport.model_src.transformer import Transformer
from tfexport.typing import PathLike, Progress, Unpack, silent

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


def export_torchscript(
    checkpoint: CheckpointLike,
    output: PathLike,
    *,
    torch_export: bool = False,
    verify: bool | str = True,
    force: bool = False,
    progress: Progress | None = None,
    **options: Unpack[ReadKeywords],
) -> ExportResult:
    """Export one file that ``torch.jit.load`` or ``torch.export.load`` reads without tfexport.

    Args:
        checkpoint: a path, a module or a ``Checkpoint``, as for ``export_bundle``. A model
            without embeddings gets no ``generate``.
        output: the file; .ts for TorchScript and .pt2 for a program are usual.
        torch_export: write the ``torch.export`` program of ``generate`` instead of TorchScript
            with ``forward``, ``encode``, ``step`` and ``generate``.
        verify: compare with eager PyTorch, and fail if they differ; "quick" for less.
        force: replace a file that exists.
        progress: called at every step; see ``tfexport.typing``.
        **options: how the checkpoint is read; see ``ReadKeywords``.

    Raises:
        TfexportError: as ``export_bundle``.
        TypeError: an unknown option.
    """
    check_keywords("export_torchscript", options, ReadKeywords)
    tell, level = progress or silent, read_level(verify)
    check_new_file(output, force)
    tell("reading the checkpoint", 0, 1)
    kind = TORCH_EXPORT if torch_export else TORCHSCRIPT
    found = _read(checkpoint, kind, read_options(options, bool(level)))
    check_greedy_file(found)
    model = found.build()
    tell(f"exporting to {kind}", 0, 1)
    try:
        with quiet(), torch.no_grad():
            rules = GreedyRules.of(found.read_generation().defaults)
            made = _program(model, rules) if torch_export else _script(model, rules)
    except Exception as error:
        raise ExportError(f"{output}: {kind} failed: {error}") from error
    with new_file(output, force) as path:
        report = None
        if level:
            _save(made, path, kind, found, None)
            report = _compare(path, kind, found, Plan(level, tell=tell))
            report.require(str(output))
        _save(made, path, kind, found, report)
    return ExportResult(Path(output), found, report)


def verify_torchscript(
    path: PathLike,
    checkpoint: CheckpointLike,
    *,
    progress: Progress | None = None,
    **options: Unpack[VerifyKeywords],
) -> ParityReport:
    """Compare a file of ``export_torchscript`` with the checkpoint it was exported from.

    Args:
        path: the file.
        checkpoint: a path, a module or a ``Checkpoint``, as for ``export_bundle``.
        progress: called at every step; see ``tfexport.typing``.
        **options: how the checkpoint is read; see ``ReadKeywords``.

    Raises:
        TfexportError: the file or the checkpoint is unusable. A difference is not raised: it is in
            the report.
    """
    check_keywords("verify_torchscript", options, VerifyKeywords)
    refuse_expected(options, Path(path))
    info = read_torch_info(path)
    found = _read(checkpoint, info.kind, read_options(options), info.config)
    info.require_same_model(Path(path), found.config)
    level, samples = read_level(options.get("level", FULL)), options.get("samples")
    plan = plan_file(Path(path).name, found.config, level, samples, progress or silent)
    return _compare(Path(path), info.kind, found, plan)


def _read(
    checkpoint: CheckpointLike,
    kind: str,
    read: ReadOptions,
    defaults: Mapping[str, Any] | None = None,
) -> Checkpoint:
    if kind == TORCH_EXPORT:
        return read_for_decoding(checkpoint, read, defaults)
    found = read.read(checkpoint, BUNDLE_IDS, defaults)
    return start_as_files_say(found) if found.config.has_embeddings else found


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


def _compare(path: Path, kind: str, checkpoint: Checkpoint, plan: Plan) -> ParityReport:
    """Load the file as its users will, and compare."""
    with quiet():
        try:
            if kind == TORCH_EXPORT:
                return compare_program(torch.export.load(path).module(), checkpoint, plan)
            return compare_torchscript(torch.jit.load(path), checkpoint, plan)
        except (RuntimeError, AssertionError, IndexError, torch.jit.Error) as error:
            raise BundleError(f"{path}: torch cannot run it: {error}") from error
