"""Export of a user's own module: a bundle, or one graph, proven against the module's own code."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
from torch import nn

from tfexport import __version__, graph_io
from tfexport.atomic import check_new_file, new_file
from tfexport.bundle import (
    Limits,
    Manifest,
    SpecialIds,
    check_output,
    new_bundle,
    open_bundle,
    write_manifest,
)
from tfexport.errors import BundleError, join_problems, shown
from tfexport.export.artifacts.info import ArtifactInfo, info_of_bundle
from tfexport.export.artifacts.keywords import check_keywords
from tfexport.export.artifacts.module_source import (
    ModuleContents,
    ModuleKeywords,
    check_arguments,
    check_form,
    read_module,
)
from tfexport.export.artifacts.onnx_file import join_weights
from tfexport.export.module_forms import (
    MODULE_FORMS,
    ModuleForm,
    export_module_form,
    export_module_forms,
)
from tfexport.export.modules.contract import in_eval
from tfexport.export.modules.inputs import Input
from tfexport.export.parity.module import (
    compare_module_bundle,
    compare_module_file,
)
from tfexport.export.parity.plan import FULL, plan_bundle
from tfexport.export.parity.text import add_expected
from tfexport.export.passes.weights import share_transposed, share_weights
from tfexport.export.quantization.bundle import QuantizeResult, quantize_bundle
from tfexport.export.report import ParityReport
from tfexport.export.rounding import suited_threads
from tfexport.typing import PathLike, Progress, Unpack, silent

RealInputs = tuple[PathLike | None, PathLike | None]  # files: samples, and expected texts


@dataclass(frozen=True)
class ModuleResult:
    """The files of a module.

    Attributes:
        path: the bundle's folder, or the file.
        report: of the comparison with the module's own code; None with ``verify=False``.
        bundle_manifest: None for a single file.
        quantized: the result of quantising; None for float32.
    """

    path: Path
    report: ParityReport | None
    bundle_manifest: Manifest | None = None
    quantized: QuantizeResult | None = None

    @property
    def manifest(self) -> Manifest:
        """The manifest of the bundle.

        Raises:
            AttributeError: a single file was exported, which has none.
        """
        if self.bundle_manifest is None:
            raise AttributeError(f"{self.path}: a single file, which has no manifest.")
        return self.bundle_manifest


def export_module(
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
    """Export any encoder-decoder module that has the methods of docs/modules.md.

    Its axes are found by running it, its graphs are compared with its own code, one row at a time.
    If anything fails, no file is left behind.

    Args:
        model: with ``encode`` and ``decode``, or ``encode``, ``start`` and ``step``.
        output: the bundle's folder, or the .onnx file of ``graph``.
        inputs: of ``encode``, in the order of its parameters.
        pad_id: fills rows behind their end.
        bos_id: of the token that decoding starts from.
        eos_id: of the token that ends a row.
        max_length: tokens that a row has at most.
        **options: see ``ModuleKeywords``.

    Raises:
        ConfigError: wrong arguments.
        ExportError: the module is not what the contract says, or torch cannot export it.
        ParityError: the graphs and the module's own code differ.
        QualityError: quantised weights change too much.
        OutputExistsError: something stands in the way.
        TypeError: an unknown option.
    """
    check_keywords("export_module", options, ModuleKeywords)
    force, graph = options.get("force", False), options.get("graph")
    check_form(output, options)
    (check_output if graph is None else check_new_file)(output, force)
    ids = SpecialIds(pad_id, bos_id, eos_id, options.get("unk_id"))
    check_arguments(model, ids, max_length)
    with in_eval(model), suited_threads(model):
        return _export(model, output, inputs, ids, max_length, options)


def _export(
    model: nn.Module,
    output: PathLike,
    inputs: Sequence[Input],
    ids: SpecialIds,
    max_length: int,
    options: ModuleKeywords,
) -> ModuleResult:
    """``export_module`` of a module in eval mode."""
    force, graph = options.get("force", False), options.get("graph")
    tell = options.get("progress") or silent
    contents = read_module(model, inputs, ids, max_length, options, tell)
    kind, samples = options.get("quantize"), options.get("samples")
    expect = options.get("expect")
    if graph is not None:
        return _write_file(contents, output, force, tell)
    if kind is None:
        return _write_bundle(contents, output, force, (samples, expect), tell)
    with tempfile.TemporaryDirectory() as folder:
        rows = None if str(samples).endswith(".npz") else samples
        exact = _write_bundle(
            contents, Path(folder) / Path(output).name, False, (rows, expect), tell
        )
        made = quantize_bundle(
            exact.path, output, kind, samples=samples, force=force, progress=tell
        )
    return ModuleResult(Path(output), exact.report, made.manifest, made)


def verify_module(
    path: PathLike,
    model: nn.Module,
    *,
    inputs: Sequence[Input],
    progress: Progress | None = None,
    examples: Iterable[Mapping[str, Any]] = (),
    samples: PathLike | None = None,
    expect: PathLike | None = None,
    level: str = FULL,
) -> ParityReport:
    """Compare a bundle with the module that it was exported from.

    Args:
        path: the bundle's folder.
        model: the module.
        inputs: of ``encode``, as for ``export_module``.
        progress: called at every step; see ``tfexport.typing``.
        examples: rows of real inputs; they are compared too.
        samples: a file of real source texts, or ids; see ``ModuleKeywords``.
        expect: a file of sources and texts; see ``ModuleKeywords``.
        level: "full", or "quick" for one drawn batch besides real inputs.

    Raises:
        TfexportError: the bundle or the module is unusable, or does not belong to it. A difference
            is not raised: it is in the report.
    """
    if Path(path).is_file():
        raise BundleError(f"{path}: one file; a module is compared with its bundle.")
    manifest = open_bundle(path)
    if manifest.module_io is None:
        raise BundleError(f"{path}: was exported from a checkpoint; compare it with that.")
    info_of_bundle(manifest).refuse_quantized(Path(path))
    ids, longest = manifest.special_ids, manifest.limits.max_target_length
    assert longest is not None
    options, tell = ModuleKeywords(examples=examples, verify=level), progress or silent
    check_arguments(model, ids, longest)
    with in_eval(model), suited_threads(model):
        contents = read_module(model, inputs, ids, longest, options, tell)
        _require_same(contents, Path(path), manifest)
        return _compare(contents, Path(path), manifest, (samples, expect), tell)


def _require_same(contents: ModuleContents, path: Path, manifest: Manifest) -> None:
    """Refuse a module whose tensors are not those of a bundle.

    Raises:
        BundleError: they are not.
    """
    found, name = contents.build.found, type(contents.build.found.module.model).__name__
    ours, theirs = manifest.module or {}, found.io.to_dict()
    unlike = [
        f"{key}: {shown(ours.get(key))} there and {shown(theirs[key])} in the module"
        for key in theirs
        if ours.get(key) != theirs[key]
    ]
    if manifest.limits.target_vocab_size != found.vocab_size:
        sizes = f"{manifest.limits.target_vocab_size} there and {found.vocab_size} in the module"
        unlike.append(f"size of the vocabulary: {sizes}")
    if found.io != manifest.module_io or unlike:
        advice = "Compare it with the module that it was exported from, or export this one."
        raise BundleError(
            join_problems(f"{path}: this bundle is not of that {name}", unlike, advice)
        )


def _write_bundle(
    contents: ModuleContents, output: PathLike, force: bool, real: RealInputs, tell: Progress
) -> ModuleResult:
    """Export all graphs, write the bundle, and compare it with the module's own code."""
    report = None
    with new_bundle(output, force) as folder:
        graphs = export_module_forms(contents.build, tell)
        tell("writing", 0, 1)
        share_weights(list(graphs.values()), folder)
        for form, graph in graphs.items():
            ir.save(graph, folder / form.filename)
        tokenizers = contents.tokenizers.copy(folder)
        if not contents.build.found.io.takes_ids:  # a text is the target only
            tokenizers.pop("source", None)
        manifest = replace(_describe(contents, graphs), tokenizers=tokenizers, reads=contents.reads)
        manifest = write_manifest(folder, manifest)
        if contents.level:
            report = _compare(contents, folder, manifest, real, tell)
            report.require(str(output))
            manifest = write_manifest(folder, replace(manifest, parity=report.summary()))
    return ModuleResult(Path(output), report, manifest)


