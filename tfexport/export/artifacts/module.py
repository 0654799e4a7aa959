"""Export of a custom module to a bundle or graph, and comparison with the module's own code."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import onnx_ir as ir
from torch import nn

from tfexport import graph_io
from tfexport.atomic import new_file
from tfexport.bundle import Manifest, open_bundle
from tfexport.errors import (
    BundleError,
    ConfigError,
    ExportError,
    InputError,
    OutputExistsError,
    ParityError,
    TfexportError,
    join_problems,
    shown,
)
from tfexport.export.artifacts.bundle import check_bundle, write_bundle
from tfexport.export.artifacts.checkpoint_source import verify_checkpoint
from tfexport.export.artifacts.info import ArtifactInfo, info_of_bundle
from tfexport.export.artifacts.keywords import ExportKeywords, VerifyKeywords
from tfexport.export.artifacts.module_script import write_script
from tfexport.export.artifacts.module_source import (
    ModuleCall,
    ModuleFacts,
    check_arguments,
    read_call,
    read_module,
)
from tfexport.export.artifacts.onnx_file import join_weights
from tfexport.export.artifacts.option_rules import (
    BUNDLE,
    BY_METHODS,
    CALL,
    LANGUAGES,
    TORCHSCRIPT,
    Output,
)
from tfexport.export.artifacts.recognised import (
    is_recognised,
    read_recognised,
    stored_checkpoint,
)
from tfexport.export.artifacts.recognised_decoder import with_decoder
from tfexport.export.artifacts.results import ExportResult
from tfexport.export.forms import file_form
from tfexport.export.incremental.cross_attention import find_cross_attention
from tfexport.export.module_subject import ModuleSubject
from tfexport.export.modules.contract import in_eval
from tfexport.export.parity.bundle import compare_file
from tfexport.export.passes.weights import share_transposed
from tfexport.export.report import ParityReport
from tfexport.export.rounding import suited_threads
from tfexport.export.subject import Reason
from tfexport.graph_io import INPUT_IDS
from tfexport.model_src.checkpoint.generation_config import Generation
from tfexport.typing import Progress


def export_module(model: nn.Module, output: Output, options: ExportKeywords) -> ExportResult:
    """Export a module to a bundle or file, by its forward or by the methods of docs/modules.md.

    Dynamic axes are found by running the module. The graphs are compared with the module's own
    code, one row at a time. See ``export``.
    """
    facts = ModuleFacts.of(options)
    check_arguments("export", model, facts)
    return export_known(model, facts, output, options)


def export_known(
    model: nn.Module, facts: ModuleFacts, output: Output, options: ExportKeywords
) -> ExportResult:
    """Export a module of which the special ids and the decoding defaults are known.

    Its forward is recognised whole, or its decoder is, or its steps are found.
    """
    if output.kind == TORCHSCRIPT:  # which has torch's operators alone
        options = {**options, "portable": True}
    with in_eval(model), suited_threads(model):
        call = read_call(model, options.get("inputs"), facts, options, output.progress)
        if output.kind != BUNDLE:
            write = write_script if output.kind == TORCHSCRIPT else _write_file
            return write(read_module(call, output.level, options), output)
        if call.by_methods:
            return write_bundle(read_module(call, output.level, options), output)
        if not options.get("recognise", True):
            return _write_steps(_read_steps(call, output.level, options), output)
        result = _write_recognised(call, output, options)
        if isinstance(result, ExportResult):
            return result
        note, subject = result.text, _read_steps(call, output.level, options)
        result = _write_with_decoder(call, subject, output)
        if isinstance(result, Reason):
            note, result = f"{note}; {result.text}", _write_steps(subject, output)
        elif call.inputs[0].name != INPUT_IDS:  # then nobody expects more
            return result
        else:
            note = f"{note}; its decoder is recognised"
        return replace(result, notes=(*result.notes, note))


def _read_steps(call: ModuleCall, level: str, options: ExportKeywords) -> ModuleSubject:
    """The steps that are found in a module's forward, and its attention."""
    subject = read_module(call, level, options)
    try:
        attention = find_cross_attention(call.program, fused=not call.graphs.portable)
        return replace(subject, attention=attention)
    except Exception as error:  # a program may be of any form, and has its steps all the same
        return subject.without_attention(error)


def _write_steps(subject: ModuleSubject, output: Output) -> ExportResult:
    """Write the bundle of found steps, without attention if it cannot be written with it."""
    if subject.attention is None:
        return write_bundle(subject, output)
    try:
        return write_bundle(subject, output)
    except (BundleError, ExportError, ParityError) as error:
        if graph_io.ALIGNMENT not in str(error):  # it fails without attention, too
            raise
        return write_bundle(subject.without_attention(error), output)


