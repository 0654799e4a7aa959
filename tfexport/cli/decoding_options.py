"""The decoding options of the commands, made from ``DecodingOptions``."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import Any, TypeVar

import click

from tfexport.runtime.files.input_lines import is_number
from tfexport.runtime.option_checks import Reals, Wholes
from tfexport.runtime.options import SPECS, ScoringKeywords

Command = TypeVar("Command", bound=Callable[..., Any])
Call = TypeVar("Call")

SCORING = frozenset(ScoringKeywords.__annotations__)
# Help that applies to the command line only: how tokens are written, and in which output.
_TOKENS = "Between spaces; ids with --ids."
_NOTES = {
    "suppress_tokens": _TOKENS,
    "end_tokens": _TOKENS,
    "suppress_sequences": "Ids with --ids. Repeatable.",
    "return_token_scores": "With --jsonl.",
    "return_attention": "With --jsonl.",
}
_OWN_KINDS: dict[str, dict[str, Any]] = {
    "suppress_tokens": {"metavar": "TOKENS"},
    "end_tokens": {"metavar": "TOKENS"},
    "suppress_sequences": {"metavar": "TEXT", "multiple": True},
    "batch_type": {"type": click.Choice(["rows", "tokens"])},
}


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
            if SPECS[name].default is True:
                flag = f"{flag}/--no-{flag[2:]}"
            text = " ".join(filter(None, (SPECS[name].help, _NOTES.get(name))))
            command = click.option(flag, default=None, help=text, **_kind(name))(command)
        return command

    return add


def whole_numbers(name: str) -> click.IntRange:
    """The click type of a decoding option that is a whole number."""
    bounds = SPECS[name].bounds
    assert isinstance(bounds, Wholes)
    return click.IntRange(bounds.least, bounds.most)


def _kind(name: str) -> dict[str, Any]:
    """Keywords of ``click.option`` for the type of a decoding option."""
    spec = SPECS[name]
    if isinstance(spec.bounds, Wholes):
        return {"type": whole_numbers(name)}
    if isinstance(spec.bounds, Reals):
        return {"type": float}
    if isinstance(spec.default, bool):
        return {} if spec.default else {"is_flag": True}
    return _OWN_KINDS[name]


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
    for name in ("suppress_tokens", "end_tokens"):
        if name in values:
            values[name] = _tokens(values[name], ids)
    if "suppress_sequences" in values and ids:
        values["suppress_sequences"] = [_tokens(text, ids) for text in values["suppress_sequences"]]
    return values


def _tokens(text: str, ids: bool) -> list[int | str]:
    # Pieces of the vocabulary may stand among ids.
    return [int(word) if ids and is_number(word) else word for word in text.split()]
