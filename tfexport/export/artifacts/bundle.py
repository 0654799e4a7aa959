"""Checkpoint or live module to bundle: sequencing only."""

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from tfexport import __version__
from tfexport.bundle import (
    Limits,
    Manifest,
    SpecialIds,
    check_output,
    new_bundle,
    open_bundle,
    write_manifest,
)
from tfexport.export.artifacts.checkpoint_source import Source, folder_of, read_for_decoding
from tfexport.export.graphs.beam import export_beam
from tfexport.export.graphs.encoder_decoder import export_decoder, export_encoder
from tfexport.export.graphs.exporter import (
    choose_opset,
    oldest_onnxruntime,
)
from tfexport.export.graphs.fused_attention import attention_class, beam_attention
from tfexport.export.graphs.greedy import export_generate
from tfexport.export.graphs.shortlist import make_shortlist
from tfexport.export.parity import ParityReport, Progress, compare_bundle
from tfexport.export.passes.share_weights import share_weights
from tfexport.export.quantize.bundle import refuse_quantized
from tfexport.export.text.tokenizer_files import choose_tokenizers
from tfexport.model_src.checkpoint.read import Checkpoint
from tfexport.model_src.config import TransformerConfig


@dataclass(frozen=True)
class ExportResult:
    """What an export made.

    Attributes:
        path: the bundle.
        manifest: of the bundle.
        checkpoint: as it was understood.
        report: of the comparison with eager PyTorch; None if it was not asked for.
        tokenizers: the files that were taken in, for a message.
    """

    path: Path
    manifest: Manifest
    checkpoint: Checkpoint
    report: ParityReport | None
    tokenizers: tuple[Path, ...]


def export_bundle(
    source: Source,
    output: str | os.PathLike[str],
    *,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    settings: Iterable[str] = (),
    layout: str | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    source_tokenizer: str | os.PathLike[str] | None = None,
    target_tokenizer: str | os.PathLike[str] | None = None,
    attention: bool = False,
    opset: int | None = None,
    portable: bool = False,
    verify: bool = True,
    force: bool = False,
    progress: Progress | None = None,
) -> ExportResult:
    """Export a checkpoint or a live module, compare it with eager PyTorch, write a bundle.

    Nothing is left behind unless everything went well.

    Args:
        source: a checkpoint's path, or a module: a ``Transformer``, or one whose state dict is in
            a known layout; what an ``nn.Transformer`` inside it says is taken from there.
        output: the bundle's folder.
        config: values that the weights do not say; a file for a path, a mapping for a module.
        settings: ``key=value`` words that win over ``config``.
        layout: force a checkpoint layout.
        tokenizer: for both sides; a tokenizer.json, a SentencePiece .model or a list of words.
            Without any, one that lies beside the checkpoint is taken.
        source_tokenizer: for the source side alone, together with ``target_tokenizer``.
        target_tokenizer: for the target side alone.
        attention: let generate.onnx give the cross-attention weights too.
        opset: of the standard operators, 18 to 25; by default 22, and 20 if ``portable``.
        portable: keep to standard operators, for other runtimes than onnxruntime.
        verify: compare the bundle with eager PyTorch, and fail if they differ.
        force: replace a bundle that exists.
        progress: told what is being done, and how far it is.

    Raises:
        TfexportError: ``CheckpointError``, ``ConfigError``, ``TokenizerError``,
            ``OutputExistsError``, ``ExportError`` or ``ParityError``.
    """
    tell = progress or (lambda step, done, total: None)
    opset = choose_opset(opset, portable)
    check_output(output, force)
    tell("reading the checkpoint", 0, 1)
    checkpoint = read_for_decoding(source, config, settings, layout)
    tokenizers = choose_tokenizers(tokenizer, source_tokenizer, target_tokenizer, folder_of(source))
    tokenizers.check(checkpoint.config)
    with new_bundle(output, force) as folder:
        graphs = _export_graphs(checkpoint, opset, portable, attention, tell)
        tell("writing", 0, 1)
        share_weights(list(graphs.values()), folder)
        for name, graph in graphs.items():
            ir.save(graph, folder / name)
        manifest = dataclasses.replace(
            describe(checkpoint.config, opset, graphs), tokenizers=tokenizers.copy(folder)
        )
        manifest = write_manifest(folder, manifest)
        report = None
        if verify:
            report = compare_bundle(folder, manifest, checkpoint, tell)
            report.require(str(output))
            manifest = write_manifest(
                folder, dataclasses.replace(manifest, parity=report.summary())
            )
    used = dict.fromkeys(path for path in (tokenizers.source, tokenizers.target) if path)
    return ExportResult(Path(output), manifest, checkpoint, report, tuple(used))


def verify_bundle(
    bundle: str | os.PathLike[str],
    source: Source,
    *,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    settings: Iterable[str] = (),
    layout: str | None = None,
    progress: Progress | None = None,
) -> ParityReport:
    """Compare a bundle with the checkpoint that it should say the same as.

    Config values that neither the checkpoint nor its config files nor the caller give are taken
    from the bundle.

    Raises:
        TfexportError: the bundle or the checkpoint is unusable. A difference is not raised: it
            is in the report.
    """
    manifest = open_bundle(bundle)
    refuse_quantized(Path(bundle), manifest.quantization)
    checkpoint = read_for_decoding(source, config, settings, layout, manifest.config)
    return compare_bundle(Path(bundle), manifest, checkpoint, progress)


def describe(config: TransformerConfig, opset: int, graphs: Mapping[str, ir.Model]) -> Manifest:
    """A manifest without its files."""
    assert config.pad_id is not None
    assert config.bos_id is not None
    assert config.eos_id is not None
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
        minimum_onnxruntime=oldest_onnxruntime(opset),
        config=config.to_dict(),
        special_ids=SpecialIds(config.pad_id, config.bos_id, config.eos_id, config.unk_id),
        limits=Limits(config.source_vocab_size, config.target_vocab_size, limit, limit),
        graphs={name.removesuffix(".onnx"): name for name in graphs},
    )


def _export_graphs(
    checkpoint: Checkpoint, opset: int, portable: bool, attention: bool, tell: Progress
) -> dict[str, ir.Model]:
    model = checkpoint.build(attention_class(portable, weights=attention))
    # Whoever steps by hand may ask for the weights, and on the CPU they cost nothing.
    decoder = checkpoint.build(attention_class(portable, weights=True))
    beams = checkpoint.build(beam_attention(portable))
    graphs: dict[str, ir.Model] = {}
    jobs: dict[str, Callable[[], ir.Model]] = {
        "encoder.onnx": lambda: export_encoder(model, opset),
        "decoder.onnx": lambda: export_decoder(decoder, opset),
        "shortlist.onnx": lambda: make_shortlist(graphs["decoder.onnx"]),
        "generate.onnx": lambda: export_generate(
            model, opset, graphs["encoder.onnx"], attention, can_skip_scores=True
        ),
        "beam.onnx": lambda: export_beam(beams, opset, graphs["encoder.onnx"]),
    }
    for done, (filename, export) in enumerate(jobs.items()):
        tell(f"exporting {filename}", done, len(jobs))
        graphs[filename] = export()
    return graphs
