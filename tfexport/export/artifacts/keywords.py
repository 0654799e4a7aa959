"""Keyword arguments of ``export`` and ``verify``, and the option values made from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from tfexport.errors import ConfigError, Message, Option, Problem, nearest_name, shown
from tfexport.export.artifacts.option_rules import LANGUAGES
from tfexport.export.graph_options import GraphOptions
from tfexport.export.modules.inputs import Input
from tfexport.export.named_code import load_named
from tfexport.export.quantization.quality import require_samples
from tfexport.export.text.tokenizer_files import Splits, TokenizerFiles, choose_tokenizers
from tfexport.model_src.checkpoint.read_options import ReadOptions
from tfexport.runtime.language_tokens import LanguagePair
from tfexport.typing import PathLike


class VerifyKeywords(TypedDict, total=False):
    """Keyword arguments of ``verify``: how the model is read, and what is compared.

    Attributes:
        config: config values that cannot be inferred from the weights; a JSON file or a mapping.
        settings: ``key=value`` strings that override ``config``.
        layout: name of the checkpoint layout; detected by default.
        reference: code of your own to compare with, as a callable or "package.file:function",
            which is imported: ``reference(input_ids, decoder_input_ids)`` takes int64 (B, S) and
            (B, T) and gives logits or log-probabilities (B, T, V). Rows are never padded: those of
            a call have one length. Decoder ids begin with the start token.
        samples: a file of real source texts, one a line, or of ids where there is no tokenizer;
            they are compared besides drawn ids. With ``text``, the tokenizer is compared on them.
            With ``quantize`` they also measure the quality of the weights, for which each line has
            a tab and a reference translation; of a module of your own they may be an ``.npz`` of
            rows then.
        expect: a file of lines: a source, a tab, and the text that your own code gives for it; any
            other text of the bundle is a difference, near ties aside.
        source_language: of the samples, and of the sources in ``expect``, for a model that is told
            it.
        target_language: of their references, and of the texts in ``expect``.
        inputs: of a module of your own: the inputs of its ``encode``, or of its ``forward`` but
            the target ids, in the order of the parameters.
        forward: of a module of your own that is taken by its forward: ``forward(model, *inputs,
            target)`` where ``model(*inputs, target)`` is not how it is called. It gives logits or
            log-probabilities (B, T, V), in the order of the target's axes, flattened, as the first
            of a tuple, or as ``.logits``.
        target: of such a module: its target ids, start token first; by default ``Input("target",
            "int64", ("batch", "target_length"))``.
        examples: of a module of your own: rows of real inputs, without the batch axis; they are
            compared too.
    """

    config: PathLike | Mapping[str, Any] | None
    settings: Iterable[str]
    layout: str | None
    reference: Callable[..., Any] | str | None
    samples: PathLike | None
    expect: PathLike | None
    source_language: str | None
    target_language: str | None
    inputs: Sequence[Input]
    forward: Callable[..., Any] | None
    target: Input
    examples: Iterable[Mapping[str, Any]]


class ExportKeywords(VerifyKeywords, total=False):
    """Keyword arguments of ``export``: what is written, besides those of ``VerifyKeywords``.

    Attributes:
        tokenizer: for both sides; a tokenizer.json, a SentencePiece .model, a list of words, or a
            vocabulary in JSON or a pickle. Without any, one next to the checkpoint is taken. Of a
            module of your own, the tokenizer of the target, and of the source if that is text;
            without any, ids only.
        source_tokenizer: for the source side alone, together with ``target_tokenizer``; of a
            module of your own, together with ``tokenizer``.
        target_tokenizer: for the target side alone.
        split: how text is split into the words of a list or vocabulary, on both sides:
            "whitespace", "basic_english" or "spacy:" and a language.
        source_split: on the source side alone.
        target_split: on the target side alone.
        reads: "sentences" or "texts", the units in which a server gives the model its sources; by
            default as the checkpoint's family was trained, of a module sentences.
        output_attentions: make the cross-attention weights an output of generate.onnx.
        attention_biases: for "forward": three more inputs, added to the attention scores.
        log_probs: for "forward": a second output, the log-softmax of the logits.
        text: for "generate": text in and text out, through operators of onnxruntime-extensions;
            only with a tokenizer that these reproduce exactly.
        opset: of the standard operators, 18 to 25; by default 22, and 20 if ``portable``.
        portable: keep to standard operators, for other runtimes than onnxruntime. A module's
            graphs have no others in any case.
        pad_id: of a module of your own: it fills rows after their end.
        bos_id: of a module of your own: the token that decoding starts from.
        eos_id: of a module of your own: the token that ends a row.
        unk_id: of a module of your own: the unknown token.
        max_length: of a module of your own: tokens that a row has at most.
        add_source_bos: of a module of your own: its encoder sees the start token before a text.
        add_source_eos: of a module of your own: its encoder sees the end token after a text.
    """

    tokenizer: PathLike | None
    source_tokenizer: PathLike | None
    target_tokenizer: PathLike | None
    split: str | None
    source_split: str | None
    target_split: str | None
    reads: str | None
    output_attentions: bool
    attention_biases: bool
    log_probs: bool
    text: bool
    opset: int | None
    portable: bool
    pad_id: int
    bos_id: int
    eos_id: int
    unk_id: int | None
    max_length: int
    add_source_bos: bool
    add_source_eos: bool


def check_keywords(function: str, given: Mapping[str, object], known: type) -> None:
    """Refuse keywords that a function does not know.

    Args:
        function: its name, for the message.
        given: the keywords it was called with.
        known: a TypedDict of those it takes.

    Raises:
        TypeError: naming the keyword, and the one that was probably meant.
    """
    names = list(known.__annotations__)
    for name in given:
        if name not in names:
            nearest = nearest_name(name, names)
            hint = "" if nearest is None else f"; did you mean {nearest!r}?"
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")


def check_expect(given: Mapping[str, Any], verify: bool) -> None:
    """Refuse inputs of a comparison that is not made.

    Raises:
        ConfigError: naming them.
    """
    if given.get("expect") is not None and not verify:
        leave = " is compared with; leave "
        raise ConfigError(Message(Option("expect"), leave, Option("verify", False), " out."))


def refuse_expected(given: Mapping[str, Any], path: Path) -> None:
    """Refuse expected texts, and languages, for a single file.

    Raises:
        ConfigError: naming them.
    """
    for name in ("expect", *LANGUAGES):
        if given.get(name) is not None:
            raise ConfigError(Message(Option(name), f" goes with a bundle, and {path} is a file."))


def language_pair_of(given: Mapping[str, Any], subject: str) -> LanguagePair:
    """The languages of real texts, from keyword arguments; ``subject`` begins the message.

    Raises:
        ConfigError: languages, and no texts that could be in them.
    """
    if given.get("samples") is None and given.get("expect") is None:
        require_samples(subject, {name: given.get(name) for name in LANGUAGES})
    return LanguagePair(given.get("source_language"), given.get("target_language"))


def read_options(given: VerifyKeywords, verify: bool = True) -> ReadOptions:
    """The options of reading the checkpoint, from keyword arguments.

    Args:
        given: the keyword arguments.
        verify: whether the export is compared.

    Raises:
        ConfigError: a reference that cannot be imported or called, or that nothing is compared
            with.
    """
    reference = given.get("reference")
    if isinstance(reference, str):
        reference = load_named(reference, "reference")
    if reference is not None and not callable(reference):
        problem = (
            f"{shown(reference)} cannot be called; expected a function or package.file:function"
        )
        raise ConfigError(Message(Problem("reference", problem)))
    if reference is not None and not verify:
        raise ConfigError(
            Message(
                Option("reference"), " is compared with; leave ", Option("verify", False), " out."
            )
        )
    return ReadOptions(
        given.get("config"), given.get("settings", ()), given.get("layout"), reference
    )


def graph_options(given: ExportKeywords) -> GraphOptions:
    """The options of the graphs, from keyword arguments.

    Raises:
        ConfigError: an opset that cannot be exported.
    """
    return GraphOptions.choose(
        given.get("opset"), given.get("portable", False), given.get("output_attentions", False)
    )


def reads_texts(given: Mapping[str, Any], usual: bool) -> str | None:
    """The value of the manifest's ``reads``.

    Args:
        given: keyword arguments.
        usual: whether its family reads whole texts.

    Raises:
        ConfigError: ``reads`` is neither "sentences" nor "texts".
    """
    asked = given.get("reads")
    if asked not in (None, "sentences", "texts"):
        raise ConfigError(Message(Option("reads"), f": {shown(asked)} is not sentences or texts"))
    texts = usual if asked is None else asked == "texts"
    return "texts" if texts else None


def tokenizer_files(given: ExportKeywords, beside: Path | None) -> TokenizerFiles:
    """The tokenizer files that are given, or those found in the folder ``beside``.

    Raises:
        ConfigError: contradictory or incomplete keyword arguments.
    """
    splits = Splits(given.get("split"), given.get("source_split"), given.get("target_split"))
    return choose_tokenizers(
        given.get("tokenizer"),
        given.get("source_tokenizer"),
        given.get("target_tokenizer"),
        beside,
        splits,
    )
