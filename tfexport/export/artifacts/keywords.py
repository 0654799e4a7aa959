"""Keyword arguments of the public export functions, and the option values made from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from tfexport.errors import ConfigError, Message, Option, Problem, nearest_name, shown
from tfexport.export.artifacts.option_rules import LANGUAGES
from tfexport.export.graph_options import GraphOptions
from tfexport.export.named_code import load_named
from tfexport.export.quantize.quality import require_samples
from tfexport.export.text.tokenizer_files import Splits, TokenizerFiles, choose_tokenizers
from tfexport.model_src.checkpoint.read_options import ReadOptions
from tfexport.runtime.language_tokens import LanguagePair
from tfexport.typing import PathLike


class ReadKeywords(TypedDict, total=False):
    """Keyword arguments of reading a checkpoint.

    Attributes:
        config: config values that cannot be inferred from the weights; a JSON file or a mapping.
        settings: ``key=value`` strings that override ``config``.
        layout: name of the checkpoint layout; detected by default.
        reference: code of your own to compare with, as a callable or "package.file:function",
            which is imported: ``reference(input_ids, decoder_input_ids)`` takes int64 (B, S) and
            (B, T) and gives logits or log-probabilities (B, T, V). Rows are never padded: those of
            a call have one length. Decoder ids begin with the start token.
    """

    config: PathLike | Mapping[str, Any] | None
    settings: Iterable[str]
    layout: str | None
    reference: Callable[..., Any] | str | None


class BundleKeywords(ReadKeywords, total=False):
    """Keyword arguments of ``export_bundle``.

    Attributes:
        tokenizer: for both sides; a tokenizer.json, a SentencePiece .model, a list of words, or a
            vocabulary in JSON or a pickle. Without any, one that lies beside the checkpoint is
            taken.
        source_tokenizer: for the source side alone, together with ``target_tokenizer``.
        target_tokenizer: for the target side alone.
        split: how text is split into the words of a list or vocabulary, on both sides:
            "whitespace", "basic_english" or "spacy:" and a language.
        source_split: on the source side alone.
        target_split: on the target side alone.
        output_attentions: make the cross-attention weights an output of generate.onnx.
        reads: "sentences" or "texts", the units in which a server gives the model its sources; by
            default as the checkpoint's family was trained.
        opset: of the standard operators, 18 to 25; by default 22, and 20 if ``portable``.
        portable: keep to standard operators, for other runtimes than onnxruntime.
    """

    tokenizer: PathLike | None
    source_tokenizer: PathLike | None
    target_tokenizer: PathLike | None
    split: str | None
    source_split: str | None
    target_split: str | None
    output_attentions: bool
    reads: str | None
    opset: int | None
    portable: bool


class LanguageKeywords(TypedDict, total=False):
    """Keyword arguments of samples and expected texts, for a model that is told languages.

    Attributes:
        source_language: of the samples, and of the sources in ``expect``.
        target_language: of their references, and of the texts in ``expect``.
    """

    source_language: str | None
    target_language: str | None


class WholeBundleKeywords(BundleKeywords, LanguageKeywords, total=False):
    """Keyword arguments of ``export_bundle``.

    Attributes:
        samples: a file of real source texts, one a line, or of ids where there is no tokenizer;
            they are compared besides drawn ids.
        expect: a file of lines: a source, a tab, and the text that your own code gives for it; any
            other text of the bundle is a difference, near ties aside.
    """

    samples: PathLike | None
    expect: PathLike | None


class VerifyKeywords(ReadKeywords, LanguageKeywords, total=False):
    """Keyword arguments of ``verify_bundle``; see ``WholeBundleKeywords``.

    Attributes:
        samples: real source texts, or ids; of a single file that takes ids, ids.
        expect: sources and the texts that your own code gives for them.
        level: "full", or "quick" for one drawn batch besides real inputs.
    """

    samples: PathLike | None
    expect: PathLike | None
    level: str


class QuantizedGraphKeywords(BundleKeywords, LanguageKeywords, total=False):
    """Keyword arguments of ``export_quantized_graph``.

    Attributes:
        text: text in and text out, through operators of onnxruntime-extensions; only with a
            tokenizer that these reproduce exactly.
        text_samples: text on which the tokenizer is compared, besides a built-in selection.
    """

    text: bool
    text_samples: Iterable[str]


class GraphKeywords(BundleKeywords, total=False):
    """Keyword arguments of ``export_graph``.

    Attributes:
        attention_biases: for "forward": three more inputs, added to the attention scores.
        log_probs: for "forward": a second output, the log-softmax of the logits.
        text: for "generate": text in and text out, through operators of onnxruntime-extensions;
            only with a tokenizer that these reproduce exactly.
        text_samples: text on which the tokenizer is compared, besides a built-in selection.
    """

    attention_biases: bool
    log_probs: bool
    text: bool
    text_samples: Iterable[str]


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


def read_options(given: ReadKeywords, verify: bool = True) -> ReadOptions:
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


def graph_options(given: BundleKeywords) -> GraphOptions:
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


def tokenizer_files(given: BundleKeywords, beside: Path | None) -> TokenizerFiles:
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
