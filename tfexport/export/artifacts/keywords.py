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
from tfexport.model_src.checkpoint.files import CheckpointFiles
from tfexport.model_src.checkpoint.read_options import ReadOptions
from tfexport.runtime.text.codec import LanguagePair
from tfexport.typing import PathLike


class VerifyKeywords(TypedDict, total=False):
    """Keyword arguments of ``verify``: how the model is read, and what is compared.

    Attributes:
        config: config values that cannot be inferred from the weights; a JSON file or a mapping.
        settings: ``key=value`` strings that override ``config``.
        layout: name of the checkpoint layout; detected by default.
        rename: a table of the checkpoint's keys to names, or a JSON file of one, for a checkpoint
            that no layout reads.
        reference: your own code to compare with, as a callable or "package.file:function",
            which is imported: ``reference(input_ids, decoder_input_ids)`` takes int64 (B, S) and
            (B, T) and returns logits or log-probabilities (B, T, V). Rows are never padded: all
            rows of a call have the same length. Decoder ids start with the start token.
        samples: a file of real source texts, one per line, or of ids if there is no tokenizer;
            they are compared in addition to random ids. With ``text``, the tokenizer is compared on
            them. With ``quantize``, they also measure the quality of the weights; each line then
            has a tab and a reference translation. For a bundle, and with ``quantize``, they may be
            an ``.npz`` file of rows: of what a module takes, or ``input_ids`` and, if they are
            padded, ``attention_mask``.
        expect: a file whose lines are a source, a tab, and the text that your own code outputs for
            it; any other text from the bundle is a difference, unless it is a near tie.
        source_language: the language of ``samples`` and of the sources in ``expect``, for a model
            with language tokens.
        target_language: the language of their references, and of the texts in ``expect``.
        inputs: for a custom module: the inputs of its ``forward`` without the target ids, or of its
            ``encode``, in the order of the parameters.
        example: in place of ``inputs`` and ``target``, for a module with a ``forward``: the
            arguments of one call as tensors or arrays, the target ids last. Their types and names
            are taken, and which axes are the batch or vary is found by running ``forward``.
        forward: for a custom module: ``forward(model, *inputs, target)``, if it is not called as
            ``model(*inputs, target)``. It returns logits or log-probabilities (B, T, V), in the
            order of the target's axes, flattened, as the first of a tuple, or as ``.logits``.
        steps: for a custom module: "forward" to find encoder, cache and step in its forward, the
            default where it has one that takes the inputs and the target ids; "methods" to take
            its ``encode`` and ``decode``, or ``encode``, ``start`` and ``step`` (docs/modules.md),
            which are compared with its forward.
        target: for such a module: its target ids, start token first; by default ``Input("target",
            "int64", ("batch", "target_length"))``.
        examples: for a custom module: rows of real inputs, without the batch axis, which are
            compared, too.
    """

    config: PathLike | Mapping[str, Any] | None
    settings: Iterable[str]
    layout: str | None
    rename: PathLike | Mapping[str, Any] | None
    reference: Callable[..., Any] | str | None
    samples: PathLike | None
    expect: PathLike | None
    source_language: str | None
    target_language: str | None
    inputs: Sequence[Input]
    example: Sequence[Any] | None
    forward: Callable[..., Any] | None
    steps: str | None
    target: Input
    examples: Iterable[Mapping[str, Any]]


