"""The languages of a model that has language tokens."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tfexport.errors import shown
from tfexport.json_checks import Check, every, integer, of_type, one_of, or_null, record

SOURCE_PLACES = ("before", "after")
TARGET_PLACES = ("first", "start", "source")


@dataclass(frozen=True)
class Languages:
    """The languages of a model.

    Attributes:
        ids: language code to the id of its token.
        source_place: where the source language's id goes: "before" all ids of a source text, or
            "after" all of them, the end token included; None if the model takes no such token.
        target_place: where the target language's id goes: it is the "first" token of every target,
            the "start" token of the decoder, or goes before the "source" text's own ids; None if
            the model takes no such token.
        source: the source language if the caller names none; None for no default. If
            ``source_place`` is None, it is the only one that the model reads.
        target: the same for the target.
    """

    ids: dict[str, int] = field(default_factory=dict)
    source_place: str | None = None
    target_place: str | None = None
    source: str | None = None
    target: str | None = None


_CODE = of_type("a language code", str)

LANGUAGES: Check = record(
    {
        "ids": every(integer(0)),
        "source_place": or_null(one_of(*SOURCE_PLACES)),
        "target_place": or_null(one_of(*TARGET_PLACES)),
        "source": or_null(_CODE),
        "target": or_null(_CODE),
    }
)


def find_contradictions(values: Mapping[str, Any], sizes: Mapping[str, int]) -> Iterator[str]:
    """Find contradictions between languages whose values are of the right types.

    Args:
        values: the values of a manifest's key ``languages``.
        sizes: the sizes of the vocabularies, "source" and "target".
    """
    ids, sides = values["ids"], set[str]()
    for side in ("source", "target"):
        place, default = values[f"{side}_place"], values[side]
        if place is None:
            continue
        sides.add("source" if place in (*SOURCE_PLACES, "source") else "target")
        if not ids:
            yield f"languages.{side}_place: {shown(place)}, and there are no ids"
        elif default is not None and default not in ids:
            yield f"languages.{side}: {shown(default)} is not one of the languages"
    for code, number in ids.items():
        if not code:
            yield "languages.ids: a code is empty"
        for side in sorted(sides):
            if number >= sizes[side]:
                yield (
                    f"languages.ids.{shown(code)[1:-1]}: {number} is not an id of the {side} "
                    f"vocabulary (0 to {sizes[side] - 1})"
                )
