"""Export of a user's own module: a bundle, or one graph, proven against the module's own code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, cast

import onnx_ir as ir
from torch import nn

from tfexport import __version__, graph_io
from tfexport.bundle import Limits, Manifest, SpecialIds, check_output, new_bundle, write_manifest
from tfexport.errors import ConfigError, Message, Option, join_problems, shown
from tfexport.export.artifacts.keywords import check_keywords
from tfexport.export.graph_options import GraphOptions
from tfexport.export.module_forms import (
    MODULE_FORMS,
    ModuleBuild,
    ModuleForm,
    export_module_forms,
)
from tfexport.export.modules.contract import UserModule
from tfexport.export.modules.examine import Examination, examine
from tfexport.export.modules.inputs import Input, check_examples, check_inputs
from tfexport.export.parity.module import EagerModule, compare_module
from tfexport.export.parity.report import ParityReport
from tfexport.export.passes.share_weights import share_weights
from tfexport.export.text.tokenizer_files import TokenizerFiles
from tfexport.model_src.config import TransformerConfig
from tfexport.module_rows import Array
from tfexport.paths import PathLike
from tfexport.progress import Progress, silent
from tfexport.runtime.model.module_model import ModuleModel
from tfexport.typing import Unpack


class ModuleKeywords(TypedDict, total=False):
    """Keyword arguments of ``export_module``.

    Attributes:
        unk_id: of the unknown token.
        tokenizer: of the target, and of the source if that is text; a tokenizer.json, a
            SentencePiece .model or a list of words. None: ids only.
        source_tokenizer: of a source that is text, if it is another.
        add_source_bos: the encoder sees the start token in front of a text.
        add_source_eos: the encoder sees the end token behind a text.
        examples: rows of real inputs, without the batch axis; they are compared too.
        opset: of the standard operators, 18 to 25; by default 22, and 20 if ``portable``.
        portable: for other runtimes than onnxruntime. A module's graphs have standard operators
            only in any case.
        verify: compare with the module's own code, and fail if it differs.
        force: replace what exists.
        progress: called at every step; see ``tfexport.progress``.
    """

    unk_id: int | None
    tokenizer: PathLike | None
    source_tokenizer: PathLike | None
    add_source_bos: bool
    add_source_eos: bool
    examples: Iterable[Mapping[str, Any]]
    opset: int | None
    portable: bool
    verify: bool
    force: bool
    progress: Progress | None


@dataclass(frozen=True)
class ModuleResult:
    """A module's bundle.

    Attributes:
        path: its folder.
        report: of the comparison with the module's own code; None with ``verify=False``.
        manifest: of the bundle.
    """

    path: Path
    report: ParityReport | None
    manifest: Manifest


@dataclass(frozen=True)
class ModuleContents:
    """A module, examined, and all that its files need besides.

    Attributes:
        build: the module on its way to graphs.
        options: of the graphs.
        tokenizers: checked against the vocabularies.
        config: what the manifest says of the framing of texts.
        examples: rows of real inputs.
    """

    build: ModuleBuild
    options: GraphOptions
    tokenizers: TokenizerFiles
    config: dict[str, Any]
    examples: Sequence[Mapping[str, Array]]


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
        output: the bundle's folder.
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
        OutputExistsError: something stands in the way.
        TypeError: an unknown option.
    """
    check_keywords("export_module", options, ModuleKeywords)
    check_output(output, options.get("force", False))
    ids = SpecialIds(pad_id, bos_id, eos_id, options.get("unk_id"))
    tell = options.get("progress") or silent
    contents = read_module(model, inputs, ids, max_length, options, tell)
    return write_module_bundle(contents, output, options, tell)


def read_module(
    model: nn.Module,
    inputs: Sequence[Input],
    ids: SpecialIds,
    max_length: int,
    options: ModuleKeywords,
    tell: Progress,
) -> ModuleContents:
    """Check all arguments, and examine the module."""
    _check_arguments(model, ids, max_length)
    checked = check_inputs(inputs)
    examples = check_examples(checked, options.get("examples", ()))
    graphs = GraphOptions.choose(options.get("opset"), options.get("portable", False))
    training = model.training
    try:
        module = UserModule(model.eval(), len(checked))
        tell("running your module at several sizes", 0, 1)
        found = examine(module, checked, examples, ids, max_length)
    finally:
        model.train(training)
    build = ModuleBuild(found, ids, max_length, graphs.opset)
    _check_ids(ids, found)
    tokenizers = _tokenizers(found, ids, options)
    framing = {name: options.get(name, False) for name in ("add_source_bos", "add_source_eos")}
    return ModuleContents(build, graphs, tokenizers, framing, examples)