class ExportKeywords(VerifyKeywords, total=False):
    """Keyword arguments of ``export``, in addition to those of ``VerifyKeywords``.

    Attributes:
        tokenizer: the tokenizer of both sides: a tokenizer.json, a SentencePiece .model, a word
            list, or a vocabulary in JSON or a pickle. By default, one next to the checkpoint is
            used. For a custom module, the tokenizer of the target, and of the source if that is
            text; by default, there is none.
        source_tokenizer: the tokenizer of the source, together with ``target_tokenizer``; for a
            custom module, together with ``tokenizer``.
        target_tokenizer: the tokenizer of the target.
        split: how text is split into the words of a list or vocabulary, on both sides:
            "whitespace", "basic_english", "characters" or "spacy:" and a language.
        source_split: the same for the source only.
        target_split: the same for the target only.
        reads: "sentences" or "texts", the unit that a server passes to the model; by default what
            the checkpoint's family was trained on, and "sentences" for a module.
        output_attentions: add the cross-attention weights as an output of generate.onnx.
        attention_biases: for "forward": add three inputs, which are added to attention scores.
        log_probs: for "forward": add an output, the log-softmax of the logits.
        text: for "generate": text in and text out, through operators of onnxruntime-extensions;
            only with a tokenizer that these reproduce exactly.
        accept_loss: with ``quantize``: write the weights even if their quality is not good enough,
            as measured by ``samples`` or, of a model that reads sound or pictures, built-in ones.
        opset: the opset version of the standard operators, 18 to 25; by default 22, and 20 if
            ``portable``.
        portable: use only standard operators, for runtimes other than onnxruntime. Of custom
            modules, only those that are exported by their forward have others.
        pad_id: for a custom module: the token that fills rows after their end.
        bos_id: for a custom module: the token that decoding starts from.
        eos_id: for a custom module: the token that ends a row.
        unk_id: for a custom module: the unknown token.
        max_length: for a custom module: the maximum number of tokens of a row.
        add_source_bos: for a custom module: add the start token before a source text.
        add_source_eos: for a custom module: add the end token after a source text.
        recognise: for a custom module that is exported by its forward: export it as a Transformer
            of this project, if that computes the same; by default True. See docs/recognition.md.
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
    accept_loss: bool
    opset: int | None
    portable: bool
    pad_id: int
    bos_id: int
    eos_id: int
    unk_id: int | None
    max_length: int
    add_source_bos: bool
    add_source_eos: bool
    recognise: bool


def check_keywords(function: str, given: Mapping[str, object], known: type) -> None:
    """Refuse unknown keywords.

    Args:
        function: the name of the function, for the message.
        given: the keywords of the call.
        known: a TypedDict of the known keywords.

    Raises:
        TypeError: a keyword is unknown; the message suggests a similar one.
    """
    names = list(known.__annotations__)
    for name in given:
        if name not in names:
            nearest = nearest_name(name, names)
            hint = "" if nearest is None else f"; did you mean {nearest!r}?"
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")


def check_expect(given: Mapping[str, Any], verify: bool) -> None:
    """Refuse expected texts if nothing is compared.

    Raises:
        ConfigError: there are any.
    """
    if given.get("expect") is not None and not verify:
        omit = " is only used for the comparison; omit "
        raise ConfigError(Message(Option("expect"), omit, Option("verify", False), "."))


def refuse_expected(given: Mapping[str, Any], path: Path) -> None:
    """Refuse expected texts and languages for a single file.

    Raises:
        ConfigError: there are any.
    """
    for name in ("expect", *LANGUAGES):
        if given.get(name) is not None:
            raise ConfigError(Message(Option(name), f" requires a bundle, but {path} is a file."))


def language_pair_of(given: Mapping[str, Any], subject: str) -> LanguagePair:
    """The languages of real texts, from keyword arguments; ``subject`` begins the message.

    Raises:
        ConfigError: languages are given without texts.
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
        ConfigError: the reference cannot be imported or called, or nothing is compared.
    """
    reference = given.get("reference")
    if isinstance(reference, str):
        reference = load_named(reference, "reference")
    if reference is not None and not callable(reference):
        problem = (
            f"{shown(reference)} is not callable; expected a function or package.file:function"
        )
        raise ConfigError(Message(Problem("reference", problem)))
    if reference is not None and not verify:
        raise ConfigError(
            Message(
                Option("reference"),
                " is only used for the comparison; omit ",
                Option("verify", False),
                ".",
            )
        )
    return ReadOptions(
        given.get("config"), given.get("settings", ()), given.get("layout"), reference,
        given.get("rename"),
    )  # fmt: skip


def graph_options(given: ExportKeywords) -> GraphOptions:
    """The options of the graphs, from keyword arguments.

    Raises:
        ConfigError: the opset is not supported.
    """
    return GraphOptions.choose(
        given.get("opset"), given.get("portable", False), given.get("output_attentions", False)
    )


def reads_texts(given: Mapping[str, Any], usual: bool) -> str | None:
    """The value of the manifest's ``reads``.

    Args:
        given: keyword arguments.
        usual: whether the model's family reads texts of several sentences.

    Raises:
        ConfigError: ``reads`` is neither "sentences" nor "texts".
    """
    asked = given.get("reads")
    if asked not in (None, "sentences", "texts"):
        raise ConfigError(Message(Option("reads"), f": {shown(asked)} is not sentences or texts"))
    texts = usual if asked is None else asked == "texts"
    return "texts" if texts else None


def tokenizer_files(given: ExportKeywords, files: CheckpointFiles | None) -> TokenizerFiles:
    """The given tokenizer files, or those that are found among a checkpoint's files.

    Raises:
        ConfigError: contradictory or incomplete keyword arguments.
    """
    splits = Splits(given.get("split"), given.get("source_split"), given.get("target_split"))
    return choose_tokenizers(
        given.get("tokenizer"),
        given.get("source_tokenizer"),
        given.get("target_tokenizer"),
        files,
        splits,
    )
