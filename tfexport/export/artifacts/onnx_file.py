"""Checkpoint or live module to one self-contained .onnx file: sequencing only.

What a program needs to know of such a file travels in its metadata.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from tfexport import __version__, graph_io
from tfexport.atomic import check_new_file, new_file
from tfexport.errors import BundleError, ConfigError, ExportError
from tfexport.export.artifacts.checkpoint_source import (
    Source,
    folder_of,
    read_for_decoding,
    read_source,
)
from tfexport.export.graphs.exporter import (
    choose_opset,
    oldest_onnxruntime,
)
from tfexport.export.graphs.forward import export_forward
from tfexport.export.graphs.fused_attention import attention_class
from tfexport.export.graphs.greedy import export_generate
from tfexport.export.parity import (
    ParityReport,
    Progress,
    compare_forward,
    compare_generate,
    compare_text,
)
from tfexport.export.passes import BEFORE_SAVE
from tfexport.export.passes.share_weights import share_transposed
from tfexport.export.quantize.bundle import refuse_quantized
from tfexport.export.quantize.graphs import quantize_graphs
from tfexport.export.quiet import quiet
from tfexport.export.text.operators import OLDEST_OPSET
from tfexport.export.text.tokenizer_files import TokenizerFiles, choose_tokenizers
from tfexport.export.text.wrap import TEXTS, add_text, check_reproduced
from tfexport.model_src.checkpoint.read import Checkpoint
from tfexport.model_src.config import TransformerConfig

GRAPHS = ("generate", "forward")
_LARGEST = 2**31 - 1  # a protobuf message, and so a file with its weights inside


@dataclass(frozen=True)
class GraphResult:
    """What an export made.

    Attributes:
        path: the file.
        checkpoint: as it was understood.
        report: of the comparison with eager PyTorch; None if it was not asked for.
    """

    path: Path
    checkpoint: Checkpoint
    report: ParityReport | None


def export_graph(
    source: Source,
    output: str | os.PathLike[str],
    graph: str = "forward",
    *,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    settings: Iterable[str] = (),
    layout: str | None = None,
    attention_biases: bool = False,
    log_probs: bool = False,
    attention: bool = False,
    text: bool = False,
    tokenizer: str | os.PathLike[str] | None = None,
    source_tokenizer: str | os.PathLike[str] | None = None,
    target_tokenizer: str | os.PathLike[str] | None = None,
    samples: Iterable[str] = (),
    quantization: Callable[[], Mapping[str, Any]] | None = None,
    opset: int | None = None,
    portable: bool = False,
    verify: bool = True,
    force: bool = False,
    progress: Progress | None = None,
) -> GraphResult:
    """Export one graph as a self-contained file and compare it with eager PyTorch.

    Args:
        source: a checkpoint's path or a live module, as for ``export_bundle``. For "forward" it
            needs no special ids, and no embeddings.
        output: the .onnx file.
        graph: "generate", which decodes greedily, or "forward", which scores a whole target.
        config: values that the weights do not say.
        settings: ``key=value`` words that win over ``config``.
        layout: force a checkpoint layout.
        attention_biases: for "forward": three more inputs, added to the attention scores.
        log_probs: for "forward": a second output, the log-softmax of the logits.
        attention: for "generate": a third output, the cross-attention weights.
        text: for "generate": text in and text out, through operators of onnxruntime-extensions;
            only with a tokenizer that these reproduce exactly.
        tokenizer: for ``text``, for both sides; by default the one beside the checkpoint.
        source_tokenizer: for the source side alone, together with ``target_tokenizer``.
        target_tokenizer: for the target side alone.
        samples: text on which the tokenizer is compared, besides a built-in selection.
        quantization: for "generate": called when all comparisons have passed, gives what a
            quantised bundle's manifest says, by which the file is quantised then; see
            ``export_quantized_graph``.
        opset: of the standard operators, 18 to 25; by default 22, and 20 if ``portable``.
        portable: keep to standard operators, for other runtimes than onnxruntime.
        verify: compare with eager PyTorch, and fail if they differ.
        force: replace a file that exists.
        progress: told what is being done, and how far it is.

    Raises:
        TfexportError: as ``export_bundle``.
    """
    tell = progress or (lambda step, done, total: None)
    _check_options(graph, attention_biases or log_probs, attention or text, attention and text)
    if quantization is not None:
        _check_quantization(graph, portable)
    opset = choose_opset(opset, portable)
    if text and opset < OLDEST_OPSET:
        raise ConfigError(f"opset: text needs {OLDEST_OPSET} or more, not {opset}")
    check_new_file(output, force)
    tell("reading the checkpoint", 0, 1)
    read = read_source if graph == "forward" else read_for_decoding
    checkpoint = read(source, config, settings, layout)
    if log_probs and not checkpoint.config.has_embeddings:
        raise ConfigError("log_probs needs a vocabulary projection, and the model has none.")
    tokenizers, samples = TokenizerFiles(), list(samples)
    if text:
        tell("comparing the tokenizer", 0, 1)
        tokenizers = choose_tokenizers(
            tokenizer, source_tokenizer, target_tokenizer, folder_of(source)
        )
        check_reproduced(tokenizers, checkpoint.config, samples)
    tell(f"exporting {graph}.onnx", 0, 1)
    module = checkpoint.build(attention_class(portable, weights=attention))
    if graph == "generate":
        model = export_generate(module, opset, attention=attention)
    else:
        spec = _spec(checkpoint.config, attention_biases, log_probs)
        model = export_forward(module, opset, attention_biases, log_probs)
    share_transposed([model])
    # To quantise, weights have to be where, and called what, they are in a bundle.
    final = model if quantization is None else model.clone()
    _join_weights(model, graph)
    with new_file(output, force) as path:
        report = None
        if verify:
            ir.save(model, path)
            if graph == "generate":
                report = compare_generate(path, checkpoint, tell)
            else:
                report = compare_forward(path, spec, checkpoint, tell)
            report.require(str(output))
        if text and report is not None:
            onnx.save_model(add_text(model, tokenizers, checkpoint.config), path)
            of_text = compare_text(path, tokenizers, checkpoint, samples, tell)
            report.comparisons.extend(of_text.comparisons)
            report.require(str(output))
        record = None
        if quantization is not None:
            record = quantization()
            tell("quantising", 0, 1)
            quantize_graphs([final], record["weights"], record["kept"])
            _join_weights(final, graph)
        proto = add_text(final, tokenizers, checkpoint.config) if text else ir.to_proto(final)
        facts = _metadata(graph, checkpoint.config, opset, report, record)
        onnx.helper.set_model_props(proto, facts)
        onnx.save_model(proto, path)
    return GraphResult(Path(output), checkpoint, report)


def verify_graph(
    path: str | os.PathLike[str],
    source: Source,
    *,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    settings: Iterable[str] = (),
    layout: str | None = None,
    progress: Progress | None = None,
) -> ParityReport:
    """Compare a file of ``export_graph`` with the checkpoint that it should say the same as.

    Raises:
        TfexportError: the file or the checkpoint is unusable. A difference is not raised: it is in
            the report.
    """
    path = Path(path)
    facts = read_graph_facts(path)
    refuse_quantized(path, facts["quantization"])
    if facts["kind"] == "generate":
        checkpoint = read_for_decoding(source, config, settings, layout, facts["config"])
        if TEXTS in facts["inputs"]:
            tokenizers = choose_tokenizers(None, None, None, folder_of(source))
            return compare_text(path, tokenizers, checkpoint, progress=progress)
        return compare_generate(path, checkpoint, progress)
    checkpoint = read_source(source, config, settings, layout, defaults=facts["config"])
    names = {*facts["inputs"], *facts["outputs"]}
    spec = _spec(checkpoint.config, "cross_attention_bias" in names, graph_io.LOG_PROBS in names)
    if names != {tensor.name for tensor in (*spec.inputs, *spec.outputs)}:
        raise BundleError(f"{path}: its inputs and outputs are not those of this checkpoint.")
    return compare_forward(path, spec, checkpoint, progress)


def read_graph_facts(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a file of ``export_graph`` says about itself; it is not run.

    Raises:
        BundleError: it is no such file.
    """
    path = Path(path)
    if not path.is_file():
        raise BundleError(f"{path}: no such file.")
    try:
        model = ir.load(path)
    except Exception as error:  # whatever protobuf makes of bytes that are no graph
        raise BundleError(f"{path}: not an ONNX file, or damaged: {error}") from None
    metadata = model.metadata_props
    if metadata.get("tfexport_graph") not in GRAPHS:
        raise BundleError(f"{path}: not a graph that 'tfexport onnx --graph' wrote.")
    try:
        return _facts(model)
    except (LookupError, ValueError, RecursionError) as error:
        raise BundleError(f"{path}: its metadata is damaged: {error}") from None