def write_module_bundle(
    contents: ModuleContents, output: PathLike, options: ModuleKeywords, tell: Progress
) -> ModuleResult:
    """Export all graphs, write the bundle, and compare it with the module's own code."""
    build = contents.build
    report = None
    with new_bundle(output, options.get("force", False)) as folder:
        graphs = export_module_forms(build, tell)
        tell("writing", 0, 1)
        share_weights(list(graphs.values()), folder)
        for form, graph in graphs.items():
            ir.save(graph, folder / form.filename)
        tokenizers = contents.tokenizers.copy(folder)
        if not build.found.io.takes_ids:  # a text is the target only
            tokenizers.pop("source", None)
        manifest = replace(_describe(contents, graphs), tokenizers=tokenizers)
        manifest = write_manifest(folder, manifest)
        if options.get("verify", True):
            report = compare_module(
                EagerModule(build.found, build.special_ids, build.max_length),
                ModuleModel(folder, manifest, threads=1),
                [form.compare for form in MODULE_FORMS],
                contents.examples,
                tell,
            )
            report.require(str(output))
            manifest = write_manifest(folder, replace(manifest, parity=report.summary()))
    return ModuleResult(Path(output), report, manifest)


def _describe(contents: ModuleContents, graphs: Mapping[ModuleForm, ir.Model]) -> Manifest:
    build = contents.build
    domains: dict[str, int] = {}
    for graph in graphs.values():
        domains |= graph.opset_imports
    source = build.found.below.get(graph_io.INPUT_IDS, 1)
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


def _check_arguments(model: Any, ids: SpecialIds, max_length: Any) -> None:
    problems: list[Message] = []
    if not isinstance(model, nn.Module):
        problems.append(Message(Option("model"), f": {shown(model)} is not a torch.nn.Module"))
    for name in ("pad", "bos", "eos", "unk"):
        value = getattr(ids, name)
        if value is None and name == "unk":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            text = f": {shown(value)} is not a whole number from 0 on"
            problems.append(Message(Option(f"{name}_id"), text))
    if isinstance(max_length, bool) or not isinstance(max_length, int) or max_length < 1:
        text = f": {shown(max_length)} is not a whole number from 1 on"
        problems.append(Message(Option("max_length"), text))
    if problems:
        raise ConfigError(join_problems("export_module", problems))


def _check_ids(ids: SpecialIds, found: Examination) -> None:
    """Refuse special ids outside the vocabulary that the logits have."""
    size = found.vocab_size
    problems = [
        Message(Option(f"{name}_id"), f": {value} is not a token: the logits are of {size}")
        for name in ("pad", "bos", "eos", "unk")
        if (value := getattr(ids, name)) is not None and value >= size
    ]
    if problems:
        raise ConfigError(join_problems(type(found.module.model).__name__, problems))


def _tokenizers(found: Examination, ids: SpecialIds, options: ModuleKeywords) -> TokenizerFiles:
    target, source = options.get("tokenizer"), options.get("source_tokenizer")
    if source is not None and target is None:
        raise ConfigError(Message(
            Option("source_tokenizer"), " goes with ", Option("tokenizer"), ", that of the target."
        ))  # fmt: skip
    if source is not None and not found.io.takes_ids:
        raise ConfigError(Message(
            Option("source_tokenizer"), ": the module takes ",
            ", ".join(each.name for each in found.inputs), " and no text; leave it out.",
        ))  # fmt: skip
    if target is None:
        return TokenizerFiles()
    files = TokenizerFiles(Path(source or target), Path(target))
    files.check(_vocabularies(found, ids))
    return files


@dataclass(frozen=True)
class _Vocabularies:
    """The sizes and special ids that a tokenizer is checked against."""

    source_vocab_size: int
    target_vocab_size: int
    pad_id: int
    bos_id: int
    eos_id: int
    unk_id: int | None


def _vocabularies(found: Examination, ids: SpecialIds) -> TransformerConfig:
    size = found.vocab_size
    source = found.below.get(graph_io.INPUT_IDS, size) if found.io.takes_ids else size
    return cast(TransformerConfig, _Vocabularies(source, size, ids.pad, ids.bos, ids.eos, ids.unk))
