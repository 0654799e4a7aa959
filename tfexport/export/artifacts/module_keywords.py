"""Arguments of ``export_module``, and which of them go together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from torch import nn

from tfexport import graph_io
from tfexport.bundle import SpecialIds
from tfexport.errors import ConfigError, Message, Option, join_problems, shown
from tfexport.export.quantize.graphs import KINDS
from tfexport.typing import PathLike, Progress


class ModuleKeywords(TypedDict, total=False):
    """Keyword arguments of ``export_module``.

    Attributes:
        unk_id: of the unknown token.
        tokenizer: of the target, and of the source if that is text; a tokenizer.json, a
            SentencePiece .model or a list of words. None: ids only.
        source_tokenizer: of a source that is text, if it is another.
        split: how text is split into the words of a list or vocabulary, on both sides; see
            ``BundleKeywords``.
        source_split: on the source side alone.
        target_split: on the target side alone.
        reads: "sentences" or "texts", the units in which a server gives the model its sources; by
            default as the sentences.
        add_source_bos: the encoder sees the start token in front of a text.
        add_source_eos: the encoder sees the end token behind a text.
        examples: rows of real inputs, without the batch axis; they are compared too.
        graph: "generate" for one self-contained file that decodes greedily; None for a bundle.
        quantize: "int8" or "int4" weights, for a bundle; None for float32.
        samples: real inputs, which are compared besides drawn ones: a file of texts or ids. Also
            those of the quality gate of ``quantize``, where they may be an ``.npz`` of rows.
        expect: a file of lines: a source, a tab, and the text that your own code gives for it.
        opset: of the standard operators, 18 to 25; by default 22, and 20 if ``portable``.
        portable: for other runtimes than onnxruntime. A module's graphs have standard operators
            only in any case.
        verify: compare with the module's own code, and fail if it differs; "quick" for less.
        force: replace what exists.
        progress: called at every step; see ``tfexport.typing``.
    """

    unk_id: int | None
    tokenizer: PathLike | None
    source_tokenizer: PathLike | None
    split: str | None
    source_split: str | None
    target_split: str | None
    reads: str | None
    add_source_bos: bool
    add_source_eos: bool
    examples: Iterable[Mapping[str, Any]]
    graph: str | None
    quantize: str | None
    samples: PathLike | None
    expect: PathLike | None
    opset: int | None
    portable: bool
    verify: bool | str
    force: bool
    progress: Progress | None


def check_form(output: PathLike, options: ModuleKeywords) -> None:
    """Refuse options that do not go together.

    Raises:
        ConfigError: naming every problem.
    """
    graph, kind = options.get("graph"), options.get("quantize")
    problems: list[str | Message] = []
    if graph not in (None, graph_io.GENERATE):
        problems.append(Message(Option("graph"), f": {shown(graph)} is not {graph_io.GENERATE!r}"))
    if graph is None and str(output).endswith(".onnx"):
        advice = "a bundle is a folder. Name a folder, or one graph with "
        problems.append(Message(f"{output}: {advice}", Option("graph", graph_io.GENERATE)))
    if kind is not None and kind not in KINDS:
        text = f": {shown(kind)} is not one of {', '.join(KINDS)}"
        problems.append(Message(Option("quantize"), text))
    if kind is not None and graph is not None:
        problems.append(Message(Option("quantize"), " goes with a bundle"))
    if kind is not None and options.get("portable"):
        text = " takes onnxruntime's own operators; leave "
        problems.append(Message(Option("quantize"), text, Option("portable"), " out"))
    for name in ("samples", "expect"):
        if options.get(name) is not None and graph is not None:
            problems.append(Message(Option(name), " goes with a bundle"))
    if problems:
        raise ConfigError(join_problems("export_module", problems))


def check_arguments(model: Any, ids: SpecialIds, max_length: Any) -> None:
    """Refuse arguments of the wrong types, and ids and lengths out of bounds.

    Raises:
        ConfigError: naming every problem.
    """
    problems: list[Message] = []
    if not isinstance(model, nn.Module):
        problems.append(Message(Option("model"), f": {shown(model)} is not a torch.nn.Module"))
    for name in ("pad", "bos", "eos", "unk"):
        value = getattr(ids, name)
        if value is None and name == "unk":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            text = f": {shown(value)} is not an integer from 0 on"
            problems.append(Message(Option(f"{name}_id"), text))
    if isinstance(max_length, bool) or not isinstance(max_length, int) or max_length < 1:
        text = f": {shown(max_length)} is not an integer from 1 on"
        problems.append(Message(Option("max_length"), text))
    if problems:
        raise ConfigError(join_problems("export_module", problems))
