"""The functions ``export`` and ``verify``, for all kinds of models and outputs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

from torch import nn

from tfexport.errors import ConfigError, Message, Option, join_problems, shown
from tfexport.export.artifacts.bundle import write_bundle
from tfexport.export.artifacts.checkpoint_source import read_checkpoint, verify_checkpoint
from tfexport.export.artifacts.keywords import ExportKeywords, VerifyKeywords, check_keywords
from tfexport.export.artifacts.module import export_module, verify_module
from tfexport.export.artifacts.onnx_file import verify_graph, write_graph
from tfexport.export.artifacts.option_rules import (
    BUNDLE,
    DECLARE_INPUTS,
    TORCH_FILES,
    Output,
    check_export,
    declared_twice,
    is_module,
)
from tfexport.export.artifacts.results import ExportResult
from tfexport.export.artifacts.torch_file import verify_torch_file, write_torch_file
from tfexport.export.artifacts.transformers_model import export_transformers, verify_transformers
from tfexport.export.artifacts.transformers_source import find_transformers
from tfexport.export.forms import file_forms
from tfexport.export.modules.wrappers import unwrapped
from tfexport.export.named_code import users_code
from tfexport.export.parity.plan import FULL, read_level
from tfexport.export.quantization.bundle import check_weights
from tfexport.export.report import ParityReport
from tfexport.model_src.checkpoint.files import CheckpointFiles
from tfexport.model_src.checkpoint.read_options import CheckpointLike
from tfexport.runtime.model.native_engine import pack_new
from tfexport.typing import PathLike, Progress, Unpack, silent


def export(
    model: CheckpointLike,
    output: PathLike,
    *,
    graph: str | None = None,
    quantize: str | None = None,
    verify: bool | str = True,
    force: bool = False,
    pack: bool = True,
    progress: Progress | None = None,
    **options: Unpack[ExportKeywords],
) -> ExportResult:
    """Export a model and compare the result with eager PyTorch.

    If anything fails, no file is left.

    Args:
        model: a path to a checkpoint; a loaded ``Checkpoint``; a ``Transformer``; another module
            whose state dict has a known layout, such as a model of transformers (if it holds an
            ``nn.Transformer``, config values such as ``num_heads`` are read from that); or, with
            ``inputs`` or ``example``, ``pad_id``, ``bos_id``, ``eos_id`` and ``max_length``, any
            module with ``forward(*inputs, target)``, in which encoder, cache and step are found
            (docs/training-script.md), or with ``encode`` and ``decode``, or ``encode``, ``start``
            and ``step``, as in docs/modules.md.
        output: the folder of a bundle; or a file: .ts or .pt for TorchScript, .pt2 for a
            ``torch.export`` program, or any name with ``graph``.
        graph: write a single file, whatever its suffix. "generate" is an ONNX graph that decodes
            greedily. "forward" is an ONNX graph that scores a complete target; it needs neither
            special ids nor embeddings. "torchscript" has the methods ``forward``, ``encode``,
            ``step`` and ``generate``, or those of the module. "torch.export" is a program of
            ``generate``.
        quantize: "int8", "int4" or "bf16" weights, for a bundle or "generate"; None for float32.
        verify: compare with eager PyTorch and fail if anything differs; "quick" compares less.
        force: replace an existing output.
        pack: next to a bundle with large files, write what lets it open fast on this machine: its
            weights packed for the native engine, if that is installed, and a note that the files
            were checked. The bundle does not need them; see docs/native.md.
        progress: called with the progress of each step; see ``tfexport.typing``.
        **options: how the model is read, what is written and what is compared; see
            ``ExportKeywords`` and ``VerifyKeywords``.

    Returns:
        The paths that were written, and the report of the comparison.

    Raises:
        ConfigError: options that contradict each other or the kind of output; all are listed.
        TfexportError: ``CheckpointError``, ``TokenizerError``, ``InputError``,
            ``OutputExistsError``, ``ExportError``, ``ParityError`` or ``QualityError``.
        TypeError: an unknown option.
    """
    check_keywords("export", options, ExportKeywords)
    if isinstance(model, nn.Module):
        model = unwrapped(model, called_by_user=options.get("forward") is not None)
    elif isinstance(model, str | os.PathLike):
        model = CheckpointFiles.of(model)
    if graph is not None and graph not in (known := (*file_forms(), *TORCH_FILES)):
        text = f": {shown(graph)} is not one of {', '.join(map(repr, known))}"
        raise ConfigError(Message(Option("graph"), text))
    if quantize is not None:
        check_weights(quantize, "quantize")
    level = read_level(verify)
    kind = check_export(output, graph, {**options, "quantize": quantize}, force)
    accept_loss = options.get("accept_loss", False)
    out = Output(Path(output), kind, quantize, level, accept_loss, force, progress or silent)
    with users_code(model, options.get("forward"), options.get("reference")):
        made = _export(model, out, options)
    if pack and kind == BUNDLE:
        pack_new(out.path)
    return made


def _export(model: CheckpointLike, out: Output, options: ExportKeywords) -> ExportResult:
    if is_module(options):
        return export_module(cast(nn.Module, model), out, options)  # checks the type of model
    values = find_transformers(model, options.get("layout"))
    if values is not None:
        return export_transformers(model, values, out, options)
    subject = read_checkpoint(model, out, options)
    if out.kind == BUNDLE:
        return write_bundle(subject, out)
    return (write_torch_file if out.kind in TORCH_FILES else write_graph)(subject, out)


def verify(
    artifact: PathLike,
    model: CheckpointLike,
    *,
    level: str = FULL,
    progress: Progress | None = None,
    **options: Unpack[VerifyKeywords],
) -> ParityReport:
    """Compare what was exported with the model that it was exported from.

    Config values that neither the checkpoint, its config files nor the caller define are taken
    from the artifact.

    Args:
        artifact: a bundle's folder, or a file.
        model: as for ``export``. A custom module needs ``inputs`` or ``example``, and is compared
            with its bundle.
        level: "full", or "quick" for one random batch in addition to real inputs.
        progress: called with the progress of each step; see ``tfexport.typing``.
        **options: how the model is read, and what is compared; see ``VerifyKeywords``.

    Returns:
        The report, which lists any differences; they raise no error.

    Raises:
        ConfigError: options that contradict each other; all are listed.
        TfexportError: the artifact or the model cannot be read, or they do not match.
        TypeError: an unknown option.
    """
    check_keywords("verify", options, VerifyKeywords)
    if isinstance(model, nn.Module):
        model = unwrapped(model, called_by_user=options.get("forward") is not None)
    elif isinstance(model, str | os.PathLike):
        model = CheckpointFiles.of(model)
    level, progress, path = read_level(level), progress or silent, Path(artifact)
    _check_verified(model, options)
    with users_code(model, options.get("forward"), options.get("reference")):
        return _verify(path, model, level, progress, options)


def _verify(
    path: Path, model: CheckpointLike, level: str, progress: Progress, options: VerifyKeywords
) -> ParityReport:
    if _calls_module(options):
        return verify_module(path, cast(nn.Module, model), level, options, progress)
    values = find_transformers(model, options.get("layout"))
    if values is not None:
        return verify_transformers(path, model, values, level, options, progress)
    if path.suffix == ".onnx":
        return verify_graph(path, model, level, options, progress)
    if path.is_file():
        return verify_torch_file(path, model, level, options, progress)
    return verify_checkpoint(path, model, level, options, progress)


def _calls_module(options: VerifyKeywords) -> bool:
    return any(options.get(name) is not None for name in DECLARE_INPUTS)


def _check_verified(model: CheckpointLike, options: VerifyKeywords) -> None:
    """Refuse options for checkpoints with a custom module, and the reverse."""
    problems: list[str | Message] = list(declared_twice(options))
    if not _calls_module(options):
        for name in ("examples", "steps"):
            if options.get(name):
                problems.append(Message(Option(name), " applies to custom modules."))
    else:
        if not isinstance(model, nn.Module):
            text = f": {shown(model)} is not a torch.nn.Module, and a checkpoint does not use "
            problems.append(Message(Option("model"), text, Option("inputs"), "."))
        for name in ("config", "settings", "layout", "rename", "reference"):
            if options.get(name):
                text = " applies to checkpoints, not to custom modules."
                problems.append(Message(Option(name), text))
    if problems:
        raise ConfigError(join_problems("verify", problems))
