"""Decoding options: names, types, bounds, defaults and checks."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields
from inspect import Parameter, signature
from typing import Any, NamedTuple, TypedDict, TypeGuard, TypeVar

from tfexport.errors import (
    ConfigError,
    Message,
    Option,
    Problem,
    join_problems,
    nearest_name,
    shown,
)
from tfexport.typing import Self


class Step(NamedTuple):
    """One token of one row, as a callback sees it.

    Attributes:
        row: index of the input, from 0.
        hypothesis: index of its sample, from 0.
        position: the position of the token in the output, from 0.
        token: its id, which may be that of the end token.
        log_prob: its natural-log probability.
        last: whether the row ends with this token.
    """

    row: int
    hypothesis: int
    position: int
    token: int
    log_prob: float
    last: bool


Call = TypeVar("Call", bound=Callable[..., Any])
Token = int | str

SUBJECT = "decoding options"
_LONGEST = 2**31 - 1  # tokens, far above what memory allows
_WIDEST = 1024  # hypotheses of one row, each with its own cache
# Options that return more of a row than one translation and its score.
GIVING_MORE = (
    "num_hypotheses", "return_attention", "return_token_scores", "return_alternatives", "callback",
)  # fmt: skip
ATTENTION_OPTIONS = frozenset({"return_attention", "replace_unknowns", "coverage_penalty"})
NEEDS_BEAM = (
    "patience", "early_stopping", "exhaustive", "coverage_penalty", "beam_groups",
    "renormalize_logits",
)  # fmt: skip
# Options that only one of the two ``search_rules`` has.
OWN_RULES = ("patience", "coverage_penalty", "beam_groups")
TRANSFORMERS_RULES = ("exhaustive", "renormalize_logits")
NEEDS_SAMPLING = ("temperature", "top_k", "top_p", "seed")


def is_integer(value: Any) -> TypeGuard[int]:
    """Whether a value is an integer; booleans are not."""
    return isinstance(value, int) and not isinstance(value, bool)


class Integers(NamedTuple):
    """Integers between two bounds, both included."""

    least: int
    most: int

    def problem(self, value: Any) -> str | None:
        """State why a value is invalid; None for a valid one."""
        if not is_integer(value):
            return f"{shown(value)} is not an integer"
        if value < self.least:
            return f"{shown(value)} is less than {self.least}"
        return f"{shown(value)} is more than {self.most}" if value > self.most else None


class Reals(NamedTuple):
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
        """State why a value is invalid; None for a valid one."""
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            return f"{shown(value)} is not a number"
        low, high = self.low, self.high
        if low < value <= high or (self.inclusive and value == low):
            return None
        if self.inclusive:
            return f"{shown(value)} is not between {low:g} and {high:g}"
        return f"{shown(value)} is not {f'above {low:g}' if value <= low else f'at most {high:g}'}"


class OneOf(NamedTuple):
    """One of several words."""

    words: tuple[str, ...]

    def problem(self, value: Any) -> str | None:
        """State why a value is invalid; None for a valid one."""
        if isinstance(value, str) and value in self.words:
            return None
        return f"{shown(value)} is not {' or '.join(map(repr, self.words))}"


class OneToken:
    """An id, or a token as the vocabulary writes it."""

    def problem(self, value: Any) -> str | None:
        """State why a value is invalid; None for a valid one."""
        if isinstance(value, Token) and not isinstance(value, bool):
            return None
        return f"{shown(value)} is neither an id nor a token"


class Tokens:
    """A list of ids and tokens."""

    def problem(self, value: Any) -> str | None:
        """State why a value is invalid; None for a valid one."""
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            return f"{shown(value)} is not a list of tokens"
        return next(filter(None, map(OneToken().problem, value)), None)


class Sequences:
    """A list of sequences, each a text or a list of ids and tokens."""

    def problem(self, value: Any) -> str | None:
        """State why a value is invalid; None for a valid one."""
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            return f"{shown(value)} is not a list of sequences"
        for sequence in value:
            if not isinstance(sequence, str) and (problem := Tokens().problem(sequence)):
                return problem
            if not sequence:
                return "an empty sequence would ban every token"
        return None


Bounds = Integers | Reals | OneOf | OneToken | Tokens | Sequences


class OptionSpec(NamedTuple):
    """The declaration of an option, without its name and type.

    Attributes:
        default: the default value.
        help: help text on the command line; None for an option of Python only.
        bounds: its valid values; None for booleans and functions.
    """

    default: Any
    help: str | None
    bounds: Bounds | None = None

    def problem(self, value: Any) -> str | None:
        """State why a value is invalid; None for a valid one."""
        if value is None and self.default is None:
            return None
        if self.bounds is not None:
            return self.bounds.problem(value)
        if isinstance(self.default, bool):
            return None if isinstance(value, bool) else f"{shown(value)} is not true or false"
        return None if callable(value) else f"{shown(value)} cannot be called"


def option(default: Any, help: str | None, bounds: Bounds | None = None) -> Any:  # noqa: A002
    """Declare an option as a dataclass field; see ``OptionSpec``."""
    return field(default=default, metadata={"spec": OptionSpec(default, help, bounds)})


class _NamedOptions:
    """Remembers which options a caller named, because they override a bundle's own defaults."""

    __slots__ = ("said",)  # not in the instance's dictionary, which callers may read
    said: frozenset[str]

    def __new__(cls, *values: Any, **keywords: Any) -> Self:
        made = super().__new__(cls)
        # ``dataclasses.replace`` passes every option, so in a copy none counts as named.
        said = keywords.keys() | {*list(DEFAULTS)[: len(values)]} if values else keywords.keys()
        object.__setattr__(
            made, "said", frozenset(said) if len(said) < len(DEFAULTS) else frozenset()
        )
        return made

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the fields only: in a copy no option counts as named."""
        return vars(self)


class ScoringKeywords(TypedDict, total=False):
    """The options that act on a given target, as keywords of ``Translator.score``."""

    length_penalty: float
    coverage_penalty: float
    max_input_length: int | None
    return_end_token: bool
    return_token_scores: bool
    return_attention: bool
    attention_layer: int
    attention_head: int | None
    batch_size: int
    batch_type: str
    truncate: bool


class DecodingKeywords(ScoringKeywords, total=False):
    """All decoding options, as keywords of a call; see ``DecodingOptions``."""

    beam_size: int
    num_hypotheses: int
    patience: float
    early_stopping: bool
    search_rules: str
    exhaustive: bool
    renormalize_logits: bool
    beam_groups: int
    diversity_penalty: float
    sampling: bool
    temperature: float
    top_k: int
    top_p: float
    seed: int | None
    min_length: int
    max_length: int
    no_repeat_ngram_size: int
    encoder_no_repeat_ngram_size: int
    repetition_penalty: float
    suppress_tokens: Sequence[Token]
    suppress_first_tokens: Sequence[Token]
    suppress_sequences: Sequence[Sequence[Token] | str]
    first_token: Token | None
    last_token: Token | None
    disable_unk: bool
    end_tokens: Sequence[Token]
    return_alternatives: bool
    min_alternative_probability: float
    return_scores: bool
    replace_unknowns: bool
    callback: Callable[[Step], object] | None


class TranslationKeywords(DecodingKeywords, total=False):
    """The decoding options, and the languages of the texts."""

    source_language: str | None
    target_language: str | None


@dataclass(frozen=True)
class DecodingOptions(_NamedOptions):
    """Options of decoding; docs/decoding.md has every definition.

    A token is an id, or a piece of text that the target tokenizer knows as one token.

    Attributes:
        beam_size: active hypotheses of a beam; 1 is greedy search.
        num_hypotheses: hypotheses to return, best first.
        length_penalty: a score is the summed log-probability divided by length to this power.
        coverage_penalty: weight of a penalty on source positions that no token attended to.
        patience: early stopping ends a beam with ``beam_size * patience`` finished hypotheses.
        early_stopping: false continues a beam until no better hypothesis is possible.
        search_rules: "tfexport", or "transformers" for a search that ranks, stops, penalises and
            bans as that library does.
        exhaustive: by transformers' rules, with ``early_stopping`` false: continue a beam until no
            better hypothesis is possible, not only until none is likely.
        renormalize_logits: by transformers' rules, in a beam: make what penalties and bans left
            probabilities again.
        beam_groups: groups of a diverse beam search.
        diversity_penalty: subtracted from a token's score for each earlier group that chose it at
            the same step.
        sampling: draw tokens at random instead of taking the best.
        temperature: divides the logits before a draw.
        top_k: sample from this many most probable tokens; 0 for all.
        top_p: sample from the smallest set of most probable tokens with this total probability.
        seed: the seed of the random numbers; the same seed gives the same results.
        min_length: tokens of a row at least, without the end token.
        max_length: tokens of a row at most, without the start token; bounded by the model's own
            limit.
        max_input_length: longest input in tokens, special tokens included; None for the model's
            own limit.
        no_repeat_ngram_size: no n-gram of this size occurs twice; 0 allows all.
        encoder_no_repeat_ngram_size: no n-gram of this size is one of the source's; 0 allows all.
        repetition_penalty: divides positive logits of earlier tokens, and multiplies negative ones.
        suppress_tokens: tokens that are never chosen.
        suppress_first_tokens: tokens that are never chosen first.
        suppress_sequences: sequences of tokens, or texts, that are never completed.
        first_token: the token that every row starts with.
        last_token: the token that ends a row of ``max_length`` tokens.
        disable_unk: never choose the unknown token.
        end_tokens: tokens that end a row, instead of the model's own end token.
        return_end_token: keep the end token in the tokens of a hypothesis.
        return_alternatives: return the ``num_hypotheses`` most probable tokens after the prefix,
            each with its best continuation.
        min_alternative_probability: least probability of the first token of an alternative.
        return_scores: false leaves scores out, as NaN; greedy search with no other options is then
            faster.
        return_token_scores: return the log-probability of every token.
        return_attention: return the cross-attention of every token.
        attention_layer: decoder layer of the attention, from 0; negative ones count from the last.
        attention_head: head of the attention; None for the mean over all.
        replace_unknowns: replace unknown tokens in text by the source token they attended to most.
        callback: called with every ``Step``; a row ends if it returns true.
        batch_size: size of a batch, counted as ``batch_type`` specifies.
        batch_type: "rows", or "tokens": rows times the length of the longest source.
        truncate: cut inputs that are too long instead of refusing them.
    """

    beam_size: int = option(
        1, "Size of the beam; 1 is greedy search.  [default: 1]", Integers(1, _WIDEST)
    )
    num_hypotheses: int = option(
        1, "Hypotheses per line; each is an output line.  [default: 1]", Integers(1, _WIDEST)
    )
    # A length to the power of ten times this is still a float.
    length_penalty: float = option(
        1.0, "Scores are divided by length to this power.  [default: 1]", Reals(-10.0, 10.0)
    )
    coverage_penalty: float = option(
        0.0, "Weight of a penalty on untranslated source tokens.", Reals(0.0, 1e6)
    )
    patience: float = option(
        1.0,
        "Beam search stops after patience times beam size finished hypotheses.  [default: 1]",
        Reals(0.0, 1e6, inclusive=False),
    )
    early_stopping: bool = option(
        True, "Stop beams early; otherwise continue while a better hypothesis is possible."
    )
    search_rules: str = option(
        "tfexport",
        "Rules of ranking, stopping, penalties and bans.  [default: the bundle's, else tfexport]",
        OneOf(("tfexport", "transformers")),
    )
    exhaustive: bool = option(
        False, "With transformers' rules: continue while a better hypothesis is possible."
    )
    renormalize_logits: bool = option(
        False, "With transformers' rules: normalise scores after penalties and bans."
    )
    beam_groups: int = option(
        1, "Groups of diverse beam search.  [default: 1]", Integers(1, _WIDEST)
    )
    diversity_penalty: float = option(
        0.0, "Penalty on a token for each group that chose it before.", Reals(0.0, 1e6)
    )
    sampling: bool = option(False, "Sample tokens instead of taking the best.")
    temperature: float = option(
        1.0,
        "Sampling divides the logits by this; values below 1 favour the best tokens.  [default: 1]",
        Reals(0.0, 1e6, inclusive=False),
    )
    top_k: int = option(0, "Sample from this many best tokens.", Integers(0, _LONGEST))
    top_p: float = option(
        1.0, "Sample from the fewest tokens with this total probability.", Reals(0.0, 1.0)
    )
    seed: int | None = option(
        None, "Seed of sampling; the same seed gives the same lines.", Integers(0, 2**64 - 1)
    )
    min_length: int = option(0, "Minimum number of tokens per line.", Integers(0, _LONGEST))
    max_length: int = option(
        256, "Maximum number of tokens per line.  [default: 256]", Integers(0, _LONGEST)
    )
    max_input_length: int | None = option(
        None,
        "Maximum length of the input in tokens.  [default: the model's limit]",
        Integers(1, _LONGEST),
    )
    no_repeat_ngram_size: int = option(
        0, "No n-gram of this many tokens occurs twice.", Integers(0, _LONGEST)
    )
    encoder_no_repeat_ngram_size: int = option(
        0, "No n-gram of this many source tokens occurs in the target.", Integers(0, _LONGEST)
    )
    # Beyond, logits leave the range of float32.
    repetition_penalty: float = option(
        1.0, "Above 1, tokens that occurred before become less likely.", Reals(1e-3, 1e3)
    )
    suppress_tokens: Sequence[Token] = option(
        (), "Never choose these tokens, e.g. '▁Herr ▁Frau'.", Tokens()
    )
    suppress_first_tokens: Sequence[Token] = option((), "Never start a line with these.", Tokens())
    suppress_sequences: Sequence[Sequence[Token] | str] = option(
        (), "Never write this sequence of tokens.", Sequences()
    )
    first_token: Token | None = option(
        None, "Force this token to be the first of every line.", OneToken()
    )
    last_token: Token | None = option(None, "Force this token at the maximum length.", OneToken())
    disable_unk: bool = option(False, "Never choose the unknown token.")
    end_tokens: Sequence[Token] = option(
        (),
        "Tokens that end a line, instead of the model's own end token.",
        Tokens(),
    )
    return_end_token: bool = option(False, "Keep the end token among the tokens of a hypothesis.")
    return_alternatives: bool = option(
        False, "Write the best first tokens, each with its best continuation."
    )
    min_alternative_probability: float = option(
        0.0, "Minimum probability of an alternative's first token.", Reals(0.0, 1.0)
    )
    return_scores: bool = option(True, None)
    return_token_scores: bool = option(False, "Write the log-probability of every token.")
    return_attention: bool = option(False, "Write the attention and the alignment.")
    attention_layer: int = option(
        -1,
        "Decoder layer of the attention.  [default: -1, the last]",
        Integers(-_LONGEST, _LONGEST),
    )
    attention_head: int | None = option(
        None, "Head of the attention.  [default: the mean over all]", Integers(0, _LONGEST)
    )
    replace_unknowns: bool = option(False, "Replace unknown tokens by the aligned source word.")
    callback: Callable[[Step], object] | None = option(None, None)
    batch_size: int = option(
        32,
        "Lines (or tokens) decoded together; 1 answers every line as it comes.  [default: 32]",
        Integers(1, 2**20),
    )
    batch_type: str = option(
        "rows", "What the batch size counts.  [default: rows]", OneOf(("rows", "tokens"))
    )
    truncate: bool = option(False, "Cut lines that are too long, instead of refusing them.")

    def __post_init__(self) -> None:
        values = vars(self)
        # Most values are the defaults, which need no check.
        problems = check_options({
            name: values[name] for name, default in DEFAULTS.items() if values[name] is not default
        })[1]  # fmt: skip
        if problems:
            raise ConfigError(join_problems(SUBJECT, problems))

    @property
    def needs_attention(self) -> bool:
        """Whether an option needs the cross-attention."""
        return bool(self.return_attention or self.replace_unknowns or self.coverage_penalty)


SPECS: Mapping[str, OptionSpec] = {
    field.name: field.metadata["spec"] for field in fields(DecodingOptions)
}
DEFAULTS: Mapping[str, Any] = {name: spec.default for name, spec in SPECS.items()}


def check_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Check options one by one and against each other.

    Args:
        given: options by name.

    Returns:
        The valid options that are not the defaults, and every problem: unknown options, invalid
        values, and contradictions.
    """
    problems = [unknown_option(name, SPECS) for name in given if name not in SPECS]
    valid = {}
    for name, spec in SPECS.items():
        if name in given:
            problem = spec.problem(given[name])
            if problem is None:
                valid[name] = given[name]
            else:
                problems.append(Problem(name, problem))
    # An invalid value is reported once: contradictions are checked with its default instead.
    changed = changed_options(valid)
    if changed:
        texts = _contradictions({**DEFAULTS, **changed}, changed.keys())
        problems.extend(Problem(None, text) for text in texts)
    return changed, problems


