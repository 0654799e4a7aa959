"""Export of a checkpoint or module to a bundle, and its verification."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from tfexport import __version__
from tfexport.bundle import (
    Limits,
    Manifest,
    new_bundle,
    open_bundle,
    write_manifest,
)
from tfexport.errors import BundleError, ConfigError, Message, Option, join_problems
from tfexport.export.artifacts.checkpoint_source import read_for_decoding
from tfexport.export.artifacts.info import info_of_bundle
from tfexport.export.artifacts.keywords import (
    ExportKeywords,
    VerifyKeywords,
    check_expect,
    graph_options,
    language_pair_of,
    read_options,
    reads_texts,
    tokenizer_files,
)
from tfexport.export.artifacts.option_rules import BUNDLE, Output
from tfexport.export.artifacts.results import ExportResult
from tfexport.export.graph_forms import (
    BundleForm,
    GraphBuild,
    bundle_comparisons,
    export_bundle_forms,
)
from tfexport.export.graph_options import GraphOptions
from tfexport.export.parity import ParityReport, compare_bundle
from tfexport.export.parity.plan import FULL, frame_samples, plan_bundle
from tfexport.export.parity.text import add_expected, near_tie_of
from tfexport.export.passes.weights import record_weights, share_weights
from tfexport.export.text.tokenizer_files import TokenizerFiles
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.checkpoint.read_options import CheckpointLike, folder_of
from tfexport.model_src.config import TransformerConfig
from tfexport.runtime.text.codec import NO_LANGUAGES, LanguagePair, find_language_tokens
from tfexport.typing import PathLike, Progress


@dataclass(frozen=True)
class BundleContents:
    """The inputs of a bundle's export.

    Attributes:
        checkpoint: a model with special ids and embeddings.
        options: the options of the graphs.
        tokenizers: the tokenizers, which were checked against the model's vocabularies.
        level: how much is compared with eager PyTorch: "full", "quick", or "" for nothing.
        samples: a file of real inputs that are compared too.
        expect: a file of sources and the texts that are expected.
        reads: "texts" if the model reads them as a whole; see ``Manifest``.
        language_pair: the languages of ``samples`` and ``expect``.
        max_target_length: tokens of a row, if that is less than the model's own limit.
        parameters: of a recognised module; see ``Manifest``.
    """

    checkpoint: Checkpoint
    options: GraphOptions
    tokenizers: TokenizerFiles
    level: str = FULL
    samples: PathLike | None = None
    expect: PathLike | None = None
    reads: str | None = None
    language_pair: LanguagePair = NO_LANGUAGES
    max_target_length: int | None = None
    parameters: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    def check_languages(self, translates: bool) -> None:
        """Before the export, check the languages of real texts.

        Args:
            translates: whether the texts are translated; otherwise only sources are encoded.

        Raises:
            ConfigError: a language is unknown to the model, or required and missing.
        """
        languages, start = self.tokenizers.languages, self.checkpoint.special_ids.start
        frame_samples(languages, self.language_pair)
        if translates:
            first = self.checkpoint.read_generation().defaults.get("first_token")
            tokens = find_language_tokens(languages, self.language_pair, (first, start))
            if tokens.problems:
                raise ConfigError(join_problems("samples", tokens.problems))


def export_bundle(
    checkpoint: CheckpointLike, output: Output, options: ExportKeywords
) -> ExportResult:
    """Export a checkpoint, compare it with eager PyTorch, and write a bundle; see ``export``."""
    of_graphs = graph_options(options)
    contents = read_contents(checkpoint, of_graphs, options, output.level, output.progress)
    return write_bundle(contents, output.path, output.force, output.progress)


def read_contents(
    checkpoint: CheckpointLike,
    of_graphs: GraphOptions,
    options: ExportKeywords,
    level: str,
    progress: Progress,
) -> BundleContents:
    """Read the checkpoint and choose its tokenizers; see ``export``."""
    check_expect(options, bool(level))
    language_pair = language_pair_of(options, "export")
    progress("reading the checkpoint", 0, 1)
    found = read_for_decoding(checkpoint, read_options(options, bool(level)))
    tokenizers = tokenizer_files(options, folder_of(checkpoint))
    tokenizers.check(found.config)
    inputs = options.get("samples"), options.get("expect")
    reads = reads_texts(options, found.reads_texts)
    contents = BundleContents(found, of_graphs, tokenizers, level, *inputs, reads, language_pair)
    if inputs != (None, None):
        contents.check_languages(translates=contents.expect is not None)
    return contents


def write_bundle(
    contents: BundleContents, output: PathLike, force: bool, progress: Progress
) -> ExportResult:
    """Export all graphs, write the bundle and compare it with eager PyTorch."""
    checkpoint, options = contents.checkpoint, contents.options
    generation = checkpoint.read_generation()
    with new_bundle(output, force) as folder:
        build = GraphBuild(checkpoint, options)
        graphs = export_bundle_forms(build, progress)
        progress("writing", 0, 1)
        share_weights(list(graphs.values()), folder)
        parameters = {name: tensor.numpy() for name, tensor in build.model().state_dict().items()}
        record_weights(list(graphs.values()), folder, parameters)
        for form, graph in graphs.items():
            ir.save(graph, folder / form.filename)
        described = describe(checkpoint.config, options, graphs)
        limits = described.limits
        if contents.max_target_length is not None:
            limits = dataclasses.replace(limits, max_target_length=contents.max_target_length)
        manifest = dataclasses.replace(
            described,
            limits=limits,
            tokenizers=contents.tokenizers.copy(folder),
            generation=dict(generation.defaults),
            languages=contents.tokenizers.languages,
            reads=contents.reads,
            origins={**checkpoint.unseen, **generation.origins},
            parameters=contents.parameters,
        )
        manifest = write_manifest(folder, manifest)
        report = None
        if contents.level:
            language_pair = contents.language_pair
            plan = plan_bundle(
                folder, manifest, contents.level, contents.samples, progress, language_pair
            )
            report = compare_bundle(folder, manifest, checkpoint, bundle_comparisons(), plan)
            if contents.expect is not None:
                tie = near_tie_of(checkpoint, report)
                report = add_expected(report, folder, contents.expect, tie, progress, language_pair)
            report.require(str(output))
            manifest = write_manifest(
                folder, dataclasses.replace(manifest, parity=report.summary())
            )
    return ExportResult(
        Path(output), BUNDLE, report, manifest, checkpoint.layout, contents.tokenizers.paths,
        generation.notes,
    )  # fmt: skip


def verify_bundle(
    bundle: Path,
    checkpoint: CheckpointLike,
    level: str,
    options: VerifyKeywords,
    progress: Progress,
) -> ParityReport:
    """Compare a bundle with the checkpoint that it was exported from; see ``verify``."""
    language_pair = language_pair_of(options, "verify")
    manifest = open_bundle(bundle)
    if manifest.module is not None:
        raise BundleError(
            Message(
                f"{bundle}: was exported from a custom module; compare it with that module (",
                Option("module"), " on the command line; in Python, pass its ", Option("inputs"),
                ").",
            )
        )  # fmt: skip
    info = info_of_bundle(manifest)
    info.refuse_quantized(bundle)
    found = read_for_decoding(checkpoint, read_options(options), manifest.config)
    info.require_same_model(bundle, found.config)
    samples, expect = options.get("samples"), options.get("expect")
    plan = plan_bundle(bundle, manifest, level, samples, progress, language_pair)
    report = compare_bundle(bundle, manifest, found, bundle_comparisons(), plan)
    report = info.note_own_code(report)
    if expect is None:
        return report
    return add_expected(report, bundle, expect, near_tie_of(found, report), progress, language_pair)


def describe(
    config: TransformerConfig, options: GraphOptions, graphs: Mapping[BundleForm, ir.Model]
) -> Manifest:
    """A manifest without its files."""
    assert config.source_vocab_size is not None
    assert config.target_vocab_size is not None
    domains: dict[str, int] = {}
    for graph in graphs.values():
        domains |= graph.opset_imports
    limit = config.longest
    return Manifest(
        tfexport_version=__version__,
        opset=domains,
        ir_version=max(graph.ir_version for graph in graphs.values()),
        minimum_onnxruntime=options.minimum_onnxruntime,
        config=config.to_dict(),
        special_ids=config.special_ids,
        limits=Limits(config.source_vocab_size, config.target_vocab_size, limit, limit),
        graphs={form.name: form.filename for form in graphs},
    )
