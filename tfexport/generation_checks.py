"""Checks of a bundle's own decoding defaults, the manifest's key ``generation``.

Here names, types and ids; bounds and contradictions are those of the decoding options, and are
checked where the bundle is opened for decoding.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tfexport.json_checks import Check, list_of, of_type, one_of, record, whole

SEARCH_RULES = ("tfexport", "transformers")

_FLAG = of_type("true or false", bool)
_NUMBER = of_type("a number", int, float)
_ID = whole(0)

# Decoding options of which a bundle may have a default of its own.
OPTIONS: dict[str, Check] = {
    "beam_size": whole(1),
    "num_hypotheses": whole(1),
    "length_penalty": _NUMBER,
    "early_stopping": _FLAG,
    "exhaustive": _FLAG,
    "search_rules": one_of(*SEARCH_RULES),
    "renormalize_logits": _FLAG,
    "sampling": _FLAG,
    "temperature": _NUMBER,
    "top_k": whole(0),
    "top_p": _NUMBER,
    "min_length": whole(0),
    "max_length": whole(0),
    "no_repeat_ngram_size": whole(0),
    "encoder_no_repeat_ngram_size": whole(0),
    "repetition_penalty": _NUMBER,
    "suppress_tokens": list_of(_ID),
    "suppress_first_tokens": list_of(_ID),
    "suppress_sequences": list_of(list_of(_ID)),
    "first_token": _ID,
    "last_token": _ID,
    "end_tokens": list_of(_ID),
}
GENERATION = record({}, OPTIONS)


def find_foreign_ids(values: Mapping[str, Any], size: int) -> Iterator[str]:
    """Ids of defaults, whose values are of the right types, beyond the target vocabulary."""
    for name, number in _ids(values):
        if number >= size:
            yield f"{name}: {number} is not an id of the target vocabulary (0 to {size - 1})"


def _ids(values: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Every id among the defaults, with where it stands."""
    for name in ("first_token", "last_token"):
        if name in values:
            yield f"generation.{name}", values[name]
    for name in ("suppress_tokens", "suppress_first_tokens", "end_tokens"):
        for place, number in enumerate(values.get(name, ())):
            yield f"generation.{name}[{place}]", number
    for place, sequence in enumerate(values.get("suppress_sequences", ())):
        for number in sequence:
            yield f"generation.suppress_sequences[{place}]", number