def changed_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """The options among valid values that are not the defaults; other values are skipped."""
    return {
        name: value
        for name, value in values.items()
        if name in DEFAULTS
        and value is not (default := DEFAULTS[name])
        and (callable(value) or value != default)
    }


def given_options(
    options: DecodingOptions | None, keywords: Mapping[str, Any], *, changed_only: bool = False
) -> dict[str, Any]:
    """Merge ``options`` and keywords of a call; a keyword overrides.

    Args:
        options: options that were named or are not the defaults are used.
        keywords: the keywords of the call.
        changed_only: skip those of ``options`` that are the defaults, named or not.

    Raises:
        ConfigError: ``options`` is something else.
    """
    if options is None:
        return dict(keywords)
    if not isinstance(options, DecodingOptions):
        text = f"{shown(options)} is not a DecodingOptions"
        raise ConfigError(join_problems(SUBJECT, [Problem("options", text)]))
    values = vars(options)
    counted = set(changed_options(values))
    if not changed_only:
        counted |= options.said
    return {**{name: values[name] for name in DEFAULTS if name in counted}, **keywords}


def naming_options(keywords: type) -> Callable[[Call], Call]:
    """Decorate a call so that ``help`` and editors show its keyword options by name.

    Args:
        keywords: the typed dictionary of its ``**keywords``.
    """

    def name(call: Call) -> Call:
        shown_as = signature(call)
        given = [
            each for each in shown_as.parameters.values() if each.kind != Parameter.VAR_KEYWORD
        ]
        options = [
            Parameter(option, Parameter.KEYWORD_ONLY, default=DEFAULTS.get(option),
                      annotation=getattr(kind, "__forward_arg__", kind))
            for option, kind in keywords.__annotations__.items()
        ]  # fmt: skip
        call.__signature__ = shown_as.replace(parameters=given + options)  # type: ignore[attr-defined]
        return call

    return name