def _facts(model: ir.Model) -> dict[str, Any]:
    metadata = model.metadata_props
    config = json.loads(metadata["tfexport_config"])
    if not isinstance(config, dict):
        raise ValueError("its config is not an object")
    return {
        "kind": metadata["tfexport_graph"],
        "tfexport_version": metadata["tfexport_version"],
        "needs": {"onnxruntime": metadata["tfexport_minimum_onnxruntime"]},
        "opset": dict(model.opset_imports),
        "inputs": {value.name: _shape(value) for value in model.graph.inputs},
        "outputs": {value.name: _shape(value) for value in model.graph.outputs},
        "config": config,
        "parity": json.loads(metadata["tfexport_parity"]),
        # The first files say nothing of it.
        "quantization": json.loads(metadata.get("tfexport_quantization", "null")),
    }


def _shape(value: ir.Value) -> list[int | str]:
    axes = value.shape or ()
    return [axis if isinstance(axis, int) else str(axis.value) for axis in axes]


def _check_options(graph: str, forward_only: bool, generate_only: bool, clash: bool) -> None:
    if graph not in GRAPHS:
        raise ConfigError(f"graph: {graph!r} is not one of {', '.join(map(repr, GRAPHS))}")
    if graph != "forward" and forward_only:
        raise ConfigError("attention_biases and log_probs go with the forward graph.")
    if graph != "generate" and generate_only:
        raise ConfigError("attention and text go with the generate graph.")
    if clash:
        raise ConfigError("text has no tokens that attention could be shown between; choose one.")


