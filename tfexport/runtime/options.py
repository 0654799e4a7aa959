"""Decoding options, checked together before any work."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from typing import Any

from tfexport.errors import ConfigError, join_problems, shown

Token = int | str
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
    """How to decode; docs/decoding.md has every definition.

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
        max_input_length: longest input in tokens, framing included; None for the model's limit.
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
        problems = list(find_problems(vars(self)))
        if problems:
            raise ConfigError(join_problems(SUBJECT, problems))

    @property
    def needs_attention(self) -> bool:
        """Whether anything asks for the cross-attention."""
        return bool(self.return_attention or self.replace_unknowns or self.coverage_penalty)


_DEFAULTS = {
    field.name: field.default for field in fields(DecodingOptions) if field.default is not MISSING
}
_LONGEST = 2**31 - 1  # no model, and no memory, comes near it
_WIDEST = 1024  # hypotheses of one row: each has caches of its own
# Whole numbers: name to least and largest value.
_WHOLE = {
    "beam_size": (1, _WIDEST),
    "num_hypotheses": (1, _WIDEST),
    "beam_groups": (1, _WIDEST),
    "top_k": (0, _LONGEST),
    "seed": (0, 2**64 - 1),
    "min_length": (0, _LONGEST),
    "max_length": (0, _LONGEST),
    "max_input_length": (1, _LONGEST),
    "no_repeat_ngram_size": (0, _LONGEST),
    "attention_layer": (-_LONGEST, _LONGEST),
    "attention_head": (0, _LONGEST),
    "batch_size": (1, 2**20),
}
# Real numbers: name to bounds, and whether the lower one itself is allowed.
_REAL = {
    # A length to the power of ten times this is still a float.
    "length_penalty": (-10.0, 10.0, True),
    "coverage_penalty": (0.0, 1e6, True),
    "patience": (0.0, 1e6, False),
    "diversity_penalty": (0.0, 1e6, True),
    "temperature": (0.0, 1e6, False),
    "top_p": (0.0, 1.0, True),
    # Beyond, logits leave the range of float32.
    "repetition_penalty": (1e-3, 1e3, True),
    "min_alternative_probability": (0.0, 1.0, True),
}
_NEEDS_BEAM = ("patience", "early_stopping", "coverage_penalty", "beam_groups")
_NEEDS_SAMPLING = ("temperature", "top_k", "top_p", "seed")


def changed_options(values: Mapping[str, Any]) -> set[str]:
    """Names of the options whose values are not their defaults; the values must be good ones."""
    return {
        name
        for name, value in values.items()
        if value is not _DEFAULTS[name] and (callable(value) or value != _DEFAULTS[name])
    }


def unknown_options(keywords: Mapping[str, Any]) -> Iterator[str]:
    """A problem for each keyword that is no option."""
    for key in keywords:
        if key not in _DEFAULTS:
            near = get_close_matches(str(key)[:80], _DEFAULTS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(_DEFAULTS)}"
            yield f"unknown option {shown(key)}; {hint}"


def find_problems(given: Mapping[str, Any]) -> Iterator[str]:
    """Every bad value, then every contradiction among the good ones."""
    values = {**_DEFAULTS, **{name: given[name] for name in given if name in _DEFAULTS}}
    bad = {name: problem for name in values if (problem := _bad_value(name, values[name]))}
    for name, problem in bad.items():
        yield f"{name}: {problem}"
    # A bad value contradicts nothing: its default stands in for it.
    yield from _contradictions({**values, **{name: _DEFAULTS[name] for name in bad}})


def _bad_value(name: str, value: Any) -> str | None:
    if name in _WHOLE:
        return (
            None if value is None and _DEFAULTS[name] is None else _bad_whole(value, *_WHOLE[name])
        )
    if name in _REAL:
        return _bad_real(value, *_REAL[name])
    if isinstance(_DEFAULTS[name], bool):
        return None if isinstance(value, bool) else f"{shown(value)} is not true or false"
    if name in ("suppress_tokens", "end_tokens"):
        return _bad_tokens(value)
    if name == "suppress_sequences":
        return _bad_sequences(value)
    if name == "batch_type" and not (isinstance(value, str) and value in ("rows", "tokens")):
        return f"{shown(value)} is not 'rows' or 'tokens'"
    if name == "callback" and value is not None and not callable(value):
        return f"{shown(value)} cannot be called"
    return None


def _bad_whole(value: Any, least: int, most: int) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return f"{shown(value)} is not a whole number"
    if value < least:
        return f"{shown(value)} is less than {least}"
    return f"{shown(value)} is more than {most}" if value > most else None


def _bad_real(value: Any, low: float, high: float, inclusive: bool) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return f"{shown(value)} is not a number"
    if low < value <= high or (inclusive and value == low):
        return None
    if inclusive:
        return f"{shown(value)} is not between {low:g} and {high:g}"
    return f"{shown(value)} is not {f'above {low:g}' if value <= low else f'at most {high:g}'}"


def _bad_tokens(value: Any) -> str | None:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        return f"{shown(value)} is not a list of tokens"
    wrong = [token for token in value if isinstance(token, bool) or not isinstance(token, Token)]
    return f"{shown(wrong[0])} is neither an id nor a token" if wrong else None


def _bad_sequences(value: Any) -> str | None:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        return f"{shown(value)} is not a list of sequences"
    for sequence in value:
        if not isinstance(sequence, str) and (problem := _bad_tokens(sequence)):
            return problem
        if not sequence:
            return "an empty sequence would ban every token"
    return None


def _contradictions(values: Mapping[str, Any]) -> Iterator[str]:
    changed = changed_options(values)
    yield from _search_contradictions(values, changed)
    if "patience" in changed and not values["early_stopping"]:
        yield "patience needs early_stopping"
    if "diversity_penalty" in changed and values["beam_groups"] == 1:
        yield "diversity_penalty needs beam_groups above 1"
    if values["beam_size"] > 1 and values["beam_size"] % values["beam_groups"]:
        yield f"beam_groups {values['beam_groups']} does not divide beam_size {values['beam_size']}"
    if values["min_length"] > values["max_length"]:
        yield f"min_length {values['min_length']} exceeds max_length {values['max_length']}"
    if "min_alternative_probability" in changed and not values["return_alternatives"]:
        yield "min_alternative_probability needs return_alternatives"
    if not changed & {"return_attention", "replace_unknowns", "coverage_penalty"}:
        for name in sorted(changed & {"attention_layer", "attention_head"}):
            yield f"{name} needs return_attention, replace_unknowns or coverage_penalty"


def _search_contradictions(values: Mapping[str, Any], changed: AbstractSet[str]) -> Iterator[str]:
    """Between greedy search, sampling and beam search."""
    beam, count = values["beam_size"], values["num_hypotheses"]
    if values["sampling"]:
        if beam > 1:
            yield f"beam_size {beam} excludes sampling"
    else:
        yield from (f"{name} needs sampling" for name in _NEEDS_SAMPLING if name in changed)
        if count > beam and not values["return_alternatives"]:
            yield f"num_hypotheses {count} exceeds beam_size {beam}"
    if beam == 1:
        yield from (f"{name} needs beam_size above 1" for name in _NEEDS_BEAM if name in changed)
    elif values["callback"] is not None:
        yield f"callback excludes beam_size {beam}: a beam's tokens are not known before its end"
