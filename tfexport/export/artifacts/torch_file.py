"""Checkpoint or live module to a file that torch alone loads: sequencing only.

TorchScript, or the program of ``torch.export``, its successor. What a program needs to know of
such a file travels inside it, in the extra file ``METADATA``.
"""

import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from tfexport import __version__
from tfexport.atomic import check_new_file, new_file
from tfexport.errors import BundleError, ExportError
from tfexport.export.artifacts.checkpoint_source import Source, read_for_decoding, read_source
from tfexport.export.artifacts.torch_programs import GreedyModule, GreedyProgram, TransformerModule
from tfexport.export.parity import ParityReport, Progress, compare_program, compare_torchscript
from tfexport.export.quiet import quiet
from tfexport.model_src.checkpoint.read import BUNDLE_IDS, Checkpoint
from tfexport.model_src.transformer import Transformer

METADATA = "tfexport.json"
_MOST_METADATA = 2**22  # bytes
TORCHSCRIPT, TORCH_EXPORT = "torchscript", "torch.export"


@dataclass(frozen=True)
class TorchResult:
    """What an export made.

    Attributes:
        path: the file.
        checkpoint: as it was understood.
        report: of the comparison with eager PyTorch; None if it was not asked for.
    """

    path: Path
    checkpoint: Checkpoint
    report: ParityReport | None


def export_torchscript(
    source: Source,
    output: str | os.PathLike[str],
    *,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    settings: Iterable[str] = (),
    layout: str | None = None,
    torch_export: bool = False,
    verify: bool = True,
    force: bool = False,
    progress: Progress | None = None,
) -> TorchResult:
    """Export one file that ``torch.jit.load`` or ``torch.export.load`` reads without tfexport.

    Args:
        source: a checkpoint's path or a live module, as for ``export_bundle``. A model without
            embeddings gets no ``generate``.
        output: the file; .ts for TorchScript and .pt2 for a program are usual.
        config: values that the weights do not say.
        settings: ``key=value`` words that win over ``config``.
        layout: force a checkpoint layout.
        torch_export: write the ``torch.export`` program of ``generate`` instead of TorchScript
            with ``forward``, ``encode``, ``step`` and ``generate``.
        verify: compare with eager PyTorch, and fail if they differ.
        force: replace a file that exists.
        progress: told what is being done, and how far it is.

    Raises:
        TfexportError: as ``export_bundle``.
    """
    tell = progress or (lambda step, done, total: None)
    check_new_file(output, force)
    tell("reading the checkpoint", 0, 1)
    checkpoint = _read(source, config, settings, layout, torch_export)
    model = checkpoint.build()
    kind = TORCH_EXPORT if torch_export else TORCHSCRIPT
    tell(f"exporting to {kind}", 0, 1)
    try:
        with quiet(), torch.no_grad():
            made = _program(model) if torch_export else _script(model)
    except Exception as error:
        raise ExportError(f"{output}: {kind} failed: {error}") from error
    with new_file(output, force) as path:
        report = None
        if verify:
            _save(made, path, checkpoint, None)
            report = _compare(path, checkpoint, tell)
            report.require(str(output))
        _save(made, path, checkpoint, report)
    return TorchResult(Path(output), checkpoint, report)


def verify_torchscript(
    path: str | os.PathLike[str],
    source: Source,
    *,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    settings: Iterable[str] = (),
    layout: str | None = None,
    progress: Progress | None = None,
) -> ParityReport:
    """Compare a file of ``export_torchscript`` with the checkpoint that it should say the same as.

    Raises:
        TfexportError: the file or the checkpoint is unusable. A difference is not raised: it is in
            the report.
    """
    facts = read_torch_facts(path)
    torch_export = facts["kind"] == TORCH_EXPORT
    checkpoint = _read(source, config, settings, layout, torch_export, facts["config"])
    return _compare(Path(path), checkpoint, progress)


