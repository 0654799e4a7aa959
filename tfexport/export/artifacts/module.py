"""Export of a custom module to a bundle or graph, and comparison with the module's own code."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
from torch import nn

from tfexport import __version__, graph_io
from tfexport.atomic import new_file
from tfexport.bundle import (
    Limits,
    Manifest,
    new_bundle,
    open_bundle,
    write_manifest,
)
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
from tfexport.export.artifacts.bundle import verify_bundle
from tfexport.export.artifacts.info import ArtifactInfo, info_of_bundle
from tfexport.export.artifacts.keywords import ExportKeywords, VerifyKeywords
from tfexport.export.artifacts.module_source import (
    ModuleCall,
    ModuleContents,
    ModuleFacts,
    check_arguments,
    read_call,
    read_module,
)
from tfexport.export.artifacts.onnx_file import join_weights
from tfexport.export.artifacts.option_rules import BUNDLE, BY_METHODS, CALL, Output
from tfexport.export.artifacts.quantized import quantized_result
from tfexport.export.artifacts.recognised import (
    export_recognised,
    is_recognised,
    recognised_checkpoint,
)
from tfexport.export.artifacts.recognised_decoder import recognised_decoder
from tfexport.export.artifacts.results import ExportResult
from tfexport.export.incremental.step_graphs import FoundSteps, WholeForward, describe
from tfexport.export.module_forms import (
    MODULE_FORMS,
    ModuleBuild,
    ModuleForm,
    export_module_form,
    export_module_forms,
)
from tfexport.export.modules.contract import in_eval
from tfexport.export.parity.module import compare_module_file
from tfexport.export.parity.module_bundle import compare_module_bundle
from tfexport.export.parity.plan import plan_bundle
from tfexport.export.parity.text import add_expected
from tfexport.export.passes.weights import record_weights, share_transposed, share_weights
from tfexport.export.quantization.bundle import quantize_bundle
from tfexport.export.recognition.dataflow import NotRecognisedError
from tfexport.export.report import ParityReport
from tfexport.export.rounding import suited_threads
from tfexport.graph_io import INPUT_IDS, tensor_to_dict
from tfexport.model_src.checkpoint.generation_config import Generation
from tfexport.typing import PathLike, Progress

RealInputs = tuple[PathLike | None, PathLike | None]  # files: samples, and expected texts


def export_module(model: nn.Module, output: Output, options: ExportKeywords) -> ExportResult:
    """Export a module to a bundle or graph, by its forward or by the methods of docs/modules.md.

    Dynamic axes are found by running the module. The graphs are compared with the module's own
    code, one row at a time. See ``export``.
    """
    facts = ModuleFacts.of(options)
    check_arguments("export", model, facts)
    return export_known(model, facts, output, options)


def export_known(
    model: nn.Module, facts: ModuleFacts, output: Output, options: ExportKeywords
) -> ExportResult:
    """Export a module of which the special ids and the decoding defaults are known."""
    with in_eval(model), suited_threads(model):
        call = read_call(model, options.get("inputs"), facts, options, output.progress)
        real = options.get("samples"), options.get("expect")
        if output.kind != BUNDLE:
            return _write_file(read_module(call, output.level, options), output)
        if call.by_methods or not options.get("recognise", True):
            return _write(read_module(call, output.level, options), output, real)
        made = _recognised(call, output, options)
        if isinstance(made, ExportResult):
            return made
        note, contents = made, read_module(call, output.level, options)
        made = _with_recognised_decoder(call, contents, output, real)
        if isinstance(made, str):
            note, made = f"{note}; {made}", _write(contents, output, real)
        elif call.inputs[0].name != INPUT_IDS:  # then nobody expects more
            return made
        else:
            note = f"{note}; its decoder is recognised"
        return replace(made, notes=(*made.notes, note))


def _recognised(call: ModuleCall, output: Output, options: ExportKeywords) -> ExportResult | str:
    """The bundle of a recognised module, or why there is none."""
    try:
        return export_recognised(call, output, options)
    except NotRecognisedError as error:
        return f"not recognised as a known architecture: {error}"
    except ParityError as error:
        return f"recognised, but {error}"
    except (ConfigError, ExportError, InputError) as error:
        # If an option of the caller is wrong, the found steps say so too.
        return f"recognised, but it was not exported: {error}"


def _with_recognised_decoder(
    call: ModuleCall, contents: ModuleContents, output: Output, real: RealInputs
) -> ExportResult | str:
    """The bundle of found steps with the recognised decoder, or why there is none."""
    try:
        contents = _with_decoder(call, contents)
        made = _write(contents, output, real)
    except NotRecognisedError as error:
        return f"nor is its decoder: {error}"
    except OutputExistsError:
        raise
    except TfexportError as error:  # the found steps are as good, or fail in the same way
        return f"its decoder is recognised, but {error}"
    decoder = contents.build.decoder
    if decoder is None or not decoder.why_no_layers:
        return made
    note = f"its encoder stays in onnxruntime: {decoder.why_no_layers}"
    return replace(made, notes=(*made.notes, note))


def _write(contents: ModuleContents, output: Output, real: RealInputs) -> ExportResult:
    """Write a bundle and compare it with the module's own code."""
    if output.weights is not None:
        return _write_quantized(contents, output, real)
    return _write_bundle(contents, output.path, output.force, real, output.progress)


