"""Keywords that the public functions of exporting share, and the values they become."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from tfexport.export.graph_options import GraphOptions
from tfexport.export.text.tokenizer_files import TokenizerFiles, choose_tokenizers
from tfexport.model_src.checkpoint.read_options import ReadOptions
from tfexport.paths import PathLike


class ReadKeywords(TypedDict, total=False):
    """How a checkpoint is read.

    Attributes:
        config: values that the weights do not say; a JSON file of them, or a mapping.
        settings: ``key=value`` words that win over ``config``.
        layout: force a checkpoint layout.
    """

    config: PathLike | Mapping[str, Any] | None
    settings: Iterable[str]
    layout: str | None


class BundleKeywords(ReadKeywords, total=False):
    """What ``export_bundle`` takes besides the checkpoint.

    Attributes:
        tokenizer: for both sides; a tokenizer.json, a SentencePiece .model or a list of words.
            Without any, one that lies beside the checkpoint is taken.
        source_tokenizer: for the source side alone, together with ``target_tokenizer``.
        target_tokenizer: for the target side alone.
        output_attentions: let generate.onnx give the cross-attention weights too.
        opset: of the standard operators, 18 to 25; by default 22, and 20 if ``portable``.
        portable: keep to standard operators, for other runtimes than onnxruntime.
    """

    tokenizer: PathLike | None
    source_tokenizer: PathLike | None
    target_tokenizer: PathLike | None
    output_attentions: bool
    opset: int | None
    portable: bool


class QuantizedGraphKeywords(BundleKeywords, total=False):
    """What ``export_quantized_graph`` takes besides.

    Attributes:
        text: text in and text out, through operators of onnxruntime-extensions; only with a
            tokenizer that these reproduce exactly.
        text_samples: text on which the tokenizer is compared, besides a built-in selection.
    """

    text: bool
    text_samples: Iterable[str]


class GraphKeywords(BundleKeywords, total=False):
    """What ``export_graph`` takes besides the checkpoint.

    Attributes:
        attention_biases: for "forward": three more inputs, added to the attention scores.
        log_probs: for "forward": a second output, the log-softmax of the logits.
        text: for "generate": text in and text out, through operators of onnxruntime-extensions;
            only with a tokenizer that these reproduce exactly.
        samples: text on which the tokenizer is compared, besides a built-in selection.
    """

    attention_biases: bool
    log_probs: bool
    text: bool
    samples: Iterable[str]


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
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")


def read_options(given: ReadKeywords) -> ReadOptions:
    """How to read the checkpoint."""
    return ReadOptions(given.get("config"), given.get("settings", ()), given.get("layout"))


def graph_options(given: BundleKeywords) -> GraphOptions:
    """How to write graphs.

    Raises:
        ConfigError: an opset that cannot be exported.
    """
    return GraphOptions.choose(
        given.get("opset"), given.get("portable", False), given.get("output_attentions", False)
    )


def tokenizer_files(given: BundleKeywords, beside: Path | None) -> TokenizerFiles:
    """The tokenizers that are named, or those in the checkpoint's folder.

    Raises:
        ConfigError: a contradictory or incomplete choice.
    """
    return choose_tokenizers(
        given.get("tokenizer"), given.get("source_tokenizer"), given.get("target_tokenizer"), beside
    )
