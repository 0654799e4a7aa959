"""Rules of a beam search, as the engine takes them."""

import ctypes
from collections.abc import Mapping
from typing import Any

from tfexport_native.arrays import address, as_ints
from tfexport_native.library import CBeamRules, CIds, NativeError

_STOPS = ("early", "present", "next", "longest")  # in the order of TFN_STOP_EARLY and on
# The fields of ``tfn_beam_rules`` that ``Model.beam`` has no arguments for, and what they are if
# nothing more is banned or changed. ``engine/abi.h`` explains them.
_PLAIN: Mapping[str, Any] = {
    "ends": (), "start": None, "stop": "early", "length_penalty": 1.0, "on_log_probs": False,
    "renormalize": False, "first_token": None, "last_token": None, "min_length": 0, "ngram": 0,
    "source_ngram": 0, "repetition_penalty": 1.0, "suppressed": (), "suppressed_first": (),
    "sequences": (),
}  # fmt: skip


class GivenRules:
    """Rules in the engine's form; keeps their memory."""

    def __init__(self, rules: Mapping[str, Any], beams: int, enough: int, most: int) -> None:
        """Take the fields of ``tfn_beam_rules`` by name; the others are as without rules."""
        if unknown := rules.keys() - _PLAIN.keys():
            raise NativeError(
                f"unknown rules: {', '.join(sorted(unknown))}; known are {', '.join(_PLAIN)}"
            )
        by = {**_PLAIN, **rules}
        if by["stop"] not in _STOPS:
            raise NativeError(f"stop is {by['stop']!r}; expected one of {', '.join(_STOPS)}")
        self.number_of_ends = len(by["ends"])
        sequences = by["sequences"]
        joined = [token for sequence in sequences for token in sequence]
        lists = (
            by["ends"], by["suppressed"], by["suppressed_first"], joined,
            [len(sequence) for sequence in sequences],
        )  # fmt: skip
        self._kept = [as_ints(each) for each in lists]
        ids = [CIds(address(each), len(each)) for each in self._kept]
        numbers = (
            beams, enough, most, _STOPS.index(by["stop"]), by["on_log_probs"], by["renormalize"],
            by["start"], by["first_token"], by["last_token"], by["min_length"], by["ngram"],
            by["source_ngram"],
        )  # fmt: skip
        whole = as_ints([-1 if number is None else int(number) for number in numbers])
        penalties = (by["length_penalty"], by["repetition_penalty"])
        self.c = CBeamRules(*whole.tolist(), *penalties, *ids)
        self.pointer = ctypes.pointer(self.c)