def _with_decoder(call: ModuleCall, contents: ModuleContents) -> ModuleContents:
    """A module with its decoder, which is recognised.

    Raises:
        NotRecognisedError: it is of no known form.
    """
    decoder = recognised_decoder(call, contents.build.found)
    speech = contents.generation.speech
    heads = () if speech is None else speech.alignment_heads or ()
    return replace(contents, build=replace(contents.build, decoder=decoder, alignment_heads=heads))


def _write_quantized(contents: ModuleContents, output: Output, real: RealInputs) -> ExportResult:
    """Write and compare a float32 bundle in a temporary folder, and quantise it."""
    assert output.weights is not None
    samples, expect = real
    rows = None if str(samples).endswith(".npz") else samples  # those of ids are compared as well
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / output.path.name
        exact = _write_bundle(contents, path, False, (rows, expect), output.progress)
        made = quantize_bundle(
            exact.path, output.path, output.weights, samples=samples,
            accept_loss=output.accept_loss, force=output.force, progress=output.progress,
        )  # fmt: skip
    return quantized_result(exact, made, output)


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
            return _verify_recognised(path, call, level, options, progress)
        contents = read_module(call, level, given)
        if manifest.transformer is not None:
            try:
                contents = _with_decoder(call, contents)
            except NotRecognisedError as error:
                raise BundleError(_unlike(path, "with a known decoder", error)) from error
        _require_same(contents, path, manifest)
        real = options.get("samples"), options.get("expect")
        return _compare(contents, path, manifest, real, progress)


def _verify_recognised(
    path: Path, call: ModuleCall, level: str, options: VerifyKeywords, progress: Progress
) -> ParityReport:
    try:
        checkpoint = recognised_checkpoint(call, ExportKeywords())
    except NotRecognisedError as error:
        raise BundleError(_unlike(path, "of a known architecture", error)) from error
    real = VerifyKeywords()
    for name in ("samples", "expect"):
        if name in options:
            real[name] = options[name]
    return verify_bundle(path, checkpoint, level, real, progress)


def _unlike(path: Path, kind: str, error: NotRecognisedError) -> str:
    return (
        f"{path}: was exported from a module {kind}; in this one, none is recognised: {error}. "
        "Pass the module that it was exported from, or export this one."
    )


def _require_same(contents: ModuleContents, path: Path, manifest: Manifest) -> None:
    """Check that a module has the tensors of a bundle."""
    found, name = contents.build.found, contents.build.found.module.name
    ours, theirs = manifest.module or {}, found.io.to_dict() | _decoder_in(contents.build)
    unlike = [
        f"{key}: {shown(ours.get(key))} here and {shown(theirs[key])} in the module"
        for key in theirs
        if ours.get(key) != theirs[key]
    ]
    if manifest.limits.target_vocab_size != found.vocab_size:
        sizes = f"{manifest.limits.target_vocab_size} here and {found.vocab_size} in the module"
        unlike.append(f"vocabulary size: {sizes}")
    if found.io != manifest.module_io or unlike:
        advice = "Pass the module that it was exported from, or export this one."
        raise BundleError(
            join_problems(f"{path}: this bundle was not exported from that {name}", unlike, advice)
        )


