"""The decoding options of the commands, made from ``DecodingOptions``."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import Any, TypeVar

import click

from tfexport.manifest import OPTIONS as OWN_OPTIONS
from tfexport.runtime.files.input_lines import is_number
from tfexport.runtime.model.engine_name import ENGINES
from tfexport.runtime.options import (
    SPECS,
    Integers,
    OneOf,
    OneToken,
    OptionSpec,
    Reals,
    ScoringKeywords,
    Sequences,
    Tokens,
)

Command = TypeVar("Command", bound=Callable[..., Any])
Call = TypeVar("Call")

SCORING = frozenset(ScoringKeywords.__annotations__)
# Additions to help texts that apply to the command line only: which output shows a result.
_NOTES = {"return_token_scores": "Needs --jsonl.", "return_attention": "Needs --jsonl."}


# The sections of a help text, and the options in each by their names in Python.
SECTIONS = {
    "Languages": ("source_language", "target_language"),
    "Search": (
        "beam_size", "num_hypotheses", "length_penalty", "coverage_penalty", "patience",
        "early_stopping", "search_rules", "exhaustive", "renormalize_logits", "beam_groups",
        "diversity_penalty",
    ),
    "Sampling": ("sampling", "temperature", "top_k", "top_p", "seed"),
    "Lengths": ("min_length", "max_length", "max_input_length", "truncate"),
    "Tokens": (
        "target_prefix", "target_prefix_file", "vocabulary_map", "first_token", "last_token",
        "end_tokens", "suppress_tokens", "suppress_first_tokens", "suppress_sequences",
        "disable_unk", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
        "repetition_penalty",
    ),
    "Results": (
        "jsonl", "alignment", "attention_plot", "replace_unknowns", "return_end_token",
        "return_alternatives", "min_alternative_probability", "return_token_scores",
        "return_attention", "attention_layer", "attention_head",
    ),
    "Speed": (
        "batch_size", "batch_type", "threads", "workers", "threads_per_worker", "batch_rows",
        "engine",
    ),
}  # fmt: skip


class DecodingCommand(click.Command):
    """A command with decoding options, which its help shows in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options without a section first."""
        placed = {name: title for title, names in SECTIONS.items() for name in names}
        lines: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Options", *SECTIONS)}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and not isinstance(param, click.Argument):
                lines[placed.get(param.name or "", "Options")].append(record)
        for title, found in lines.items():
            if found:
                with formatter.section(title):
                    formatter.write_dl(found)


def decoding_options(only: Collection[str] | None = None) -> Callable[[Command], Command]:
    """Add options for the keywords of ``DecodingOptions``; ``None`` is the default of each.

    Types, bounds and help texts come from ``DecodingOptions``. Contradictions between options are
    reported by the runtime, all in one message.

    Args:
        only: names in Python; None for all options that the command line has.
    """
    on_command_line = [name for name in SPECS if SPECS[name].help is not None]
    assert only is None or set(only) <= set(on_command_line)
    names = [name for name in on_command_line if only is None or name in only]

    def add(command: Command) -> Command:
        for name in reversed(names):
            flag = "--" + name.replace("_", "-")
            # Either way where a bundle may have its own default, which a caller overrides.
            if isinstance(SPECS[name].default, bool) and _both_ways(name):
                flag = f"{flag}/--no-{flag[2:]}"
            notes = _how_written(SPECS[name]), _NOTES.get(name)
            text = " ".join(filter(None, (SPECS[name].help, *notes)))
            command = click.option(flag, default=None, help=text, **_kind(name))(command)
        return command

    return add


def language_options(command: Command) -> Command:
    """Add the options for models with language tokens."""
    for side, what in (("target", "to translate into"), ("source", "of the input")):
        command = click.option(
            f"--{side}-language", metavar="CODE",
            help=f"The language {what}, for a multilingual model.  [default: the bundle's]",
        )(command)  # fmt: skip
    return command


def engine_option(command: Command) -> Command:
    """Add the option ``--engine``."""
    return click.option(
        "--engine", type=click.Choice(ENGINES), default="auto", show_default=True,
        help="What computes the model. auto uses the native engine (tfexport-native) if it is "
        "installed and supports the model, otherwise onnxruntime.",
    )(command)  # fmt: skip


def integer_range(name: str) -> click.IntRange:
    """The click type of a decoding option that is an integer."""
    bounds = SPECS[name].bounds
    assert isinstance(bounds, Integers)
    return click.IntRange(bounds.least, bounds.most)


def _how_written(spec: OptionSpec) -> str | None:
    """How tokens of an option are written on the command line."""
    if isinstance(spec.bounds, Tokens):
        return "Written between spaces; as ids with --ids."
    if isinstance(spec.bounds, OneToken):
        return "Written as an id with --ids."
    return "Written as ids with --ids. Repeatable." if isinstance(spec.bounds, Sequences) else None


def _kind(name: str) -> dict[str, Any]:
    """Keywords of ``click.option`` for the type of a decoding option."""
    spec = SPECS[name]
    if isinstance(spec.bounds, Integers):
        return {"type": integer_range(name)}
    if isinstance(spec.bounds, Reals):
        return {"type": float}
    if isinstance(spec.bounds, OneOf):
        return {"type": click.Choice(spec.bounds.words)}
    if isinstance(spec.bounds, Sequences):
        return {"metavar": "TEXT", "multiple": True}
    if spec.bounds is not None:
        return {"metavar": "TOKEN" if isinstance(spec.bounds, OneToken) else "TOKENS"}
    return {} if _both_ways(name) else {"is_flag": True}


def _both_ways(name: str) -> bool:
    return SPECS[name].default is True or name in OWN_OPTIONS


_NEEDED = {
    "force": "--output", "jsonl": "--output, as --json prints no lines",
    "return_end_token": "--jsonl or --ids",
}  # fmt: skip


def without_effect(values: Mapping[str, Any], has_effect: Mapping[str, bool]) -> list[str]:
    """Problems of the options that were given where they have no effect."""
    return [
        f"--{name.replace('_', '-')} needs {_NEEDED.get(name, '--jsonl')}"
        for name, effect in has_effect.items()
        if values.get(name) and not effect
    ]


def as_call(kind: Callable[..., Call], values: Mapping[str, Any]) -> Call:
    """Put the arguments and options of a command into one dataclass.

    Args:
        kind: the dataclass; options that are no field of it go into its field ``decoding``.
        values: from click, by parameter name.
    """
    own = {field.name for field in fields(kind)} - {"decoding"}  # type: ignore[arg-type]
    decoding = {name: value for name, value in values.items() if name not in own}
    return kind(**{name: values[name] for name in own}, decoding=decoding)


def given(options: Mapping[str, Any], ids: bool = False) -> dict[str, Any]:
    """The decoding options that were given, as keywords of ``DecodingOptions``."""
    values = {name: value for name, value in options.items() if value is not None and value != ()}
    for name, value in values.items():
        bounds = SPECS[name].bounds
        if isinstance(bounds, Tokens):
            values[name] = _tokens(value, ids)
        elif isinstance(bounds, OneToken):
            one = int(value) if ids and is_number(value) else value
            values[name] = None if one == "" else one
        elif isinstance(bounds, Sequences) and ids:
            values[name] = [_tokens(text, ids) for text in value]
    return values


def _tokens(text: str, ids: bool) -> list[int | str]:
    # Ids and pieces of the vocabulary may be mixed.
    return [int(word) if ids and is_number(word) else word for word in text.split()]
