"""``export`` and ``verify``: what is written or compared follows from their arguments."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from torch import nn

from tfexport.errors import ConfigError, Message, Option, join_problems, shown
from tfexport.export.artifacts.bundle import export_bundle, verify_bundle
from tfexport.export.artifacts.keywords import ExportKeywords, VerifyKeywords, check_keywords
from tfexport.export.artifacts.module import export_module, verify_module
from tfexport.export.artifacts.module_script import script_module
from tfexport.export.artifacts.onnx_file import export_graph, verify_graph
from tfexport.export.artifacts.option_rules import (
    BUNDLE,
    LANGUAGES,
    TORCH_FILES,
    TORCHSCRIPT,
    Output,
    check_export,
    is_module,
)
from tfexport.export.artifacts.quantized import export_quantized_bundle, export_quantized_graph
from tfexport.export.artifacts.results import ExportResult
from tfexport.export.artifacts.torch_file import export_torch_file, verify_torch_file
from tfexport.export.graph_forms import file_forms
from tfexport.export.parity.plan import FULL, read_level
from tfexport.export.quantization.bundle import check_weights
from tfexport.export.report import ParityReport
from tfexport.model_src.checkpoint.read_options import CheckpointLike
from tfexport.typing import PathLike, Progress, Unpack, silent


def export(
    model: CheckpointLike,
    output: PathLike,
    *,
    graph: str | None = None,
    quantize: str | None = None,
    verify: bool | str = True,
    force: bool = False,
    progress: Progress | None = None,
    **options: Unpack[ExportKeywords],
) -> ExportResult:
    """Export a model, and compare what was written with eager PyTorch.

    If anything fails, no file is left.

    Args:
        model: a path to a checkpoint; a loaded ``Checkpoint``; a ``Transformer``; another module
            whose state dict has a known layout, such as a model of transformers (if it holds an
            ``nn.Transformer``, config values such as ``num_heads`` are read from that); or, with
            ``inputs``, ``pad_id``, ``bos_id``, ``eos_id`` and ``max_length``, any module with
            ``forward(*inputs, target)``, in which encoder, cache and step are found
            (docs/training-script.md), or with ``encode`` and ``decode``, or ``encode``, ``start``
            and ``step``, as in docs/modules.md.
        output: the folder of a bundle; or a file: .ts or .pt for TorchScript, .pt2 for a program
            of ``torch.export``, and the file of ``graph``.
        graph: write one file, whatever its suffix. "generate" is a graph of ONNX that decodes
            greedily, "forward" one that scores a complete target, and needs neither special ids
            nor embeddings. "torchscript" has ``forward``, ``encode``, ``step`` and ``generate``,
            or a module's own methods, and "torch.export" is the program of ``generate``.
        quantize: "int8" or "int4" weights, for a bundle or "generate"; None for float32.
        verify: compare with eager PyTorch, and fail if anything differs; "quick" for less.
        force: replace what exists.
        progress: called at every step; see ``tfexport.typing``.
        **options: how the model is read, what is written and what is compared; see
            ``ExportKeywords`` and ``VerifyKeywords``.

    Returns:
        What was written, with the report of the comparison.

    Raises:
        ConfigError: options that do not go together, or with what is written; all are named.
        TfexportError: ``CheckpointError``, ``TokenizerError``, ``InputError``,
            ``OutputExistsError``, ``ExportError``, ``ParityError`` or ``QualityError``.
        TypeError: an unknown option.
    """
    check_keywords("export", options, ExportKeywords)
    if graph is not None and graph not in (known := (*file_forms(), *TORCH_FILES)):
        text = f": {shown(graph)} is not one of {', '.join(map(repr, known))}"
        raise ConfigError(Message(Option("graph"), text))
    if quantize is not None:
        check_weights(quantize, "quantize")
    level = read_level(verify)
    kind = check_export(output, graph, {**options, "quantize": quantize}, force)
    out = Output(Path(output), kind, quantize, level, force, progress or silent)
    if is_module(options):
        write = script_module if kind == TORCHSCRIPT else export_module
        return write(cast(nn.Module, model), out, options)  # which checks its arguments
    if kind in TORCH_FILES:
        return export_torch_file(model, out, options)
    if kind == BUNDLE:
        return (export_bundle if quantize is None else export_quantized_bundle)(model, out, options)
    return (export_graph if quantize is None else export_quantized_graph)(model, out, options)


def verify(
    artifact: PathLike,
    model: CheckpointLike,
    *,
    level: str = FULL,
    progress: Progress | None = None,
    **options: Unpack[VerifyKeywords],
) -> ParityReport:
    """Compare what was exported with the model that it was exported from.

    A config value that is given neither by the checkpoint and its config files nor by the caller
    is taken from the artifact.

    Args:
        artifact: a bundle's folder, or a file.
        model: as for ``export``. A module of your own needs its ``inputs``, and is compared with
            its bundle.
        level: "full", or "quick" for one drawn batch besides real inputs.
        progress: called at every step; see ``tfexport.typing``.
        **options: how the model is read, and what is compared; see ``VerifyKeywords``.

    Returns:
        The report. A difference raises nothing: it is in the report.

    Raises:
        ConfigError: options that do not go together; all are named.
        TfexportError: the artifact or the model cannot be read, or they are not of each other.
        TypeError: an unknown option.
    """
    check_keywords("verify", options, VerifyKeywords)
    level, tell, path = read_level(level), progress or silent, Path(artifact)
    _check_verified(model, options)
    if options.get("inputs") is not None:
        return verify_module(path, cast(nn.Module, model), level, options, tell)
    if path.suffix == ".onnx":
        return verify_graph(path, model, level, options, tell)
    if path.is_file():
        return verify_torch_file(path, model, level, options, tell)
    return verify_bundle(path, model, level, options, tell)


def _check_verified(model: CheckpointLike, options: VerifyKeywords) -> None:
    """Refuse options of checkpoints for modules, and those of modules for checkpoints.

    Raises:
        ConfigError: naming them all.
    """
    problems: list[str | Message] = []
    if options.get("inputs") is None:
        if options.get("examples"):
            text = " is of a module of your own, which is compared with "
            problems.append(Message(Option("examples"), text, Option("inputs"), "."))
    else:
        if not isinstance(model, nn.Module):
            text = f": {shown(model)} is not a torch.nn.Module, and a checkpoint takes no "
            problems.append(Message(Option("model"), text, Option("inputs"), "."))
        for name in ("config", "settings", "layout", "reference", *LANGUAGES):
            if options.get(name):
                text = " is of checkpoints, not of a module of your own."
                problems.append(Message(Option(name), text))
    if problems:
        raise ConfigError(join_problems("verify", problems))
