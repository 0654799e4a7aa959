"""Decoding options, checked together before any work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from tfexport.errors import ConfigError, Problem, join_problems, shown
from tfexport.runtime.option_checks import Token, changed_from, find_problems

SUBJECT = "decoding options"


@dataclass(frozen=True)
class Step:
    """One token of one row, as a callback sees it.

    Attributes:
        row: which input, from 0.
        hypothesis: which of its samples, from 0.
        position: of the token in the output, from 0.
        token: its id; the end token too.
        log_prob: its natural-log probability.
        last: the row ends with it.
    """

    row: int
    hypothesis: int
    position: int
    token: int
    log_prob: float
    last: bool


@dataclass(frozen=True)
class DecodingOptions:
    """Options of decoding; docs/decoding.md has every definition.

    A token is an id, or a piece of text that the target tokenizer knows as one token.

    Attributes:
        beam_size: hypotheses that are followed at a time; 1 is greedy search.
        num_hypotheses: hypotheses to return, best first.
        length_penalty: a score is the summed log-probability divided by length to this power.
        coverage_penalty: weight of a penalty on source positions that nothing attended to.
        patience: with early stopping, a beam is done with ``beam_size * patience`` hypotheses.
        early_stopping: false follows a beam until no hypothesis can come in any more.
        beam_groups: groups that the beam is divided into, for hypotheses that differ.
        diversity_penalty: what a token loses for each earlier group that chose it at this step.
        sampling: draw tokens at random instead of taking the best.
        temperature: logits are divided by it before a draw.
        top_k: draw among that many best tokens only; 0 among all.
        top_p: draw among the fewest best tokens that have this probability together.
        seed: of the draws; the same seed gives the same results.
        min_length: tokens a row at least; the end token does not count.
        max_length: tokens a row at most, the start token not counted. The model's own limit
            bounds it.
        max_input_length: longest input in tokens, special tokens included; None for the model's
            own limit.
        no_repeat_ngram_size: no run of that many tokens comes twice; 0 allows all.
        repetition_penalty: positive logits of tokens that came before are divided by it, negative
            ones multiplied.
        suppress_tokens: never chosen.
        suppress_sequences: sequences of tokens, or texts, that are never completed.
        disable_unk: never choose the unknown token.
        end_tokens: end a row; none stands for the model's own.
        return_end_token: keep the end token in the tokens of a hypothesis.
        return_alternatives: the best ``num_hypotheses`` tokens behind the prefix, each followed by
            its best continuation.
        min_alternative_probability: of the first token of an alternative.
        return_scores: false leaves scores out: they are NaN. Greedy search with no other options is
            faster without.
        return_token_scores: the log-probability of every token.
        return_attention: how much every token attended to every source token.
        attention_layer: decoder layer that attention is taken of, from 0; negative ones count from
            the last.
        attention_head: head that attention is taken of; None for the mean over all.
        replace_unknowns: in text, put for the unknown token the source token it attended to.
        callback: called with every ``Step``; a row ends where it returns true.
        batch_size: rows decoded together, or tokens.
        batch_type: "rows", or "tokens": rows times the longest of them.
        truncate: cut inputs that are too long, instead of refusing them.
    """

    beam_size: int = 1
    num_hypotheses: int = 1
    length_penalty: float = 1.0
    coverage_penalty: float = 0.0
    patience: float = 1.0
    early_stopping: bool = True
    beam_groups: int = 1
    diversity_penalty: float = 0.0
    sampling: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    min_length: int = 0
    max_length: int = 256
    max_input_length: int | None = None
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    suppress_tokens: Sequence[Token] = ()
    suppress_sequences: Sequence[Sequence[Token] | str] = ()
    disable_unk: bool = False
    end_tokens: Sequence[Token] = ()
    return_end_token: bool = False
    return_alternatives: bool = False
    min_alternative_probability: float = 0.0
    return_scores: bool = True
    return_token_scores: bool = False
    return_attention: bool = False
    attention_layer: int = -1
    attention_head: int | None = None
    replace_unknowns: bool = False
    callback: Callable[[Step], object] | None = None
    batch_size: int = 32
    batch_type: str = "rows"
    truncate: bool = False

    def __post_init__(self) -> None:
        problems = list(find_problems(vars(self), DEFAULTS))
        if problems:
            raise ConfigError(join_problems(SUBJECT, problems))

    @property
    def needs_attention(self) -> bool:
        """Whether anything asks for the cross-attention."""
        return bool(self.return_attention or self.replace_unknowns or self.coverage_penalty)


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
    """All decoding options, as keywords of a call; ``DecodingOptions`` says what each does."""

    beam_size: int
    num_hypotheses: int
    patience: float
    early_stopping: bool
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
    repetition_penalty: float
    suppress_tokens: Sequence[Token]
    suppress_sequences: Sequence[Sequence[Token] | str]
    disable_unk: bool
    end_tokens: Sequence[Token]
    return_alternatives: bool
    min_alternative_probability: float
    return_scores: bool
    replace_unknowns: bool
    callback: Callable[[Step], object] | None


DEFAULTS: Mapping[str, Any] = {field.name: field.default for field in fields(DecodingOptions)}


def changed_options(values: Mapping[str, Any]) -> set[str]:
    """Names of the options whose values are not their defaults; the values must be good ones."""
    return changed_from(DEFAULTS, values)


def given_options(options: DecodingOptions | None, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a call as keywords: those of ``options`` that are not the defaults, and keywords.

    A keyword wins.

    Raises:
        ConfigError: ``options`` is something else.
    """
    if options is None:
        return dict(keywords)
    if not isinstance(options, DecodingOptions):
        text = f"{shown(options)} is not a DecodingOptions"
        raise ConfigError(join_problems(SUBJECT, [Problem("options", text)]))
    values = vars(options)
    return {
        **{name: values[name] for name in DEFAULTS if name in changed_options(values)},
        **keywords,
    }
