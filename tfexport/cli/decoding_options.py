"""The options that say how to decode, for every command that does."""

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
Call = TypeVar("Call")

MOST_THREADS = 1024
# The runtime's own, for --help: the command line may not load the runtime to show it.
RANGES = {
    "max-length": (0, 2**31 - 1), "min-length": (0, 2**31 - 1), "max-input-length": (1, 2**31 - 1),
    "beam-size": (1, 1024), "num-hypotheses": (1, 1024), "beam-groups": (1, 1024),
    "top-k": (0, 2**31 - 1), "seed": (0, 2**64 - 1), "no-repeat-ngram-size": (0, 2**31 - 1),
    "attention-layer": (-(2**31) + 1, 2**31 - 1), "attention-head": (0, 2**31 - 1),
    "batch-size": (1, 2**20),
}  # fmt: skip
# Contradictions are found by the runtime, all together. What is not given is left to its defaults.
_TYPED: tuple[tuple[str, type, str], ...] = (
    ("max-length", int, "Tokens a line at most.  [default: 256]"),
    ("min-length", int, "Tokens a line at least."),
    ("max-input-length", int, "Longest input in tokens.  [default: the model's own limit]"),
    ("beam-size", int, "Hypotheses followed at a time; 1 is greedy search.  [default: 1]"),
    ("num-hypotheses", int, "Hypotheses a line; each becomes an output line.  [default: 1]"),
    ("length-penalty", float, "Scores are divided by length to this power.  [default: 1]"),
    ("coverage-penalty", float, "Weight of a penalty on source tokens that were left out."),
    ("patience", float, "A beam ends with beam size times this hypotheses.  [default: 1]"),
    ("beam-groups", int, "Groups of the beam, for hypotheses that differ.  [default: 1]"),
    ("diversity-penalty", float, "What a token loses for every group that chose it before."),
    ("temperature", float, "Of sampling.  [default: 1]"),
    ("top-k", int, "Sample among this many best tokens."),
    ("top-p", float, "Sample among the fewest tokens of this probability."),
    ("seed", int, "Of sampling; the same one gives the same lines."),
    ("no-repeat-ngram-size", int, "No run of this many tokens comes twice."),
    ("repetition-penalty", float, "Above 1, tokens that came before become less likely."),
    ("min-alternative-probability", float, "Of the first token of an alternative."),
    ("attention-layer", int, "Decoder layer of the attention.  [default: -1, the last]"),
    ("attention-head", int, "Head of the attention.  [default: the mean over all]"),
    ("batch-size", int, "Lines (or tokens) decoded together; 1 answers every line as it comes.  "
     "[default: 32]"),
)  # fmt: skip
_FLAGS = (
    ("sampling", "Draw tokens at random instead of taking the best."),
    ("disable-unk", "Never choose the unknown token."),
    ("return-end-token", "Keep the end token."),
    ("return-alternatives", "The best first tokens, each with its best continuation."),
    ("return-token-scores", "With --jsonl: the log-probability of every token."),
    ("return-attention", "With --jsonl: attention and alignment."),
    ("replace-unknowns", "Put the aligned source word for the unknown token."),
    ("truncate", "Cut lines that are too long, instead of refusing them."),
)
_TOKENS = (
    ("suppress-tokens", "Never choose these, e.g. '▁Herr ▁Frau'."),
    ("end-tokens", "End a line at these instead of the model's own end token."),
)
SCORING = frozenset({
    "length-penalty", "coverage-penalty", "attention-layer", "attention-head", "max-input-length",
    "batch-size", "batch-type", "truncate", "return-token-scores", "return-attention",
    "return-end-token",
})  # fmt: skip


def decoding_options(only: frozenset[str] | None = None) -> Callable[[Command], Command]:
    """Options whose values are the keywords of ``DecodingOptions``, ``None`` where not given.

    Args:
        only: names; None for all.
    """
    options: list[tuple[str, dict[str, Any]]] = [
        *(
            (name, {"type": click.IntRange(*RANGES[name]) if kind is int else kind, "help": text,
                    "default": None})
            for name, kind, text in _TYPED
        ),
        ("early-stopping/--no-early-stopping", {
            "default": None,
            "help": "Without, a beam goes on until no hypothesis can come in any more."}),
        *(
            (name, {"is_flag": True, "default": None, "help": text}) for name, text in _FLAGS
        ),
        *(
            (name, {"metavar": "TOKENS", "default": None,
                    "help": f"{text} Between spaces; ids with --ids."})
            for name, text in _TOKENS
        ),
        ("suppress-sequences", {
            "metavar": "TEXT", "multiple": True, "default": None,
            "help": "Never write this; ids with --ids. Repeatable."}),
        ("batch-type", {
            "type": click.Choice(["rows", "tokens"]), "default": None,
            "help": "What --batch-size counts.  [default: rows]"}),
    ]  # fmt: skip

    def add(command: Command) -> Command:
        for name, settings in reversed(options):
            if only is None or name in only:
                command = click.option(f"--{name}", **settings)(command)
        return command

    return add


def as_call(kind: Callable[..., Call], values: Mapping[str, Any]) -> Call:
    """The values of a command line as one: a dataclass with a field for each option of its own.

    Args:
        kind: the dataclass; its field ``decoding`` takes all that is left.
        values: from click, by the names of the command's parameters.
    """
    own = {field.name for field in fields(kind)} - {"decoding"}  # type: ignore[arg-type]
    decoding = {name: value for name, value in values.items() if name not in own}
    return kind(**{name: values[name] for name in own}, decoding=decoding)


def given(options: Mapping[str, Any], ids: bool = False) -> dict[str, Any]:
    """The options of a command line as keywords of ``DecodingOptions``, without those not given."""
    values = {name: value for name, value in options.items() if value is not None and value != ()}
    for name in ("suppress_tokens", "end_tokens"):
        if name in values:
            values[name] = _tokens(values[name], ids)
    if "suppress_sequences" in values and ids:
        values["suppress_sequences"] = [_tokens(text, ids) for text in values["suppress_sequences"]]
    return values


def _tokens(text: str, ids: bool) -> list[int | str]:
    return [
        int(word) if ids and re.fullmatch(r"-?[0-9]{1,18}", word) else word for word in text.split()
    ]
