"""Export of a model of transformers that no layout reads, by its own forward."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tfexport.errors import ConfigError, Message, Option, TokenizerError, join_problems
from tfexport.export.artifacts.checkpoint_source import check_greedy_defaults
from tfexport.export.artifacts.keywords import ExportKeywords, VerifyKeywords
from tfexport.export.artifacts.module import export_known, verify_module
from tfexport.export.artifacts.module_source import ModuleFacts
from tfexport.export.artifacts.option_rules import (
    BUNDLE,
    GENERATE,
    TOKENIZERS,
    Output,
)
from tfexport.export.artifacts.preprocessing import Preprocessing, find_preprocessing
from tfexport.export.artifacts.results import ExportResult
from tfexport.export.artifacts.transformers_call import TransformersModel
from tfexport.export.artifacts.transformers_source import find_tokenizer, read_transformers
from tfexport.export.report import ParityReport
from tfexport.export.text.model_tokenizers import InstalledTokenizer
from tfexport.model_src.checkpoint.overrides import parse_settings
from tfexport.model_src.checkpoint.read_options import CheckpointLike
from tfexport.typing import Progress

_LENGTH = "max_length"
# Options of checkpoints that a model without a layout does not have.
_NOT_THERE = (
    "config",
    "rename",
    "reference",
    "output_attentions",
    "attention_biases",
    "log_probs",
    "text",
)


def export_transformers(
    checkpoint: CheckpointLike, values: Mapping[str, Any], output: Output, options: ExportKeywords
) -> ExportResult:
    """Export a model by its own forward; see ``export``.

    Args:
        checkpoint: as ``export`` takes it.
        values: of its config.json; see ``find_transformers``.
        output: what is written.
        options: of ``export``.

    Raises:
        ConfigError: options that do not apply; all are listed.
    """
    settings = check_options(options, _output_problems(output))
    output.progress("reading the model with transformers", 0, 1)
    found = read_transformers(checkpoint, values, settings)
    if output.kind != BUNDLE:
        check_greedy_defaults(found.name, found.generation.defaults)
    texts = None if output.kind != BUNDLE or _named(options) else find_tokenizer(found, values)
    before = find_preprocessing(found) if output.kind == BUNDLE else Preprocessing()
    facts = ModuleFacts(
        found.special, found.max_length, found.generation, preprocessing=before.part
    )
    given = _as_module(found, options)
    if texts is not None:
        facts = dataclasses.replace(facts, tokenizers=texts.tokenizers)
        if found.takes_ids:
            facts, framing = _framed(facts, texts)
            given |= framing
    made = export_known(found.model, facts, output, given)
    return dataclasses.replace(made, notes=(*made.notes, *found.notes, *before.notes))


def _named(options: Mapping[str, Any]) -> bool:
    """Whether the caller names a tokenizer."""
    return any(options.get(name) is not None for name in TOKENIZERS)


def _framed(facts: ModuleFacts, texts: InstalledTokenizer) -> tuple[ModuleFacts, dict[str, bool]]:
    """The special ids and the options for the tokens around a source text.

    Raises:
        TokenizerError: there are others than a start and an end token.
    """
    before, after, special = texts.before, texts.after, facts.special
    if len(before) > 1 or after not in ((), (special.eos,)):
        raise TokenizerError(Message(
            f"{texts.tokenizers.folder}: its tokenizer adds the ids {[*before]} before a text "
            f"and {[*after]} after it; a bundle adds one id before it, and the end token "
            f"{special.eos} after it. Pass a tokenizer file with ", Option("tokenizer"),
            ", or remove its files for a bundle of ids.",
        ))  # fmt: skip
    if before:
        # The start token of a text; that of decoding is ``start``.
        special = dataclasses.replace(special, bos=before[0])
    framing = {"add_source_bos": bool(before), "add_source_eos": bool(after)}
    return dataclasses.replace(facts, special=special), framing


def verify_transformers(
    path: Path,
    checkpoint: CheckpointLike,
    values: Mapping[str, Any],
    level: str,
    options: VerifyKeywords,
    progress: Progress,
) -> ParityReport:
    """Compare a bundle with the forward of the model that it was exported from; see ``verify``."""
    found = read_transformers(checkpoint, values, check_options(options))
    return verify_module(path, found.model, level, _as_module(found, options), progress)


def _as_module(found: TransformersModel, options: Mapping[str, Any]) -> Any:
    """The options of a custom module's export."""
    kept = {name: value for name, value in options.items() if name not in ("settings", "layout")}
    return {
        **kept, "inputs": found.inputs, "forward": found, "examples": found.examples
    }  # fmt: skip


def _output_problems(output: Output) -> Iterator[Message]:
    """A problem for each option of the output that this export does not support."""
    if output.kind not in (BUNDLE, GENERATE):
        text = f": {output.kind!r} is not available for it; omit it, or use {GENERATE!r}"
        yield Message(Option("graph"), text)
    elif output.kind == GENERATE and output.weights is not None:
        yield Message(Option("quantize"), " requires a bundle; omit ", Option("graph"))


def check_options(options: Mapping[str, Any], others: Iterable[Message] = ()) -> Mapping[str, Any]:
    """Refuse options that do not apply.

    Args:
        options: by name.
        others: problems of the caller, for the same message.

    Returns:
        The settings.

    Raises:
        ConfigError: there are problems; all are listed.
    """
    problems = [*others]
    problems += [
        Message(Option(name), " applies to checkpoints that a layout reads")
        for name in _NOT_THERE
        if options.get(name)
    ]
    settings = parse_settings(options.get("settings", ()))
    problems += [
        Message(Option("settings", [f"{name}={value}"]), f": only {_LENGTH} can be set")
        for name, value in settings.items()
        if name != _LENGTH
    ]
    length = settings.get(_LENGTH, 1)
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        given = Option("settings", [f"{_LENGTH}={length}"])
        problems.append(Message(given, ": not a positive integer"))
    if problems:
        subject = "a model of transformers that no layout reads is exported by its own forward"
        raise ConfigError(join_problems(subject, problems))
    return settings