# Arguments of some calls of ``Translator``, which the others take for options.
_OF_CALLS = {"terms": "translate", "required": "generate", "asynchronous": "translate and generate"}


def unknown_option(name: str, known: Collection[str]) -> Problem:
    """The problem of an option that a call does not know, with what may have been meant.

    Args:
        name: the option.
        known: the call's options.
    """
    if name in _OF_CALLS:
        hint = f"in Translator it is an argument of {_OF_CALLS[name]} only"
    elif near := nearest_name(str(name), known):
        hint = f"did you mean {near!r}?"
    else:
        hint = f"known: {', '.join(known)}"
    return Problem(None, f"unknown option {shown(name)}; {hint}")


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
    if not changed & ATTENTION_OPTIONS:
        for name in sorted(changed & {"attention_layer", "attention_head"}):
            yield Message(
                Option(name), " needs ", Option("return_attention"), ", ",
                Option("replace_unknowns"), " or ", Option("coverage_penalty"),
            )  # fmt: skip


def _search_contradictions(
    values: Mapping[str, Any], changed: AbstractSet[str]
) -> Iterator[Message]:
    """Contradictions between greedy search, sampling and beam search."""
    beam, count = values["beam_size"], values["num_hypotheses"]
    if values["sampling"]:
        if beam > 1:
            yield Message(Option("beam_size"), f" {beam} excludes ", Option("sampling"))
    else:
        yield from (_needs(name, "sampling") for name in NEEDS_SAMPLING if name in changed)
        if count > beam and not values["return_alternatives"]:
            yield _two("num_hypotheses", count, "exceeds", "beam_size", beam)
    if beam == 1:
        yield from (_needs(name, "beam_size", " above 1") for name in NEEDS_BEAM if name in changed)
    elif values["callback"] is not None:
        yield Message(
            Option("callback"), " excludes ", Option("beam_size"),
            f" {beam}: a beam's tokens are not known before its end",
        )  # fmt: skip


def _rules_contradictions(
    values: Mapping[str, Any], changed: AbstractSet[str]
) -> Iterator[Message]:
    """Contradictions between ``search_rules`` and options that only one set of rules has."""
    own = values["search_rules"] == "tfexport"
    needed = "transformers" if own else "tfexport"
    for name in TRANSFORMERS_RULES if own else OWN_RULES:
        if name in changed:
            yield Message(Option(name), " needs ", Option("search_rules", needed))
    if "exhaustive" in changed and values["early_stopping"]:
        yield Message(Option("exhaustive"), " needs ", Option("early_stopping", False))


def _two(name: str, value: object, verb: str, other: str, others: object) -> Message:
    return Message(Option(name), f" {value} {verb} ", Option(other), f" {others}")
