"""A module and all that its files need, read and checked before anything is exported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, cast

from torch import nn

from tfexport import graph_io
from tfexport.bundle import SpecialIds
from tfexport.errors import ConfigError, Message, Option, join_problems, shown
from tfexport.export.artifacts.keywords import check_expect, reads_texts
from tfexport.export.graph_options import GraphOptions
from tfexport.export.module_forms import ModuleBuild
from tfexport.export.modules.contract import UserModule
from tfexport.export.modules.examine import Examination, examine
from tfexport.export.modules.inputs import Input, check_examples, check_inputs
from tfexport.export.parity.module import EagerModule
from tfexport.export.parity.plan import FULL, read_level
from tfexport.export.quantization.graphs import KINDS
from tfexport.export.text.tokenizer_files import Splits, TokenizerFiles, choose_tokenizers
from tfexport.model_src.config import TransformerConfig
from tfexport.module_rows import Array
from tfexport.typing import PathLike, Progress

# Arguments of ``export_module``, and which of them go together.


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


@dataclass(frozen=True)
class ModuleContents:
    """A module, examined, and all that its files need besides.

    Attributes:
        build: the module on its way to graphs.
        options: of the graphs.
        tokenizers: checked against the vocabularies.
        config: what the manifest says of the framing of texts.
        examples: rows of real inputs.
        level: how much is compared: "full", "quick", or "" for nothing.
        reads: "texts" if the model reads them as a whole; see ``Manifest``.
    """

    build: ModuleBuild
    options: GraphOptions
    tokenizers: TokenizerFiles
    config: dict[str, Any]
    examples: Sequence[Mapping[str, Array]]
    level: str = FULL
    reads: str | None = None

    @property
    def eager(self) -> EagerModule:
        """The module in eager PyTorch."""
        build = self.build
        return EagerModule(build.found, build.special_ids, build.max_length, self.level)


def read_module(
    model: nn.Module,
    inputs: Sequence[Input],
    ids: SpecialIds,
    max_length: int,
    options: ModuleKeywords,
    tell: Progress,
) -> ModuleContents:
    """Check inputs and options, and examine the module, which is in eval mode."""
    checked = check_inputs(inputs)
    examples = check_examples(checked, options.get("examples", ()))
    graphs = GraphOptions.choose(options.get("opset"), options.get("portable", False))
    module = UserModule(model, len(checked))
    tell("running your module at several sizes", 0, 1)
    found = examine(module, checked, examples, ids, max_length)
    build = ModuleBuild(found, ids, max_length, graphs.opset)
    _check_ids(ids, found)
    tokenizers = _tokenizers(found, ids, options)
    framing = {name: options.get(name, False) for name in ("add_source_bos", "add_source_eos")}
    level = read_level(options.get("verify", True))
    check_expect(options, bool(level))
    reads = reads_texts(options, False)
    return ModuleContents(build, graphs, tokenizers, framing, examples, level, reads)


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
            ", ".join(each.name for each in found.inputs), " and no text; omit it.",
        ))  # fmt: skip
    splits = Splits(options.get("split"), options.get("source_split"), options.get("target_split"))
    if target is None:
        return choose_tokenizers(splits=splits)
    files = TokenizerFiles(Path(source or target), Path(target), *splits.sides)
    framing = options.get("add_source_bos", False), options.get("add_source_eos", False)
    files.check(_vocabularies(found, ids, framing))
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
    add_source_bos: bool
    add_source_eos: bool


def _vocabularies(
    found: Examination, ids: SpecialIds, framing: tuple[bool, bool]
) -> TransformerConfig:
    size = found.vocab_size
    source = int(found.below.get(graph_io.INPUT_IDS, size)) if found.io.takes_ids else size
    special = ids.pad, ids.bos, ids.eos, ids.unk
    return cast(TransformerConfig, _Vocabularies(source, size, *special, *framing))
