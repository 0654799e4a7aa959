"""Checks of decoding options: invalid values, and contradictions between valid ones."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from tfexport.errors import Message, Option, Problem, shown
from tfexport.near_names import nearest_name

Token = int | str


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether a value is an integer; booleans are not."""
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class Wholes:
    """Whole numbers between two bounds, both of them included."""

    least: int
    most: int

    def problem(self, value: Any) -> str | None:
        """Say why a value is invalid; None for a valid one."""
        if not is_whole(value):
            return f"{shown(value)} is not an integer"
        if value < self.least:
            return f"{shown(value)} is less than {self.least}"
        return f"{shown(value)} is more than {self.most}" if value > self.most else None


@dataclass(frozen=True)
class Reals:
    """Real numbers between two bounds.

    Attributes:
        low: the lower bound.
        high: the upper bound, included.
        inclusive: whether the lower one is included.
    """

    low: float
    high: float
    inclusive: bool = True

    def problem(self, value: Any) -> str | None:
        """Say why a value is invalid; None for a valid one."""
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            return f"{shown(value)} is not a number"
        low, high = self.low, self.high
        if low < value <= high or (self.inclusive and value == low):
            return None
        if self.inclusive:
            return f"{shown(value)} is not between {low:g} and {high:g}"
        return f"{shown(value)} is not {f'above {low:g}' if value <= low else f'at most {high:g}'}"