def read_torch_facts(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a file of ``export_torchscript`` says about itself; no code of the file is run.

    Raises:
        BundleError: it is no such file.
    """
    path = Path(path)
    if not path.is_file():
        raise BundleError(f"{path}: no such file.")
    try:
        with zipfile.ZipFile(path) as archive:
            (name,) = [n for n in archive.namelist() if n.endswith(f"extra/{METADATA}")]
            if archive.getinfo(name).file_size > _MOST_METADATA:
                raise ValueError("more than this writes")
            metadata = json.loads(archive.read(name))
        if metadata["kind"] in (TORCHSCRIPT, TORCH_EXPORT) and isinstance(metadata["config"], dict):
            return dict(metadata)
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, LookupError, TypeError):
        pass
    except (RuntimeError, RecursionError):  # encrypted, deflated in an unknown way, nested too deep
        pass
    raise BundleError(f"{path}: not a file that 'tfexport torchscript' wrote, or damaged.")


def _read(
    source: Source,
    config: str | os.PathLike[str] | Mapping[str, Any] | None,
    settings: Iterable[str],
    layout: str | None,
    torch_export: bool,
    defaults: Mapping[str, Any] | None = None,
) -> Checkpoint:
    if torch_export:
        return read_for_decoding(source, config, settings, layout, defaults)
    return read_source(source, config, settings, layout, BUNDLE_IDS, defaults)


def _script(model: Transformer) -> torch.jit.ScriptModule:
    decodes = model.config.has_embeddings
    module = (GreedyModule if decodes else TransformerModule)(model).eval()
    kept = ["encode", "step", "max_positions"]  # freezing drops everything else but forward
    if decodes:
        kept += ["generate", "bos_id", "eos_id", "pad_id"]
    frozen: torch.jit.ScriptModule = torch.jit.freeze(
        torch.jit.script(module), preserved_attrs=kept
    )
    return frozen


def _program(model: Transformer) -> ExportedProgram:
    _share_buffers(model)
    _drop_dropout(model)
    ids = torch.ones((2, 5), dtype=torch.int64)
    axes = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}
    program = torch.export.export(
        GreedyProgram(model).eval(),
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
    """Leave out what does nothing in a trained model; the program would name each of them."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Dropout):
                setattr(module, name, nn.Identity())


def _save(
    made: torch.jit.ScriptModule | ExportedProgram,
    path: Path,
    checkpoint: Checkpoint,
    report: ParityReport | None,
) -> None:
    metadata = {
        "kind": TORCH_EXPORT if isinstance(made, ExportedProgram) else TORCHSCRIPT,
        "tfexport_version": __version__,
        "written_with": {"torch": torch.__version__.partition("+")[0]},
        "config": checkpoint.config.to_dict(),
        "parity": report.summary() if report else None,
    }
    extra = {METADATA: json.dumps(metadata)}
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
    """A TorchScript archive without its debug records, which hold paths of this machine."""
    script.seek(0)
    reader = torch._C.PyTorchFileReader(script)
    copy = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(copy)
    own = {"version", "byteorder", ".data/serialization_id"}  # the writer adds these itself
    for name in reader.get_all_records():
        if name not in own and not name.endswith(".debug_pkl"):
            content = reader.get_record(name)
            writer.write_record(name, content, len(content))
    writer.write_end_of_file()
    return copy


def _compare(path: Path, checkpoint: Checkpoint, progress: Progress | None) -> ParityReport:
    """Load the file as its users will, and compare."""
    kind = read_torch_facts(path)["kind"]
    with quiet():
        try:
            if kind == TORCH_EXPORT:
                return compare_program(torch.export.load(path).module(), checkpoint, progress)
            return compare_torchscript(torch.jit.load(path), checkpoint, progress)
        except (RuntimeError, AssertionError, IndexError, torch.jit.Error) as error:
            raise BundleError(f"{path}: torch cannot run it: {error}") from error
