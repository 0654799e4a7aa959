"""XML files of texts and their translations: XLIFF and Qt's TS.

Sources: XLIFF 1.2 and 2.0 of OASIS, https://doc.qt.io/qt-6/linguist-ts-file-format.html.
"""

import html
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from tfexport.markup.document import Markup
from tfexport.markup.tokens import KeptPart, Token, escape
from tfexport.markup.xml_reader import read_xml

Kind = Literal["xliff", "ts"]
_ROOT = re.compile(
    r"\A\s*(?:<\?xml[^<>]*\?>|<!DOCTYPE[^<>\[\]]*>|<!--.*?-->|\s)*<(xliff|TS)(?=[\s>])", re.DOTALL
)
_UNITS = {"xliff": ("trans-unit", "segment"), "ts": ("message",)}
_TARGETS = {"xliff": "target", "ts": "translation"}
_CODES = frozenset({"ph", "bpt", "ept", "it", "sm", "em"})  # of XLIFF, whose content is a program's
_NEW = re.compile(r"\bstate\s*=\s*[\"'](?:new|initial|needs-translation)[\"']")
_GONE = re.compile(r"\btype\s*=\s*[\"'](?:vanished|obsolete)[\"']")
_FORMS = "the forms of a plural are left to a translator"


@dataclass(frozen=True)
class Unit:
    """A text that has no translation yet.

    Attributes:
        line: where it starts, from 1.
        text: the text; of XLIFF with its tags.
        begin: where its translation is to be written.
        end: after what is there now.
        write: makes the element of a translation.
    """

    line: int
    text: str
    begin: int
    end: int
    write: Callable[[str], str]


def kind_of(content: str) -> Kind | None:
    """The kind of an XML file, if it is one of those here."""
    found = _ROOT.match(content)
    return None if found is None else ("ts" if found[1] == "TS" else "xliff")


def markup_of(markup: Markup) -> Markup:
    """The markup of the texts of XLIFF."""
    ignored = markup.rules.ignored | _CODES
    return replace(
        markup, format="xml", rules=replace(markup.rules, ignored=ignored, outline=False)
    )


def find_units(content: str, kind: Kind, markup: Markup) -> tuple[list[Unit], list[KeptPart]]:
    """Find the texts without a translation, and those with forms of a plural.

    Args:
        content: of the file.
        kind: see ``kind_of``.
        markup: with rules for its elements.

    Raises:
        InputError: it is not well-formed.
    """
    tokens = read_xml(content, markup.rules)
    starts = [0, *accumulate(len(token.raw) for token in tokens)]
    units, kept = list[Unit](), list[KeptPart]()
    for first, last in _elements(tokens, _UNITS[kind]):
        inside = {tokens[place].name: place for place in _children(tokens, first, last)}
        source, target = inside.get("source"), inside.get(_TARGETS[kind])
        if source is None or tokens[source].kind != "open":
            continue
        line = content.count("\n", 0, starts[source]) + 1
        text = content[starts[source + 1] : starts[tokens[source].end - 1]]
        if target is not None and tokens[target].kind == "open" and _is_plural(tokens, target):
            kept.append(KeptPart(line, text, _FORMS))
        elif unit := _unit(content, tokens, starts, kind, source, target):
            units.append(replace(unit, line=line))
    return units, kept


def _elements(tokens: Sequence[Token], names: Sequence[str]) -> Iterator[tuple[int, int]]:
    for place, token in enumerate(tokens):
        if token.kind == "open" and token.name in names:
            yield place, token.end


def _children(tokens: Sequence[Token], first: int, last: int) -> Iterator[int]:
    """The places of the elements that are directly in one."""
    place = first + 1
    while place < last - 1:
        if tokens[place].kind in ("open", "empty"):
            yield place
        place = tokens[place].end if tokens[place].kind == "open" else place + 1


def _is_plural(tokens: Sequence[Token], target: int) -> bool:
    inside = tokens[target : tokens[target].end]
    return any(token.name == "numerusform" for token in inside) and not any(
        token.text.strip() for token in inside
    )


def _unit(
    content: str, tokens: Sequence[Token], starts: Sequence[int], kind: Kind, source: int,
    target: int | None,
) -> Unit | None:  # fmt: skip
    """The text of a source, if its target is empty, missing, or new and a copy of it."""
    after = tokens[source].end
    raw = content[starts[source + 1] : starts[after - 1]]
    text = html.unescape(raw) if kind == "ts" else raw
    put = escape if kind == "ts" else str
    if not text.strip():
        return None
    if target is None:
        before = tokens[source - 1].raw if tokens[source - 1].kind == "text" else ""
        indent = before[before.rfind("\n") :] if "\n" in before else ""
        name = _TARGETS[kind]
        place = starts[after]
        return Unit(0, text, place, place, lambda made: f"{indent}<{name}>{put(made)}</{name}>")
    start = tokens[target].raw
    end = target + 1 if tokens[target].kind == "empty" else tokens[target].end
    inside = "" if end == target + 1 else content[starts[target + 1] : starts[end - 1]]
    if _GONE.search(start) or (inside.strip() and not (_NEW.search(start) and inside == raw)):
        return None
    opening = re.sub(r"\s*/>\Z", ">", start) if end == target + 1 else start
    closing = f"</{tokens[target].name}>"
    return Unit(0, text, starts[target], starts[end], lambda made: f"{opening}{put(made)}{closing}")