def _write_recognised(
    call: ModuleCall, output: Output, options: ExportKeywords
) -> ExportResult | Reason:
    """Write the bundle of a module that is recognised whole."""
    try:
        subject = read_recognised(call, output.level, options)
        return subject if isinstance(subject, Reason) else write_bundle(subject, output)
    except ParityError as error:
        return Reason(f"recognised, but {error}")
    except (ConfigError, ExportError, InputError) as error:
        # If an option of the caller is wrong, the found steps say so too.
        return Reason(f"recognised, but it was not exported: {error}")


def _write_with_decoder(
    call: ModuleCall, subject: ModuleSubject, output: Output
) -> ExportResult | Reason:
    """Write the bundle of found steps with the decoder that is recognised."""
    try:
        recognised = with_decoder(call, subject)
        return recognised if isinstance(recognised, Reason) else _write_steps(recognised, output)
    except OutputExistsError:
        raise
    except TfexportError as error:  # the found steps are as good, or fail in the same way
        return Reason(f"its decoder is recognised, but {error}")


def verify_module(
    path: Path, model: nn.Module, level: str, options: VerifyKeywords, progress: Progress
) -> ParityReport:
    """Compare a bundle with the module that it was exported from; see ``verify``."""
    if path.is_file():
        raise BundleError(f"{path}: is a single file; a module can only be compared with a bundle.")
    manifest = open_bundle(path)
    if manifest.module_io is None and not is_recognised(manifest):
        raise BundleError(f"{path}: was exported from a checkpoint; compare it with that one.")
    info_of_bundle(manifest).refuse_quantized(path)
    longest = manifest.limits.max_target_length
    assert longest is not None
    facts = ModuleFacts(
        manifest.special_ids, longest, Generation(manifest.generation, manifest.special_ids.start)
    )
    check_arguments("verify", model, facts)
    given = ExportKeywords(examples=options.get("examples", ()))
    for name in CALL:
        if name in options:
            given[name] = options[name]  # type: ignore[literal-required]
    # Steps of standard operators have another memory.
    given["portable"] = (manifest.module or {}).get("found", {}).get("portable", False)
    if manifest.module_io is not None and "found" not in (manifest.module or {}):
        given.setdefault("steps", BY_METHODS)
    with in_eval(model), suited_threads(model):
        call = read_call(model, options.get("inputs"), facts, given, progress)
        if manifest.module_io is None:
            return _verify_recognised(path, call, manifest, level, options)
        for name in ("samples", "expect", *LANGUAGES):
            if name in options:
                given[name] = options[name]  # type: ignore[literal-required]
        subject = read_module(call, level, given)
        _require_same(subject, path, manifest)
        return check_bundle(subject, path, manifest, progress)


def _verify_recognised(
    path: Path, call: ModuleCall, manifest: Manifest, level: str, options: VerifyKeywords
) -> ParityReport:
    """Compare the bundle of a recognised module with a module's forward: the weights say it all."""
    real = VerifyKeywords()
    for name in ("samples", "expect", *LANGUAGES):
        if name in options:
            real[name] = options[name]  # type: ignore[literal-required]
    checkpoint = stored_checkpoint(call, path, manifest)
    return verify_checkpoint(path, checkpoint, level, real, call.progress)


def _require_same(subject: ModuleSubject, path: Path, manifest: Manifest) -> None:
    """Check that a module has the tensors of a bundle."""
    probe, name = subject.probe, subject.probe.module.name
    ours, theirs = manifest.module or {}, subject.tensors()
    unlike = [
        f"{key}: {shown(ours.get(key))} here and {shown(theirs[key])} in the module"
        for key in theirs
        if ours.get(key) != theirs[key]
    ]
    if manifest.limits.target_vocab_size != probe.vocab_size:
        sizes = f"{manifest.limits.target_vocab_size} here and {probe.vocab_size} in the module"
        unlike.append(f"vocabulary size: {sizes}")
    if probe.io != manifest.module_io or unlike:
        advice = "Pass the module that it was exported from, or export this one."
        raise BundleError(
            join_problems(f"{path}: this bundle was not exported from that {name}", unlike, advice)
        )


def _write_file(subject: ModuleSubject, output: Output) -> ExportResult:
    """Export the greedy search as one file, and compare it with the module's own code."""
    subject.refuse_limits(output.path)
    progress = output.progress
    form = file_form(output.kind)
    progress(f"exporting {form.filename}", 0, 1)
    model = subject.export(form)
    share_transposed([model])
    join_weights(model, form.name)
    report = None
    with new_file(output.path, output.force) as path:
        ir.save(model, path)
        if subject.level:
            spec, plan = subject.generate_spec, subject.plan_file(progress)
            report = compare_file(subject.eager, path, spec, form.compare, plan)
            report.require(str(output.path))
        info = ArtifactInfo(
            form.name,
            {**asdict(subject.special_ids), "max_length": subject.max_length,
             "module": subject.probe.io.to_dict()},
            parity=None if report is None else report.summary(),
            needs={"onnxruntime": subject.options.minimum_onnxruntime},
        )  # fmt: skip
        model.metadata_props.update(info.to_metadata())
        ir.save(model, path)
    return ExportResult(output.path, output.kind, report, notes=subject.notes)
