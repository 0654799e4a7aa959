"""Decoding options, checked together before any work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from inspect import Parameter, signature
from typing import Any, TypeVar

from tfexport.errors import ConfigError, Problem, join_problems, shown
from tfexport.runtime.option_checks import (
    Choice,
    OneToken,
    OptionSpec,
    Reals,
    Sequences,
    Token,
    Tokens,
    Wholes,
    changed_from,
    find_problems,
    option,
)
from tfexport.runtime.option_keywords import DecodingKeywords as DecodingKeywords
from tfexport.runtime.option_keywords import ScoringKeywords as ScoringKeywords
from tfexport.runtime.option_keywords import TranslationKeywords as TranslationKeywords
from tfexport.runtime.step import Step as Step
from tfexport.typing import Self

Call = TypeVar("Call", bound=Callable[..., Any])

SUBJECT = "decoding options"
_LONGEST = 2**31 - 1  # tokens, far above what memory allows
_WIDEST = 1024  # hypotheses of one row, each with its own caches


class _Said:
    """Remembers what was said, so that it wins over a bundle's own default."""

    __slots__ = ("_count", "_named")  # beside the fields, whose dictionary callers may read
    _count: int
    _named: frozenset[str]

    def __new__(cls, *values: Any, **keywords: Any) -> Self:
        made = super().__new__(cls)
        object.__setattr__(made, "_count", len(values))
        object.__setattr__(made, "_named", frozenset(keywords))
        return made

    def __getstate__(self) -> dict[str, Any]:
        """For copies, in which nothing counts as said."""
        return vars(self)


@dataclass(frozen=True)
class DecodingOptions(_Said):
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
        seed: of the random numbers; the same seed gives the same results.
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
        first_token: the token that every row begins with.
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
        batch_size: size of a batch, counted as ``batch_type`` says.
        batch_type: "rows", or "tokens": rows times the length of the longest source.
        truncate: cut inputs that are too long instead of refusing them.
    """

    beam_size: int = option(
        1, "Size of the beam; 1 is greedy search.  [default: 1]", Wholes(1, _WIDEST)
    )
    num_hypotheses: int = option(
        1, "Hypotheses per line; each is an output line.  [default: 1]", Wholes(1, _WIDEST)
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
        Choice(("tfexport", "transformers")),
    )
    exhaustive: bool = option(
        False, "With transformers' rules: continue while a better hypothesis is possible."
    )
    renormalize_logits: bool = option(
        False, "With transformers' rules: normalise scores after penalties and bans."
    )
    beam_groups: int = option(1, "Groups of diverse beam search.  [default: 1]", Wholes(1, _WIDEST))
    diversity_penalty: float = option(
        0.0, "Penalty on a token for each group that chose it before.", Reals(0.0, 1e6)
    )
    sampling: bool = option(False, "Sample tokens instead of taking the best.")
    temperature: float = option(
        1.0,
        "Sampling divides the logits by this; values below 1 favour the best tokens.  [default: 1]",
        Reals(0.0, 1e6, inclusive=False),
    )
    top_k: int = option(0, "Sample from this many best tokens.", Wholes(0, _LONGEST))
    top_p: float = option(
        1.0, "Sample from the fewest tokens with this total probability.", Reals(0.0, 1.0)
    )
    seed: int | None = option(
        None, "Seed of sampling; the same seed gives the same lines.", Wholes(0, 2**64 - 1)
    )
    min_length: int = option(0, "Minimum number of tokens per line.", Wholes(0, _LONGEST))
    max_length: int = option(
        256, "Maximum number of tokens per line.  [default: 256]", Wholes(0, _LONGEST)
    )
    max_input_length: int | None = option(
        None,
        "Maximum length of the input in tokens.  [default: the model's limit]",
        Wholes(1, _LONGEST),
    )
    no_repeat_ngram_size: int = option(
        0, "No n-gram of this many tokens occurs twice.", Wholes(0, _LONGEST)
    )
    encoder_no_repeat_ngram_size: int = option(
        0, "No n-gram of this many source tokens occurs in the target.", Wholes(0, _LONGEST)
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
        -1, "Decoder layer of the attention.  [default: -1, the last]", Wholes(-_LONGEST, _LONGEST)
    )
    attention_head: int | None = option(
        None, "Head of the attention.  [default: the mean over all]", Wholes(0, _LONGEST)
    )
    replace_unknowns: bool = option(False, "Replace unknown tokens by the aligned source word.")
    callback: Callable[[Step], object] | None = option(None, None)
    batch_size: int = option(
        32,
        "Lines (or tokens) decoded together; 1 answers every line as it comes.  [default: 32]",
        Wholes(1, 2**20),
    )
    batch_type: str = option(
        "rows", "What the batch size counts.  [default: rows]", Choice(("rows", "tokens"))
    )
    truncate: bool = option(False, "Cut lines that are too long, instead of refusing them.")

    @property
    def said(self) -> frozenset[str]:
        """Options that were said when this was made; none where all were, as in a copy."""
        named = [option.name for option in fields(self)]
        said = {*named[: self._count], *self._named}
        return frozenset() if len(said) == len(named) else frozenset(said)

    def __post_init__(self) -> None:
        problems = list(find_problems(vars(self), SPECS))
        if problems:
            raise ConfigError(join_problems(SUBJECT, problems))

    @property
    def needs_attention(self) -> bool:
        """Whether anything asks for the cross-attention."""
        return bool(self.return_attention or self.replace_unknowns or self.coverage_penalty)


SPECS: Mapping[str, OptionSpec] = {
    field.name: field.metadata["spec"] for field in fields(DecodingOptions)
}
DEFAULTS: Mapping[str, Any] = {name: spec.default for name, spec in SPECS.items()}
# They give more of a row than one translation and its score.
GIVING_MORE = (
    "num_hypotheses", "return_attention", "return_token_scores", "return_alternatives", "callback",
)  # fmt: skip


def changed_options(values: Mapping[str, Any]) -> set[str]:
    """Names of the options whose values are not their defaults; the values must be valid."""
    return changed_from(DEFAULTS, values)


def given_options(
    options: DecodingOptions | None, keywords: Mapping[str, Any], *, changed_only: bool = False
) -> dict[str, Any]:
    """Options of a call as keywords: those of ``options``, and keywords. A keyword wins.

    Args:
        options: of which those count that were said, or are not the defaults.
        keywords: of the call.
        changed_only: those of ``options`` that are the defaults do not count, said or not.

    Raises:
        ConfigError: ``options`` is something else.
    """
    if options is None:
        return dict(keywords)
    if not isinstance(options, DecodingOptions):
        text = f"{shown(options)} is not a DecodingOptions"
        raise ConfigError(join_problems(SUBJECT, [Problem("options", text)]))
    values = {name: getattr(options, name) for name in DEFAULTS}
    counted = changed_options(values)
    if not changed_only:
        counted |= options.said
    return {**{name: values[name] for name in DEFAULTS if name in counted}, **keywords}


def naming_options(keywords: type) -> Callable[[Call], Call]:
    """Let ``help`` and editors show the options that a call takes as keywords, by their names.

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