def _write_bundle(
    contents: ModuleContents, output: PathLike, force: bool, real: RealInputs, progress: Progress
) -> ExportResult:
    """Export all graphs, write the bundle, and compare it with the module's own code."""
    report = None
    with new_bundle(output, force) as folder:
        graphs = export_module_forms(contents.build, progress)
        progress("writing", 0, 1)
        share_weights(list(graphs.values()), folder)
        if contents.build.decoder is not None:
            weights = contents.build.decoder.weights
            parameters = {name: tensor.numpy() for name, tensor in weights.items()}
            record_weights(list(graphs.values()), folder, parameters)
        for form, graph in graphs.items():
            ir.save(graph, folder / form.filename)
        tokenizers = contents.tokenizers.copy(folder)
        if not contents.build.found.io.takes_ids:  # a text is the target only
            tokenizers.pop("source", None)
        manifest = replace(_describe(contents, graphs), tokenizers=tokenizers, reads=contents.reads)
        manifest = write_manifest(folder, manifest)
        if contents.level:
            report = _compare(contents, folder, manifest, real, progress)
            report.require(str(output))
            manifest = write_manifest(folder, replace(manifest, parity=report.summary()))
    files = contents.tokenizers.paths
    return ExportResult(
        Path(output), BUNDLE, report, manifest, tokenizers=files, notes=contents.notes
    )


def _compare(
    contents: ModuleContents, folder: Path, manifest: Manifest, real: RealInputs, progress: Progress
) -> ParityReport:
    comparisons, eager = [form.compare for form in contents.build.forms], contents.eager
    samples, expect = real
    rows = list(contents.examples)
    if eager.found.io.takes_ids:
        ids = plan_bundle(folder, manifest, contents.level, samples, progress).rows
        rows += [eager.row_of(row) for row in ids]
    report = compare_module_bundle(eager, (folder, manifest), comparisons, rows, progress)
    if expect is None:
        return report
    return add_expected(report, folder, expect, eager.near_tie(report), progress)


def _write_file(contents: ModuleContents, output: Output) -> ExportResult:
    """Export the greedy search as one file, and compare it with the module's own code."""
    contents.refuse_limits(output.path)
    progress = output.progress
    (form,) = [form for form in MODULE_FORMS if form.name == output.kind]
    progress(f"exporting {form.filename}", 0, 1)
    model = export_module_form(contents.build, form)
    share_transposed([model])
    join_weights(model, form.name)
    report = None
    with new_file(output.path, output.force) as path:
        ir.save(model, path)
        if contents.level:
            report = compare_module_file(contents.eager, path, contents.examples, progress)
            report.require(str(output.path))
        info = ArtifactInfo(
            form.name,
            {**asdict(contents.build.special_ids), "max_length": contents.build.max_length,
             "module": contents.build.found.io.to_dict()},
            parity=None if report is None else report.summary(),
            needs={"onnxruntime": contents.options.minimum_onnxruntime},
        )  # fmt: skip
        model.metadata_props.update(info.to_metadata())
        ir.save(model, path)
    return ExportResult(output.path, output.kind, report, notes=contents.notes)


def _describe(contents: ModuleContents, graphs: Mapping[ModuleForm, ir.Model]) -> Manifest:
    build = contents.build
    domains: dict[str, int] = {}
    for graph in graphs.values():
        domains |= graph.opset_imports
    source = int(build.found.below.get(graph_io.INPUT_IDS, 1))
    return Manifest(
        tfexport_version=__version__,
        opset=domains,
        ir_version=max(graph.ir_version for graph in graphs.values()),
        minimum_onnxruntime=contents.options.minimum_onnxruntime,
        config=contents.config,
        special_ids=build.special_ids,
        limits=Limits(source, build.found.vocab_size, build.found.longest_source, build.max_length),
        generation=dict(contents.generation.defaults),
        languages=contents.tokenizers.languages,
        preprocessing=contents.preprocessing,
        origins=dict(contents.generation.origins),
        speech=contents.generation.speech,
        graphs={form.name: form.filename for form in graphs},
        module=build.found.io.to_dict() | _found_in(contents) | _decoder_in(build),
        parameters={} if build.decoder is None else build.decoder.parameters,
    )


def _decoder_in(build: ModuleBuild) -> dict[str, Any]:
    """For the manifest: the decoder that was recognised."""
    if build.decoder is None:
        return {}
    names = ("states", "kept")
    tensors = zip(names, map(tensor_to_dict, build.decoder.outputs), strict=False)
    found = {"config": build.decoder.config.to_dict(), **dict(tensors)}
    if (layers := build.decoder.layers) is not None:
        embeddings = tensor_to_dict(layers.embeddings)
        found["encoder"] = {"config": layers.config.to_dict(), "embeddings": embeddings}
    return {"decoder": found}


def _found_in(contents: ModuleContents) -> dict[str, Any]:
    """For the manifest: what was found in a module's forward."""
    model = contents.build.found.module.model
    if not isinstance(model, FoundSteps | WholeForward):
        return {}
    return {"found": {**describe(model), "portable": contents.options.portable}}