def _compare(
    contents: ModuleContents, folder: Path, manifest: Manifest, real: RealInputs, tell: Progress
) -> ParityReport:
    comparisons, eager = [form.compare for form in MODULE_FORMS], contents.eager
    samples, expect = real
    rows = list(contents.examples)
    if eager.found.io.takes_ids:
        ids = plan_bundle(folder, manifest, contents.level, samples, tell).rows
        rows += [eager.row_of(row) for row in ids]
    report = compare_module_bundle(eager, (folder, manifest), comparisons, rows, tell)
    if expect is None:
        return report
    return add_expected(report, folder, expect, eager.near_tie(report), tell)


def _write_file(
    contents: ModuleContents, output: PathLike, force: bool, tell: Progress
) -> ModuleResult:
    """Export the greedy search as one file, and compare it with the module's own code."""
    (form,) = [form for form in MODULE_FORMS if form.name == graph_io.GENERATE]
    tell(f"exporting {form.filename}", 0, 1)
    model = export_module_form(contents.build, form)
    share_transposed([model])
    join_weights(model, form.name)
    report = None
    with new_file(output, force) as path:
        ir.save(model, path)
        if contents.level:
            report = compare_module_file(contents.eager, path, contents.examples, tell)
            report.require(str(output))
        info = ArtifactInfo(
            form.name,
            {**asdict(contents.build.special_ids), "max_length": contents.build.max_length,
             "module": contents.build.found.io.to_dict()},
            parity=None if report is None else report.summary(),
            needs={"onnxruntime": contents.options.minimum_onnxruntime},
        )  # fmt: skip
        model.metadata_props.update(info.to_metadata())
        ir.save(model, path)
    return ModuleResult(Path(output), report)


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
        graphs={form.name: form.filename for form in graphs},
        module=build.found.io.to_dict(),
    )
