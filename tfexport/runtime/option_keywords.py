"""The types of decoding options as keywords of a call, which an editor completes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict

from tfexport.runtime.option_checks import Token
from tfexport.runtime.step import Step


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
