"""Rules of a beam search, as the engine takes them."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from tfexport_native.arrays import address, as_ints
from tfexport_native.library import CBeamRules, CIds, NativeError

_STOPS = ("early", "present", "next", "longest")  # in the order of TFN_STOP_EARLY and on


@dataclass(frozen=True, kw_only=True)
class BeamRules:
    """How a beam search ranks, what it bans, and when it is done; see ``engine/abi.h``.

    Attributes:
        ends: tokens that end a row; none for the model's own.
        start: the start token; None for the model's own.
        stop: when a sentence is done that has enough hypotheses: "early" for at once, or once none
            that is followed can be better, by its "present" length, the "next" or the "longest".
        length_penalty: a score is the sum of log-probabilities over length to this power.
        on_log_probs: penalties and bans act on log-probabilities, and count the start token.
        renormalize: make probabilities again of what these leave.
        first_token: forced; it is in no record.
        last_token: forced at the greatest length.
        min_length: tokens before an end token, at least.
        ngram: no n-gram of this size occurs twice; 0 for any.
        source_ngram: no n-gram of this size is one of the source's, which has to be ids; 0 for any.
        repetition_penalty: divides positive logits of earlier tokens, multiplies negative ones.
        suppressed: tokens that are never chosen.
        suppressed_first: tokens that are never chosen first.
        sequences: sequences that are never completed.
    """

    ends: Sequence[int] = ()
    start: int | None = None
    stop: str = "early"
    length_penalty: float = 1.0
    on_log_probs: bool = False
    renormalize: bool = False
    first_token: int | None = None
    last_token: int | None = None
    min_length: int = 0
    ngram: int = 0
    source_ngram: int = 0
    repetition_penalty: float = 1.0
    suppressed: Sequence[int] = ()
    suppressed_first: Sequence[int] = ()
    sequences: Sequence[Sequence[int]] = ()


class GivenRules:
    """Rules in the engine's form; keeps their memory."""

    def __init__(self, rules: BeamRules, beams: int, enough: int, most: int) -> None:
        if rules.stop not in _STOPS:
            raise NativeError(f"stop is {rules.stop!r}; expected one of {', '.join(_STOPS)}")
        joined = [token for sequence in rules.sequences for token in sequence]
        lists = (
            rules.ends, rules.suppressed, rules.suppressed_first, joined,
            [len(sequence) for sequence in rules.sequences],
        )  # fmt: skip
        self._kept = [as_ints(each) for each in lists]
        ids = [CIds(address(each), len(each)) for each in self._kept]
        numbers = (
            beams, enough, most, _STOPS.index(rules.stop), rules.on_log_probs, rules.renormalize,
            rules.start, rules.first_token, rules.last_token, rules.min_length, rules.ngram,
            rules.source_ngram,
        )  # fmt: skip
        whole = as_ints([-1 if number is None else int(number) for number in numbers])
        penalties = (rules.length_penalty, rules.repetition_penalty)
        self.c = CBeamRules(*whole.tolist(), *penalties, *ids)
        self.pointer = ctypes.pointer(self.c)