@dataclass(frozen=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    def problem(self, value: Any) -> str | None:
        """Say why a value is invalid; None for a valid one."""
        if isinstance(value, str) and value in self.words:
            return None
        return f"{shown(value)} is not {' or '.join(map(repr, self.words))}"


@dataclass(frozen=True)
class OneToken:
    """An id, or a token as the vocabulary writes it."""

    def problem(self, value: Any) -> str | None:
        """Say why a value is invalid; None for a valid one."""
        if isinstance(value, Token) and not isinstance(value, bool):
            return None
        return f"{shown(value)} is neither an id nor a token"


@dataclass(frozen=True)
class Tokens:
    """A list of ids and tokens."""

    def problem(self, value: Any) -> str | None:
        """Say why a value is invalid; None for a valid one."""
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            return f"{shown(value)} is not a list of tokens"
        return next(filter(None, map(OneToken().problem, value)), None)


@dataclass(frozen=True)
class Sequences:
    """A list of sequences, each a text or a list of ids and tokens."""

    def problem(self, value: Any) -> str | None:
        """Say why a value is invalid; None for a valid one."""
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            return f"{shown(value)} is not a list of sequences"
        for sequence in value:
            if not isinstance(sequence, str) and (problem := Tokens().problem(sequence)):
                return problem
            if not sequence:
                return "an empty sequence would ban every token"
        return None


Bounds = Wholes | Reals | Choice | OneToken | Tokens | Sequences


@dataclass(frozen=True)
class OptionSpec:
    """The declaration of an option, apart from its name and type.

    Attributes:
        default: the default value.
        help: help text on the command line; None for an option of Python only.
        bounds: which values it takes; None for true or false, and for a function.
    """

    default: Any
    help: str | None
    bounds: Bounds | None = None


def option(default: Any, help: str | None, bounds: Bounds | None = None) -> Any:  # noqa: A002
    """Declare an option as a dataclass field; see ``OptionSpec``."""
    return field(default=default, metadata={"spec": OptionSpec(default, help, bounds)})


_NEEDS_BEAM = (
    "patience", "early_stopping", "exhaustive", "coverage_penalty", "beam_groups",
    "renormalize_logits",
)  # fmt: skip
# Beams by the rules of transformers have none of these.
_OWN_BEAMS = ("patience", "coverage_penalty", "beam_groups")
_NEEDS_SAMPLING = ("temperature", "top_k", "top_p", "seed")


def unknown_options(given: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[Problem]:
    """A problem for each keyword that is no option."""
    for key in given:
        if key not in known:
            near = nearest_name(str(key), known)
            hint = f"did you mean {near!r}?" if near else f"known: {', '.join(known)}"
            yield Problem(None, f"unknown option {shown(key)}; {hint}")


def find_problems(given: Mapping[str, Any], specs: Mapping[str, OptionSpec]) -> Iterator[Problem]:
    """Find invalid values, each with its option, and contradictions between valid ones.

    Args:
        given: options by name; unknown ones are skipped.
        specs: of all options.
    """
    defaults = {name: spec.default for name, spec in specs.items()}
    values = {**defaults, **{name: given[name] for name in given if name in defaults}}
    bad = {
        name: problem
        for name, value in values.items()
        if (problem := _bad_value(name, value, specs[name]))
    }
    yield from (Problem(name, problem) for name, problem in bad.items())
    # A bad value is reported once: contradictions are looked for with its default instead.
    sound = {**values, **{name: defaults[name] for name in bad}}
    for text in _contradictions(sound, changed_from(defaults, sound)):
        yield Problem(None, text)


def changed_from(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> set[str]:
    """Names of the options whose values are not their defaults; the values must be valid."""
    return {
        name
        for name, value in values.items()
        if value is not defaults[name] and (callable(value) or value != defaults[name])
    }


def _bad_value(name: str, value: Any, spec: OptionSpec) -> str | None:
    if spec.bounds is not None:
        return None if value is None and spec.default is None else spec.bounds.problem(value)
    if isinstance(spec.default, bool):
        return None if isinstance(value, bool) else f"{shown(value)} is not true or false"
    if name == "callback" and value is not None and not callable(value):
        return f"{shown(value)} cannot be called"
    return None


def _needs(name: str, needed: str, how: str = "") -> Message:
    return Message(Option(name), " needs ", Option(needed), how)


def _contradictions(values: Mapping[str, Any], changed: AbstractSet[str]) -> Iterator[Message]:
    yield from _search_contradictions(values, changed)
    yield from _rules_contradictions(values, changed)
    beam, groups = values["beam_size"], values["beam_groups"]
    if "patience" in changed and not values["early_stopping"]:
        yield _needs("patience", "early_stopping")
    if "diversity_penalty" in changed and groups == 1:
        yield _needs("diversity_penalty", "beam_groups", " above 1")
    if beam > 1 and beam % groups:
        yield _two("beam_groups", groups, "does not divide", "beam_size", beam)
    least, most = values["min_length"], values["max_length"]
    if least > most:
        yield _two("min_length", least, "exceeds", "max_length", most)
    if "min_alternative_probability" in changed and not values["return_alternatives"]:
        yield _needs("min_alternative_probability", "return_alternatives")
    if not changed & {"return_attention", "replace_unknowns", "coverage_penalty"}:
        for name in sorted(changed & {"attention_layer", "attention_head"}):
            yield Message(
                Option(name), " needs ", Option("return_attention"), ", ",
                Option("replace_unknowns"), " or ", Option("coverage_penalty"),
            )  # fmt: skip


def _search_contradictions(
    values: Mapping[str, Any], changed: AbstractSet[str]
) -> Iterator[Message]:
    """Between greedy search, sampling and beam search."""
    beam, count = values["beam_size"], values["num_hypotheses"]
    if values["sampling"]:
        if beam > 1:
            yield Message(Option("beam_size"), f" {beam} excludes ", Option("sampling"))
    else:
        yield from (_needs(name, "sampling") for name in _NEEDS_SAMPLING if name in changed)
        if count > beam and not values["return_alternatives"]:
            yield _two("num_hypotheses", count, "exceeds", "beam_size", beam)
    if beam == 1:
        yield from (
            _needs(name, "beam_size", " above 1") for name in _NEEDS_BEAM if name in changed
        )
    elif values["callback"] is not None:
        yield Message(
            Option("callback"), " excludes ", Option("beam_size"),
            f" {beam}: a beam's tokens are not known before its end",
        )  # fmt: skip


def _rules_contradictions(
    values: Mapping[str, Any], changed: AbstractSet[str]
) -> Iterator[Message]:
    """Between the rules of a beam search and options that only one set of rules has."""
    if values["search_rules"] == "tfexport":
        for name in sorted(changed & {"exhaustive", "renormalize_logits"}):
            yield Message(Option(name), " needs ", Option("search_rules", "transformers"))
    else:
        for name in _OWN_BEAMS:
            if name in changed:
                yield Message(Option(name), " needs ", Option("search_rules", "tfexport"))
    if "exhaustive" in changed and values["early_stopping"]:
        yield Message(Option("exhaustive"), " needs ", Option("early_stopping", False))


def _two(name: str, value: object, verb: str, other: str, others: object) -> Message:
    return Message(Option(name), f" {value} {verb} ", Option(other), f" {others}")