def _spec(config: TransformerConfig, attention_biases: bool, log_probs: bool) -> graph_io.GraphSpec:
    return graph_io.forward_graph(
        config.d_model, config.num_heads, config.target_vocab_size, attention_biases, log_probs
    )


def _check_quantization(graph: str, portable: bool) -> None:
    if graph != "generate":
        raise ConfigError("quantised weights go with a bundle or with the generate graph.")
    if portable:
        raise ConfigError("quantised weights need onnxruntime's own operators, not portable ones.")


def _join_weights(model: ir.Model, graph: str) -> None:
    """Store equal weights once, each where onnxruntime packs it."""
    with quiet():
        BEFORE_SAVE(model)
    _check_size(model, graph)


def _check_size(model: ir.Model, graph: str) -> None:
    values = (value for part in model.graphs() for value in part.initializers.values())
    size = sum(value.const_value.nbytes for value in values if value.const_value is not None)
    if size > _LARGEST:
        raise ExportError(
            f"{graph}.onnx: {size} bytes of weights do not fit into one file (2 GiB at most)."
        )


def _metadata(
    graph: str,
    config: TransformerConfig,
    opset: int,
    report: ParityReport | None,
    quantization: Mapping[str, Any] | None,
) -> dict[str, str]:
    return {
        "tfexport_graph": graph,
        "tfexport_version": __version__,
        "tfexport_minimum_onnxruntime": oldest_onnxruntime(opset),
        "tfexport_config": json.dumps(config.to_dict()),
        "tfexport_parity": json.dumps(report.summary() if report else None),
        "tfexport_quantization": json.dumps(quantization),
    }
